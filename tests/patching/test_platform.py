"""Systems other than Linux: no forks, no ``resource``."""

from __future__ import annotations

from .processes import passes


def test_importing_installing_and_a_compile_need_no_forks():
    """The library is imported, installed, used by two threads and taken out again where the system has no forks.

    torch is there before: it asks ``sys.platform`` and not what ``os`` has.
    """
    passes("""
        import os, sys, threading
        for name in ("fork", "register_at_fork", "killpg", "sched_getaffinity"):
            delattr(os, name)
        sys.modules["resource"] = None
        import safecompile.patch_all
        import torch
        fn = torch.compile(lambda x: x + 1, backend="eager")
        results = []
        threads = [threading.Thread(target=lambda: results.append(fn(torch.ones(2)))) for _ in range(2)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert [one.tolist() for one in results] == [[2.0, 2.0]] * 2
        safecompile.uninstall()
    """)

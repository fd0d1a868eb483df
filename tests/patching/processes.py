"""Programs that must pass in a process of their own."""

from __future__ import annotations

from functools import lru_cache

from tests.helpers.nursery import Nursery
from tests.helpers.threads import in_fresh_process

from .snapshots import PATCHED_MODULES


@lru_cache(maxsize=1)
def _nursery() -> Nursery:
    prepare = 'import torch; torch.compile(lambda x: x, backend="eager")  # imports what it needs'
    return Nursery(("torch", *PATCHED_MODULES), prepare)


def passes(code: str, *, timeout_s: float = 60.0, **env: str) -> str:
    """Runs ``code`` where torch is imported and nothing else has happened; it must pass. Returns what it printed."""
    done = _nursery().run(code, timeout_s=timeout_s, **env)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def passes_without_torch(code: str, *, timeout_s: float = 90.0, **env: str) -> str:
    """Runs ``code`` in a process that has not imported torch; it must pass. Returns what it printed."""
    done = in_fresh_process(code, timeout_s=timeout_s, **env)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout

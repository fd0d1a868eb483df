"""A thread that frees a traceback, as the last to hold a function's code, and another that takes one: both hang.

torch frees the code under a mutex (``freeDeadCapturedTracebackFrames`` in
``torch/csrc/profiler/python/combined_traceback.cpp``). Whatever Python runs there, as Dynamo's callback on the death of
compiled code, may lose Python's lock to a thread that waits for the mutex without giving it up. Seen with torch 2.9.1,
where a thread that had compiled came to its end beside another's compile (docs/known-issues.md).
"""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch._dynamo

import safecompile
from tests.helpers.threads import Hung, in_fresh_process, run_threads

FREES = """
    import threading, time, weakref
    from torch.utils._traceback import CapturedTraceback

    def captured(free_where):
        scope = {"CapturedTraceback": CapturedTraceback}
        exec("def function(): return CapturedTraceback.extract()", scope)
        function = scope.pop("function")
        traceback = function()
        ref = weakref.ref(function.__code__, lambda _: time.sleep(0.5))
        code = function.__code__ if free_where == "elsewhere" else None
        del function
        def frees():
            nonlocal traceback, code
            traceback = None
            code = None
        thread = threading.Thread(target=frees, daemon=True)
        thread.start()
        time.sleep(0.2)
        CapturedTraceback.extract()
        thread.join()
        assert ref() is None

    captured(WHERE)
"""


def test_the_last_to_hold_the_code_is_a_traceback():
    with pytest.raises(Hung):
        in_fresh_process(FREES.replace("WHERE", "'in the traceback'"), timeout_s=20)


def test_the_code_is_held_for_longer():
    """What the library sees to, where it frees."""
    assert in_fresh_process(FREES.replace("WHERE", "'elsewhere'"), timeout_s=60).returncode == 0


@pytest.mark.parametrize("side", ["safe", "plain"])
@pytest.mark.parametrize("fails", [False, True])
def test_a_thread_keeps_the_tracebacks_of_its_compiles(side, fails):
    """Torch's does (2.8+), to its end; with the library it does not, also where a compile or a backward fails."""
    torch._dynamo.reset()
    if side == "safe":
        safecompile.install()

    def backend(graph, inputs):
        raise ValueError

    def compiles() -> int:
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) if fails else contextlib.nullcontext():
            compiled = torch.compile(lambda x: x.sin(), backend=backend if fails else "aot_eager")
            compiled(torch.ones(2, requires_grad=True)).sum().backward()
        return len(getattr(torch._dynamo.utils.get_metrics_context(), "_edits", []))

    found: list[int] = []
    run_threads([lambda: found.append(compiles())])
    safecompile.uninstall()
    assert (found[0] > 0) == (side == "plain" and hasattr(torch._dynamo.utils.get_metrics_context(), "_edits"))

"""What backward passes and their compiles had one of for the process: the metrics context, the context of settings."""

from __future__ import annotations

import inspect
import threading
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._functorch._aot_autograd.runtime_wrappers as runtime_wrappers
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd

from tests.helpers.threads import ParkedBackend, run_threads

STASHED = "context"  # torch's name for it


def test_a_compile_keeps_its_metrics_to_its_thread(side):
    """A thread that compiles nothing is in no metrics context, whatever another one compiles."""
    utils, backend = torch._dynamo.utils, ParkedBackend()
    of_the_process = hasattr(utils, "_METRICS_CONTEXT")  # up to torch 2.10
    compiled = torch.compile(lambda x: x + 1, backend=backend)

    def look() -> bool:
        backend.wait_parked()
        try:
            return utils.get_metrics_context().in_progress()
        finally:
            backend.release()

    _, seen = run_threads([lambda: compiled(torch.zeros(2)), look])
    assert seen is (side == "plain" and of_the_process)


def context_of_a_backward() -> Any:
    """Returns what a backward pass keeps for autograd's threads (torch 2.12+), else None."""
    found: list[Any] = []

    def look(_: torch.Tensor) -> None:
        if torch._C._is_key_in_tls(STASHED):
            found.append(torch._C._get_obj_in_tls(STASHED))

    x = torch.ones(2, requires_grad=True)
    x.register_hook(look)
    x.sum().backward()
    return found[0] if found else None


def enters_the_context_itself() -> bool:
    """Tells whether a compiled backward runs in the context itself (torch 2.12 and 2.13), and not in a copy."""
    return "(_cc.run, impl_fn)" in inspect.getsource(runtime_wrappers)


def test_two_of_autograds_threads_are_in_the_context_at_once(side):
    """Two parts of one backward pass run compiled code at the same moment (on two devices, each has its thread)."""
    context = context_of_a_backward()
    if context is None:
        pytest.skip("this torch hands autograd's threads no context")
    meeting, meets = threading.Barrier(2), []

    def backward_compiler(graph: Any, _: Any) -> Any:
        def compiled(*args: Any) -> Any:
            if meets:
                meeting.wait(30)
            return graph.forward(*args)

        return make_boxed_func(compiled)

    backend = aot_autograd(fw_compiler=lambda graph, _: make_boxed_func(graph.forward), bw_compiler=backward_compiler)
    compiled = torch.compile(lambda x: x.sin().sum(), backend=backend)
    compiled(torch.ones(2, requires_grad=True)).backward()
    outputs = [compiled(torch.ones(2, requires_grad=True)) for _ in range(2)]
    meets.append(True)

    def worker(output: torch.Tensor) -> str:
        """Does what a thread of autograd's does for its part of the pass."""
        torch._C._stash_obj_in_tls(STASHED, context)
        try:
            torch.autograd.Variable._execution_engine.run_backward(
                (output,), (torch.ones(()),), False, False, (), allow_unreachable=True, accumulate_grad=True
            )
        except Exception as error:
            meeting.abort()  # the other one waits for this
            return str(error)
        finally:
            torch._C._remove_obj_from_tls(STASHED)
        return ""

    errors = "".join(run_threads([lambda y=y: worker(y) for y in outputs]))
    if side == "plain" and enters_the_context_itself():
        assert "cannot enter context" in errors
    else:
        assert not errors

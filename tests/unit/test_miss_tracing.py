"""What runs inside a trace: autograd stays on its thread, and callbacks around a compile may compile themselves."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo
from torch.fx.experimental.proxy_tensor import make_fx

from safecompile._torch import dynamo
from tests.helpers.compiles import Counting, plain_torch
from tests.helpers.nursery import in_forked_process
from tests.helpers.threads import run_threads

pytestmark = pytest.mark.usefixtures("installed")


#: What Model has seen.
seen: list[bool] = []


class Model(torch.nn.Module):
    """Notes whether autograd may use its worker threads while the model is traced."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_dynamo_compiling():
            seen.append(dynamo.autograd_multithreading())
        return self.linear(x).sin()


def trace_by_compile(model: Model) -> None:
    def backend(graph: Any, inputs: Any) -> Any:
        seen.append(dynamo.autograd_multithreading())
        return graph.forward

    torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))


TRACES: dict[str, Callable[[Model], Any]] = {
    "symbolic_trace": torch.fx.symbolic_trace,
    "make_fx": lambda model: make_fx(model)(torch.ones(2)),
    "export": lambda model: torch.export.export(model, (torch.ones(2),), strict=False),
    "compile": trace_by_compile,
}


@pytest.mark.parametrize("trace", TRACES)
def test_a_trace_keeps_autograd_on_its_thread(trace: str) -> None:
    """While a thread traces, its autograd uses no worker threads, which may wait for it; afterwards it does again.

    On two devices of one process such a wait hangs plain torch (on CUDA, where autograd has a thread per device).
    """
    seen.clear()
    model = Model()
    TRACES[trace](model)
    assert seen
    assert not any(seen)
    assert dynamo.autograd_multithreading()
    with plain_torch():
        seen.clear()
        torch._dynamo.reset()
        TRACES[trace](model)
        assert any(seen), "plain torch does it by itself by now"


@pytest.mark.parametrize("inside", ["start", "end"])
def test_callbacks_around_a_compile_may_compile(inside: str) -> None:
    """A callback at the start or end of each compile calls compiled code, cold: nothing hangs, each compiles once."""
    backend = Counting()
    functions = [torch.compile(body, backend=backend, dynamic=False) for body in bodies(4)]
    own = torch.compile(lambda x: x * 3, backend=backend, dynamic=False)
    told: list[int] = []

    def callback(*_: Any) -> None:
        told.append(threading.get_ident())
        assert own(torch.ones(2)).tolist() == [3.0, 3.0]

    register, callbacks = getattr(torch._dynamo, f"on_compile_{inside}"), torch._dynamo.callback_handler
    register(callback)
    try:
        run_threads([lambda f=f: f(torch.ones(2)) for f in functions * 3], 20)
    finally:
        getattr(callbacks, f"remove_{inside}_callback")(callback)
    assert backend.forward == 5
    assert len(told) == 4, "one call for each compile of its own"


def test_plain_torch_hangs_in_such_a_callback() -> None:
    """Red twin: one thread is enough."""
    done = in_forked_process(
        """
        import os, threading, torch, torch._dynamo
        own = torch.compile(lambda x: x * 3, backend="eager")
        inside = threading.Event()
        torch._dynamo.on_compile_end(lambda *_: (inside.set(), own(torch.ones(2))))
        thread = threading.Thread(target=lambda: torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2)))
        thread.daemon = True
        thread.start()
        assert inside.wait(60)
        thread.join(8)
        print("hangs" if thread.is_alive() else "ends", flush=True)
        os._exit(0)
        """
    )
    assert done.stdout.strip() == "hangs", done.stdout + done.stderr


def bodies(count: int) -> list[Callable[[torch.Tensor], torch.Tensor]]:
    """Returns functions with a code object each."""
    space: dict[str, Any] = {}
    for index in range(count):
        exec(f"def f{index}(x):\n    return x + {index}", space)
    return [space[f"f{index}"] for index in range(count)]

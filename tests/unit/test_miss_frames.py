"""Every kind of frame that can miss: resumed, nested, of a module, in another mode. Side effects happen once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.helpers.compiles import Counting, alone, plain_torch, together
from tests.helpers.threads import run_threads

THREADS = 12


pytestmark = pytest.mark.usefixtures("installed")


class Counter:
    """Counts calls, in plain Python that Dynamo doesn't trace."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()

    @torch.compiler.disable
    def __call__(self, *_: Any) -> None:
        with self._lock:
            self.count += 1


def graph_breaks(backend: Counting) -> tuple[Any, Counter, Callable[[Any], Any]]:
    """A function with two graph breaks and a helper that is called between them."""
    counter = Counter()

    def helper(x: torch.Tensor) -> torch.Tensor:
        counter(x)
        return x * 2

    def body(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        counter(y)
        return helper(y) - 1

    return torch.compile(body, backend=backend, dynamic=False), counter, lambda x: (x + 1) * 2 - 1


def a_nested_compile(backend: Counting) -> tuple[Any, Counter, Callable[[Any], Any]]:
    """A compiled function that calls another, before and after a graph break."""
    counter = Counter()
    inner = torch.compile(lambda x: x * 3, backend=backend, dynamic=False)

    def body(x: torch.Tensor) -> torch.Tensor:
        y = inner(x)
        counter(y)
        return inner(y) + 1

    return torch.compile(body, backend=backend, dynamic=False), counter, lambda x: x * 9 + 1


def hooks(backend: Counting) -> tuple[Any, Counter, Callable[[Any], Any]]:
    """A compiled module with a hook on itself and one on its child."""
    counter = Counter()

    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.child = torch.nn.Hardtanh(-1, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.child(x) * 1

    module = Outer()
    module.register_forward_pre_hook(lambda *_: counter())
    module.child.register_forward_hook(lambda *_: counter())
    return torch.compile(module, backend=backend, dynamic=False), counter, lambda x: x.clamp(-1, 1)


def module_compile(backend: Counting) -> tuple[Any, Counter, Callable[[Any], Any]]:
    """A module compiled in place, with a hook that runs before the compiled part."""
    counter = Counter()
    module = torch.nn.Hardtanh(-1, 1)
    module.register_forward_hook(lambda *_: counter())
    module.register_forward_pre_hook(lambda *_: counter())
    module.compile(backend=backend, dynamic=False)
    return module, counter, lambda x: x.clamp(-1, 1)


def uncompiled_caller(backend: Counting) -> tuple[Any, Counter, Callable[[Any], Any]]:
    """A function that Dynamo meets below a part that it leaves alone."""
    counter = Counter()

    def below(x: torch.Tensor) -> torch.Tensor:
        return x - 4

    def body(x: torch.Tensor) -> torch.Tensor:
        counter(x)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
            y = below(x)
        counter(y)
        return below(y)

    return torch.compile(body, backend=backend, dynamic=False), counter, lambda x: x - 8


KINDS = [graph_breaks, a_nested_compile, hooks, module_compile, uncompiled_caller]


@pytest.mark.parametrize("make", KINDS)
def test_each_kind_of_frame_compiles_as_often_as_for_one_thread(make: Any) -> None:
    """Threads cause as many compiles as a lone one, get right results, and run side effects once for each call."""
    counters = []

    def jobs(backend: Counting) -> list[Callable[[], Any]]:
        compiled, counter, eager = make(backend)
        counters.append(counter)

        def job() -> None:
            for shape in (3, 4):
                x = torch.linspace(-2, 2, shape)
                torch.testing.assert_close(compiled(x), eager(x))

        return [job] * THREADS

    expected, _ = alone(jobs)
    counts, _ = together(jobs, before=lambda: time.sleep(0.01))
    assert counts == expected
    assert expected[0] >= 2 or make is module_compile  # torch 2.7 leaves the forwards of torch.nn itself alone
    assert counters[1].count == counters[0].count > 0


def test_each_grad_mode_is_a_specialisation() -> None:
    """Threads with grad, without and in inference mode cause as many compiles as one thread in all three."""

    def jobs(backend: Counting) -> list[Callable[[], Any]]:
        compiled = torch.compile(lambda x: x * 2, backend=backend)

        def job(mode: Any, grad: bool) -> None:
            x = torch.ones(3, requires_grad=True)
            with mode():
                assert compiled(x).requires_grad is grad

        modes = [(torch.enable_grad, True), (torch.no_grad, False), (torch.inference_mode, False)]
        return [lambda m=m, g=g: job(m, g) for m, g in modes * 4]

    expected, _ = alone(jobs)
    counts, _ = together(jobs, before=lambda: time.sleep(0.01))
    assert counts == expected


def test_plain_torch_compiles_frames_again() -> None:
    """Red twin: in plain torch, threads that wait for the lock compile each frame again."""

    def jobs(backend: Counting) -> list[Callable[[], Any]]:
        compiled, _, _ = graph_breaks(backend)
        return [lambda: compiled(torch.zeros(3))] * 4

    with plain_torch():
        expected, _ = alone(jobs)
        counts, _ = together(jobs, before=lambda: time.sleep(0.1))
        assert counts > expected


def test_a_backend_that_calls_compiled_code_compiles_it_once() -> None:
    """A function compiled inside another's compile is not compiled again by a thread that waits for the lock."""
    torch.compiler.reset()
    inner_backend, in_backend = Counting(), threading.Event()
    inner = torch.compile(lambda x: x + 2, backend=inner_backend)

    def backend(graph_module: Any, example_inputs: Any) -> Any:
        in_backend.set()
        time.sleep(0.3)
        inner(torch.zeros(2))
        return graph_module.forward

    outer = torch.compile(lambda x: x + 1, backend=backend)

    def other() -> None:
        assert in_backend.wait(30)
        assert inner(torch.zeros(2)).tolist() == [2.0, 2.0]

    run_threads([lambda: outer(torch.zeros(2)), other, other])
    assert inner_backend.forward == 1


def test_a_function_that_is_disabled_without_its_callees_runs_uncompiled() -> None:
    """disable(recursive=False) on a function in compiled code: it runs as it is, and what it calls is compiled."""
    compiled_in: dict[str, bool] = {}

    def callee(x: torch.Tensor) -> torch.Tensor:
        compiled_in["callee"] = torch.compiler.is_dynamo_compiling()
        return x + 1

    @torch._dynamo.disable(recursive=False)
    def shallow(x: torch.Tensor) -> torch.Tensor:
        compiled_in["shallow"] = torch.compiler.is_dynamo_compiling()
        return callee(x) * 2

    assert torch.compile(lambda x: shallow(x) + 1, backend="eager")(torch.ones(1)).tolist() == [5.0]
    assert compiled_in == {"callee": True, "shallow": False}

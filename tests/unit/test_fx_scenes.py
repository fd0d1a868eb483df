"""Scenes: one thread is in the middle of a trace, another does something meanwhile. test_fx_beside runs them."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from types import BuiltinFunctionType
from typing import Any

import torch
import torch._dynamo
import torch.fx
from torch._dynamo.testing import CompileCounter
from torch.fx.experimental.proxy_tensor import make_fx

from tests.helpers.threads import ParkedBackend

from .test_fx_make_fx import overlapping_make_fx

WAIT_S = 30.0


class Parked(torch.nn.Module):
    """Its trace stops in the middle of ``forward`` until it is let go on."""

    def __init__(self, layers: int = 1, error: bool = False) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(layers))
        self.inside, self.go, self.error = threading.Event(), threading.Event(), error

    def stop(self) -> None:
        self.inside.set()
        assert self.go.wait(WAIT_S)
        if self.error:
            raise KeyError("in the middle of a trace")

    def forward(self, x):
        self.stop()
        for layer in self.layers:
            x = layer(x)
        return x * math.sqrt(4.0) + math.floor(2.5)


class beside_a_trace:
    """A block that runs while another thread is in the middle of a symbolic trace; checks its graph at the end."""

    def __init__(self, layers: int = 1) -> None:
        self.module = Parked(layers)
        self.results: list[Any] = []
        self.thread = threading.Thread(target=self._trace, daemon=True)

    def _trace(self) -> None:
        try:
            self.results.append(torch.fx.symbolic_trace(self.module))
        except BaseException as error:
            self.results.append(error)

    def __enter__(self) -> Parked:
        self.thread.start()
        assert self.module.inside.wait(WAIT_S)
        return self.module

    def __exit__(self, *raised: object) -> None:
        self.module.go.set()
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive()
        if raised[0] is None:
            check_graph(self.results[0], len(self.module.layers))
            check_modules()


def check_graph(graph: Any, layers: int) -> None:
    """Raises unless this is the graph of a :class:`Parked` traced by itself."""
    if isinstance(graph, BaseException):
        raise graph
    calls = [node.target for node in graph.graph.nodes if node.op == "call_module"]
    assert calls == [f"layers.{index}" for index in range(layers)], f"the graph is {graph.graph}"
    assert [n.op for n in graph.graph.nodes if n.op == "placeholder"] == ["placeholder"], f"the graph is {graph.graph}"


def check_modules() -> None:
    """Raises unless nn.Module and ``math`` are as they were."""
    assert torch.nn.Module.__call__ is torch.nn.Module._wrapped_call_impl, "nn.Module.__call__ is left patched"
    assert torch.nn.Module.__getattr__.__module__ == "torch.nn.modules.module", "nn.Module.__getattr__ is left patched"
    assert isinstance(math.sqrt, BuiltinFunctionType), "a wrapped function is left in its module"


class Model(torch.nn.Module):
    """Nested, and it uses what FX patches: submodules, and a function of ``math``."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        self.scale = 4.0

    def forward(self, x):
        return self.inner(x) * math.sqrt(self.scale)


def flag_of_another_thread():
    """The tracing flag of one thread is not seen by another, and is on where it traces."""
    with beside_a_trace():
        assert not torch.fx._symbolic_trace.is_fx_tracing()
        seen = []
        torch.fx.symbolic_trace(lambda x: seen.append(torch.fx._symbolic_trace.is_fx_tracing()) or x)
        assert seen == [True]
        assert not torch.fx._symbolic_trace.is_fx_tracing()


def eager_call():
    """An eager module of another thread computes tensors."""
    model, x = Model(), torch.randn(3, 2)
    want = model(x)
    with beside_a_trace():
        assert torch.equal(model(x), want)


def warm_call():
    """A warm compiled module of another thread neither raises nor compiles."""
    model, x, counter = Model(), torch.randn(3, 2), CompileCounter()
    compiled, want = torch.compile(model, backend=counter, fullgraph=True), model(x)
    compiled(x)
    with beside_a_trace():
        assert torch.equal(compiled(x), want)
    assert torch.equal(compiled(x), want)
    assert counter.frame_count == 1, f"{counter.frame_count} compiles"


def cold_call():
    """What is compiled meanwhile is right, needs no graph break, and is not compiled again after the trace."""
    model, x, counter = Model(), torch.randn(3, 2), CompileCounter()
    compiled, want = torch.compile(model, backend=counter, fullgraph=True), model(x)
    with beside_a_trace():
        assert torch.equal(compiled(x), want)
        assert torch.equal(compiled(x), want)
    assert torch.equal(compiled(x), want)
    assert counter.frame_count == 1, f"{counter.frame_count} compiles"


def cold_function():
    """The same for a function without modules."""
    counter, x = CompileCounter(), torch.randn(3)
    compiled = torch.compile(lambda y: y.sin() * math.sqrt(y.shape[0]), backend=counter, fullgraph=True)
    with beside_a_trace():
        assert torch.equal(compiled(x), x.sin() * math.sqrt(3))
    assert torch.equal(compiled(x), x.sin() * math.sqrt(3))
    assert counter.frame_count == 1, f"{counter.frame_count} compiles"


def cold_import():
    """A function that is compiled meanwhile may import the module itself, or see it without a name."""
    counter, x = CompileCounter(), torch.randn(3)

    def body(y, module):
        import math as imported

        return y.sin() * imported.sqrt(y.shape[0]) * module[0].sqrt(4.0)

    compiled = torch.compile(body, backend=counter, fullgraph=True)
    with beside_a_trace():
        assert torch.equal(compiled(x, (math,)), x.sin() * math.sqrt(3) * 2)
    assert torch.equal(compiled(x, (math,)), x.sin() * math.sqrt(3) * 2)
    assert counter.frame_count == 1, f"{counter.frame_count} compiles"


def wrapped_by_the_trace():
    """The trace itself has ``math``'s functions wrapped: a call with a proxy becomes a node, also by a late look-up."""
    with beside_a_trace():
        graph = torch.fx.symbolic_trace(lambda x: getattr(math, "sqrt")(x)).graph  # noqa: B009
        assert [node.target for node in graph.nodes if node.op == "call_function"] == [math.sqrt]
        assert isinstance(math.sqrt, BuiltinFunctionType)


def make_fx_beside():
    """make_fx of another thread gives the graph that it gives alone, also of modules."""
    model = Model()
    alone = make_fx(model)(torch.ones(1, 2)).code
    with beside_a_trace():
        assert make_fx(model)(torch.ones(1, 2)).code == alone


def two_traces_first_ends_first():
    """A trace that began inside another's time and ends after it is right, and so is nn.Module afterwards."""
    outer = Parked(2)
    results = []
    thread = threading.Thread(target=lambda: results.append(torch.fx.symbolic_trace(outer)), daemon=True)
    with beside_a_trace(3):
        thread.start()
        assert outer.inside.wait(WAIT_S)
    # The first is over, the second goes on.
    assert torch.is_tensor(torch.nn.Linear(2, 2)(torch.ones(1, 2)))
    outer.go.set()
    thread.join(WAIT_S)
    check_graph(results[0], 2)
    check_modules()


def graph_module_beside_a_compile():
    """A GraphModule that is built while another thread compiles can be compiled."""
    backend, counter = ParkedBackend(), CompileCounter()
    compiled = torch.compile(lambda x: x.sin(), backend=backend)
    thread = threading.Thread(target=compiled, args=(torch.ones(2),), daemon=True)
    thread.start()
    backend.wait_parked()
    model = Model()
    built = torch.fx.GraphModule(model, torch.fx.symbolic_trace(model).graph)
    assert callable(built.forward)  # its code is made here at the latest
    backend.release()
    thread.join(WAIT_S)
    assert torch.is_tensor(torch.compile(built, backend=counter)(torch.ones(1, 2)))
    assert counter.frame_count == 1, "the GraphModule runs eagerly"


def flag_after_a_higher_order_op():
    """An eager cond that begins inside a trace of another thread, and ends after it, leaves no flag on."""
    backend = ParkedBackend()
    compiled = torch.compile(lambda x: x.exp(), backend=backend)
    compiling = threading.Thread(target=compiled, args=(torch.ones(2),), daemon=True)
    compiling.start()
    backend.wait_parked()
    conditional = threading.Thread(
        target=lambda: torch.cond(torch.tensor(True), torch.sin, torch.cos, (torch.ones(1),)), daemon=True
    )
    with beside_a_trace():
        conditional.start()
        conditional.join(1.0)  # it compiles its branches, so it waits for the other compile
    backend.release()
    compiling.join(WAIT_S)
    conditional.join(WAIT_S)
    assert not torch.fx._symbolic_trace.is_fx_tracing(), "the flag is left on for good"
    assert torch.is_tensor(torch.compile(lambda x: x.sin(), backend="eager")(torch.ones(1)))


def _flag_is_per_thread() -> bool:
    return not hasattr(torch.fx._symbolic_trace, "_is_fx_tracing_flag")


def _never() -> bool:
    return False


def _right_in_every_release() -> bool:
    return True


#: Each scene, and the probe that tells whether torch itself does it right.
SCENES: dict[str, tuple[Callable[[], None], Callable[[], bool]]] = {
    scene.__name__: (scene, fixed)
    for scene, fixed in [
        (flag_of_another_thread, _flag_is_per_thread),
        (eager_call, _never),
        (warm_call, _never),
        (cold_call, _never),
        (cold_function, _never),
        (cold_import, _never),
        (wrapped_by_the_trace, _never),
        (make_fx_beside, _right_in_every_release),
        (two_traces_first_ends_first, _never),
        (graph_module_beside_a_compile, _never),
        (flag_after_a_higher_order_op, _flag_is_per_thread),
        (overlapping_make_fx, _never),
    ]
}

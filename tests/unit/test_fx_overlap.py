"""Symbolic traces that overlap each other and a compile, in every order of their beginnings and ends."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from math import ceil, sqrt
from typing import Any

import pytest
import torch
import torch.fx

from tests.helpers.nursery import in_forked_process
from tests.helpers.threads import ParkedBackend, in_fresh_process

WAIT_S = 30.0


@torch.fx.wrap
def opaque(x, factor):
    """Stands in graphs as a call, wherever it is called while its thread traces."""
    return x * factor if isinstance(x, torch.Tensor) else pytest.fail(f"{type(x)} outside a trace")


class Net(torch.nn.Module):
    """A module whose trace stops in its middle; each has its own number of layers, so graphs can't be mistaken."""

    def __init__(self, layers: int, error: bool = False) -> None:
        super().__init__()
        self.first = torch.nn.Linear(2, 2)
        self.rest = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(layers))
        self.inside, self.go, self.error = threading.Event(), threading.Event(), error

    def forward(self, x):
        x = opaque(self.first(x), sqrt(4.0))
        self.inside.set()
        assert self.go.wait(WAIT_S)
        if self.error:
            raise KeyError("in the middle of a trace")
        for layer in self.rest:
            x = layer(x)
        return opaque(x, ceil(1.5)) * math.sqrt(4.0)


def expected(layers: int) -> list[str]:
    return ["x", "first", "opaque", *(f"rest.{i}" for i in range(layers)), "opaque", "mul", "output"]


def targets(graph: Any) -> list[str]:
    return [getattr(node.target, "__name__", str(node.target)) for node in graph.graph.nodes]


class Trace:
    """One symbolic trace that begins and ends when it is told to."""

    def __init__(self, layers: int, *, error: bool = False) -> None:
        self.net, self.layers, self.error = Net(layers, error), layers, error
        self.result: Any = None
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self.result = torch.fx.symbolic_trace(self.net)
        except BaseException as error:
            self.result = error

    def begin(self) -> None:
        self.thread.start()
        assert self.net.inside.wait(WAIT_S), "it has not begun"

    def end(self) -> None:
        self.net.go.set()
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive(), "it does not end"
        if self.error:
            assert isinstance(self.result, KeyError), repr(self.result)
        elif isinstance(self.result, BaseException):
            raise self.result
        else:
            assert targets(self.result) == expected(self.layers), str(self.result.graph)


class Compile:
    """One compile of a function that uses a module, with a backend that ends when it is told to."""

    def __init__(self) -> None:
        self.backend, self.model, self.x = ParkedBackend(), torch.nn.Linear(2, 2), torch.randn(1, 2)
        # Each has its own code object: the flights and limits of one must not be another's.
        model, space = self.model, {}
        exec("def call(x):\n    return model(x).sin()", {"model": model}, space)
        self.compiled = torch.compile(space["call"], backend=self.backend, fullgraph=True)
        self.result: Any = None
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self.result = self.compiled(self.x)
        except BaseException as error:
            self.result = error

    def begin(self) -> None:
        self.thread.start()
        self.backend.wait_parked()

    def end(self) -> None:
        self.backend.release()
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive(), "it does not end"
        if isinstance(self.result, BaseException):
            raise self.result
        assert torch.equal(self.result, self.model(self.x).sin())
        assert torch.equal(self.compiled(self.x), self.result)
        assert self.backend.compiles == 1, f"{self.backend.compiles} compiles"


def orders(count: int, begun: int = 0, ended: tuple[int, ...] = ()) -> Iterator[list[tuple[str, int]]]:
    """Yields every order in which ``count`` equal things begin and end; they begin by their numbers."""
    if len(ended) == count:
        yield []
        return
    if begun < count:
        yield from ([("begin", begun), *rest] for rest in orders(count, begun + 1, ended))
    for one in range(begun):
        if one not in ended:
            yield from ([("end", one), *rest] for rest in orders(count, begun, (*ended, one)))


def run(order: list[tuple[str, int]], things: list[Any]) -> None:
    """Begins and ends ``things`` in this order; eager modules work at every moment, and nothing is left behind."""
    bystander, x = torch.nn.Linear(2, 2), torch.randn(1, 2)
    want = bystander(x)
    for what, index in order:
        getattr(things[index], what)()
        got = bystander(x)
        assert isinstance(got, torch.Tensor), f"a bystander after {what} {index}"
        assert torch.equal(got, want)
        assert isinstance(opaque(x, sqrt(4.0)), torch.Tensor)
    assert torch.nn.Module.__call__ is torch.nn.Module._wrapped_call_impl, "nn.Module.__call__ is left patched"
    assert torch.nn.Module.__getattr__.__module__ == "torch.nn.modules.module", "nn.Module.__getattr__ is left patched"
    assert opaque.__code__.co_filename == __file__, "a wrapped function is left"
    assert sqrt is math.sqrt, "a function of math is left wrapped"


def three_traces() -> None:
    for order in orders(3):
        run(order, [Trace(1), Trace(2), Trace(3)])


def three_traces_and_a_compile() -> None:
    for order in orders(3):
        for begin, end in ((0, 7), (1, 4), (3, 6)):
            inserted = list(order)
            inserted.insert(begin, ("begin", 3))
            inserted.insert(end, ("end", 3))
            # torch 2.7 compiles a module through one function of its own, whose limit of eight counts for all modules.
            torch._dynamo.reset()
            run(inserted, [Trace(1), Trace(2), Trace(3), Compile()])


def traces_that_fail() -> None:
    for order in orders(3):
        for failing in range(3):
            run(order, [Trace(i + 1, error=i == failing) for i in range(3)])


pytestmark = pytest.mark.usefixtures("installed")


def test_every_order_of_three_traces():
    """Three traces begin and end in each of the 15 orders; each graph is its own; nn.Module is as it was."""
    assert len(list(orders(3))) == 15
    three_traces()


def test_every_order_with_exceptions():
    """The same while one of the three raises in its middle."""
    traces_that_fail()


def test_every_order_of_three_traces_and_a_compile():
    """The same with a compile over all of them, over their first half or over their second; it happens once."""
    three_traces_and_a_compile()


def test_nested_traces_beside_another():
    """A trace inside a trace of the same thread gives the graphs that it gives alone."""

    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.graph = torch.nn.Linear(2, 2), None

        def forward(self, x):
            self.graph = torch.fx.Tracer().trace(torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(2, 2)))
            return self.inner(x) * sqrt(4.0)

    def traced() -> tuple[str, str]:
        outer = Outer()
        return str(torch.fx.symbolic_trace(outer).graph), str(outer.graph)

    alone = traced()
    other = Trace(2)
    other.begin()
    assert traced() == alone
    other.end()
    assert traced() == alone


def test_a_wrapped_builtin():
    """A builtin that is wrapped by name, and stands in no module, is put into it and taken out again."""
    space: dict[str, Any] = {"torch": torch, "__name__": "wrapped_builtin"}
    exec("torch.fx.wrap('len')\ndef f(x):\n    return len(x) + 1", space)
    other = Trace(1)
    other.begin()
    assert "call_function" in [node.op for node in torch.fx.symbolic_trace(space["f"]).graph.nodes]
    assert space["f"]([1, 2]) == 3
    other.end()
    assert "len" not in space
    assert space["f"]([1, 2]) == 3


@pytest.mark.parametrize("scene", ["three_traces", "three_traces_and_a_compile"])
def test_red_twin(scene):
    """Plain torch mixes the graphs up, or leaves nn.Module patched."""
    done = in_forked_process(
        f"""
        from tests.unit import test_fx_overlap
        try:
            test_fx_overlap.{scene}()
        except BaseException as error:
            print("fails", type(error).__name__, str(error)[:200])
        """
    )
    assert done.stdout.startswith("fails"), done.stdout + done.stderr


def test_the_orders_are_all_there():
    """Every order is there once, and in each of them what ends has begun."""
    for count, number in ((1, 1), (2, 3), (3, 15), (4, 105)):
        found = [tuple(order) for order in orders(count)]
        assert len(set(found)) == len(found) == number


GROWING = """
    import gc
    import torch
    import safecompile.patch_all

    class Garbage:
        def __init__(self):
            self.me = self

        def __del__(self):
            globals()[f"late_{len(globals())}"] = 1

    def function(x):
        return x + 1

    torch.fx.symbolic_trace(function)
    globals().update({f"name_{number}": number for number in range(3000)})
    for number in range(60):
        gc.collect()
        for _ in range(3):
            Garbage()
        gc.set_threshold(400 + 40 * number, 1, 1)
        torch.fx.symbolic_trace(function)
        gc.set_threshold(100000)
    print("right")
"""


def test_a_file_whose_variables_grow_while_a_trace_goes_through_them():
    """As where another thread's compile puts its code there, while a collection of garbage has lost the GIL."""
    done = in_fresh_process(GROWING)
    assert done.stdout == "right\n", done.stderr

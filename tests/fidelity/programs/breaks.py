"""Graph breaks: side effects once, and in order."""

from __future__ import annotations

import contextlib

import torch

from tests.fidelity.table import program

from ._common import Counting, attempt, named, ones, told

said: list[str] = []
COUNT = 0


@contextlib.contextmanager
def _saying(name):
    said.append(f"into {name}")
    try:
        yield
    finally:
        said.append(f"out of {name}")


def _print(x):
    print("in the middle")
    return x + 1


def _in_a_loop(x):
    for i in range(3):
        x = x + i
        torch._dynamo.graph_break()
    return x


def _in_with(x):
    with torch.no_grad():
        y = x + 1
        torch._dynamo.graph_break()
        return y + torch.is_grad_enabled()


def _in_own_with(x):
    with _saying("a"):
        y = x + 1
        said.append("in a")
        torch._dynamo.graph_break()
    return y


def _in_try(x):
    try:
        y = x + 1
        torch._dynamo.graph_break()
        raise KeyError
    except KeyError:
        said.append("caught")
        return y * 2
    finally:
        said.append("finally")


def _in_a_callee(x):
    return _print(x * 2) + _print(x)


def _on_data(x):
    if x.sum() > 0:
        return x + 1
    return x - 1


def _item(x):
    return x * x.sum().item()


def _in_a_comprehension(x):
    return sum([_print(x + i) for i in range(2)])


def _recursive(x, n=3):
    torch._dynamo.graph_break()
    return x if n == 0 else _recursive(x + 1, n - 1)


def _global_effect(x):
    global COUNT
    COUNT += 1
    torch._dynamo.graph_break()
    COUNT += 1
    return x + COUNT


def _list_effect(x):
    kept = []
    kept.append(x)
    torch._dynamo.graph_break()
    kept.append(x + 1)
    return kept


def _closure_effect(x):
    n = 0

    def more():
        nonlocal n
        n += 1
        torch._dynamo.graph_break()

    more()
    more()
    return x + n


def _generator(x):
    def numbers():
        for i in range(3):
            torch._dynamo.graph_break()
            yield x + i

    return list(numbers())


@torch.compiler.disable
def _disabled(y):
    said.append("callee")
    return y + 1


def _disabled_callee(x):
    return _disabled(x + 1) + _disabled(x)


def _unsupported(x):
    return x + len(str(id)) * 0 + eval("2")


def _nonzero(x):
    return x[x > 0]


BREAKS = named(
    _print,
    _in_a_loop,
    _in_with,
    _in_own_with,
    _in_try,
    _in_a_callee,
    _on_data,
    _item,
    _in_a_comprehension,
    _recursive,
    _global_effect,
    _list_effect,
    _closure_effect,
    _generator,
    _disabled_callee,
    _unsupported,
    _nonzero,
)


@program(BREAKS, quick=("in_own_with",))
def once(function):
    """Two calls of one shape and one of another."""
    backend = Counting()
    compiled = torch.compile(function, backend=backend)
    return [attempt(compiled, ones(*shape)) for shape in ((2,), (2,), (3,))], backend.calls, said, COUNT


@program({name: f for name, f in BREAKS.items() if name in ("print", "on_data", "item", "generator")})
def refused(function):
    """With fullgraph=True the error is torch's own."""
    raised = attempt(torch.compile(function, backend="eager", fullgraph=True), ones())
    return raised if not isinstance(raised, dict) else {**raised, "text": raised["text"][:300]}


@program()
def explained():
    """torch._dynamo.explain counts graphs and breaks."""
    found = torch._dynamo.explain(_in_a_loop)(ones())
    return found.graph_count, found.graph_break_count, found.op_count


@program()
def capturing_scalars():
    """With capture_scalar_outputs there is no break."""
    backend = Counting()
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        return told(torch.compile(_item, backend=backend, fullgraph=True)(ones())), backend.calls


@program()
def nested_breaks_in_modules():
    """Breaks in modules within modules."""

    class Inner(torch.nn.Module):
        def forward(self, x):
            print("inner")
            return x + 1

    class Outer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.ModuleList(Inner() for _ in range(2))

        def forward(self, x):
            for inner in self.inner:
                x = inner(x)
            return x

    backend = Counting()
    compiled = torch.compile(Outer(), backend=backend)
    return [told(compiled(ones())) for _ in range(2)], backend.calls

"""What a reset or a dead guard frees is freed, within a second."""

from __future__ import annotations

import gc
import time
import weakref

import torch

from tests.fidelity.table import program

from ._common import Counting, ones, plus, told


class Big:
    """Stands for what a compiled graph keeps."""


def _gone(reference):
    """Whether it is freed, within a second."""
    for _ in range(20):
        gc.collect()
        if reference() is None:
            return True
        time.sleep(0.05)
    return False


def _holding():
    references = []

    def backend(gm, inputs):
        big = Big()
        references.append(weakref.ref(big))
        return lambda *args: gm.forward(*args) if big else None

    return backend, references


@program({"dynamo": 0, "compiler": 1, "code": 2}, quick=("dynamo",))
def freed_by_a_reset(kind):
    """reset() frees what the graphs keep."""
    backend, references = _holding()
    compiled = torch.compile(plus, backend=backend)
    compiled(ones())
    del backend
    if kind == 0:
        torch._dynamo.reset()
    elif kind == 1:
        torch.compiler.reset()
    else:
        torch._dynamo.eval_frame.reset_code(plus.__code__)
    return [_gone(r) for r in references], told(compiled(ones())), len(references)


@program(quick=True)
def a_model_that_is_dropped():
    """A compiled module and its weights go with the last reference."""
    module = torch.nn.Linear(2, 2)
    compiled = torch.compile(module, backend="eager")
    compiled(ones(2, 2))
    references = weakref.ref(module), weakref.ref(module.weight)
    del module, compiled
    return [_gone(r) for r in references]


@program()
def entries_of_dropped_models():
    """Each dropped model gives its entry back: forty of them fill no limit."""
    backend = Counting()
    for _ in range(20):
        torch.compile(torch.nn.Linear(2, 2), backend=backend)(ones(2, 2))
        gc.collect()
    return backend.calls


@program()
def a_closure_that_is_dropped():
    """A compiled closure over a large object."""
    big = Big()
    reference = weakref.ref(big)

    def make(big):
        return torch.compile(lambda x: x + (1 if big else 0), backend="eager")

    compiled = make(big)
    compiled(ones())
    del big, compiled
    return _gone(reference)


@program()
def arguments_of_a_call():
    """Nothing keeps the arguments, nor the result."""
    compiled = torch.compile(plus, backend="eager")
    x = ones()
    y = compiled(x)
    references = weakref.ref(x), weakref.ref(y)
    del x, y
    return [_gone(r) for r in references]


@program()
def arguments_of_a_call_that_raises():
    """Once the error is gone, nothing keeps the locals of its frames."""

    def fails(gm, inputs):
        raise ValueError

    def call():
        big = Big()
        try:
            torch.compile(lambda x: x + 1, backend=fails)(ones())
        except Exception:
            return weakref.ref(big)

    return _gone(call())


@program({"entries": 0, "twice": 1, "shapes": 2})
def entries(kind):
    """The entries that torch's own list shows."""
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list

    def f(x):
        return x + 1

    compiled = torch.compile(f, backend="eager", dynamic=False)
    for i in range(1 if kind < 2 else 4):
        compiled(ones(i + 1))
    if kind == 1:
        torch._dynamo.reset()
        compiled(ones(1))
    return len(_debug_get_cache_entry_list(f.__code__))


@program()
def resets_between_calls():
    """Calls between resets compile once each, and count once."""
    backend = Counting()
    compiled = torch.compile(plus, backend=backend)
    for _ in range(5):
        compiled(ones())
        compiled(ones())
        torch._dynamo.reset()
    compiled(ones())
    return backend.calls


@program()
def a_guarded_global_that_dies():
    """An entry that guards on an object goes with it, and the next compiles again."""
    backend = Counting()
    module = [torch.nn.Linear(2, 2)]

    @torch.compile(backend=backend)
    def f(x):
        return module[0](x).shape[0]

    seen = []
    for _ in range(3):
        seen.append(f(ones(2, 2)))
        module[0] = torch.nn.Linear(2, 2)
        gc.collect()
    return seen, backend.calls


@program()
def a_backend_that_is_dropped():
    """After a reset nothing keeps the backend."""
    backend = Counting()
    reference = weakref.ref(backend)
    torch.compile(plus, backend=backend)(ones())
    torch._dynamo.reset()
    del backend
    return _gone(reference)


@program(fresh=True)  # in a fork of a process that has called gc.freeze() one stays, with the library
def graph_modules_alive():
    """As many GraphModules are alive after five compiles and a reset as in plain torch."""

    def alive():
        gc.collect()
        return sum(isinstance(o, torch.fx.GraphModule) for o in gc.get_objects())

    before = alive()
    for _ in range(5):
        torch.compile(lambda x: x + 1, backend="eager")(ones())
    during = alive() - before
    torch._dynamo.reset()
    for _ in range(20):
        if alive() == before:
            break
        time.sleep(0.05)
    return during, alive() - before

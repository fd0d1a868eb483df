"""How a compiled function is made and called."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect

import torch

from tests.fidelity.table import program

from ._common import Counting, attempt, ones, plus, told


class Adder(torch.nn.Module):
    """A small module."""

    def __init__(self, by=1):
        super().__init__()
        self.by = by
        self.layer = torch.nn.Linear(2, 2)

    def forward(self, x, *, scale=1):
        return (x + self.by) * scale

    def other(self, x):
        return x - self.by

    @classmethod
    def of_class(cls, x):
        return x * 2

    @staticmethod
    def of_nothing(x):
        return x * 3


def _decorated(backend):
    @torch.compile(backend=backend)
    def f(x, y=2, *rest, k=3, **more):
        """The text of f."""
        return x + y + sum(rest) + k + sum(more.values())

    return f


FORMS = {
    "lambda": lambda b: torch.compile(lambda x: x + 1, backend=b),
    "function": lambda b: torch.compile(plus, backend=b),
    "decorator": lambda b: torch.compile(backend=b)(plus),
    "arguments": lambda b: _decorated(b),
    "method": lambda b: torch.compile(Adder().other, backend=b),
    "classmethod": lambda b: torch.compile(Adder.of_class, backend=b),
    "staticmethod": lambda b: torch.compile(Adder.of_nothing, backend=b),
    "module": lambda b: torch.compile(Adder(), backend=b),
    "sequential": lambda b: torch.compile(torch.nn.Sequential(Adder(), torch.nn.ReLU()), backend=b),
    "forward": lambda b: torch.compile(Adder().forward, backend=b),
    "partial": lambda b: torch.compile(functools.partial(torch.add, other=2), backend=b),
    "wrapped": lambda b: torch.compile(functools.wraps(plus)(lambda x: plus(x)), backend=b),
    "twice": lambda b: torch.compile(torch.compile(plus, backend=b), backend=b),
    "builtin": lambda b: torch.compile(torch.sin, backend=b),
    "of torch": lambda b: torch.compile(torch.nn.functional.relu, backend=b),
    "callable object": lambda b: torch.compile(type("Call", (), {"__call__": lambda self, x: x + 5})(), backend=b),
    "fullgraph": lambda b: torch.compile(plus, backend=b, fullgraph=True),
    "dynamic": lambda b: torch.compile(plus, backend=b, dynamic=True),
    "not dynamic": lambda b: torch.compile(plus, backend=b, dynamic=False),
    "disabled": lambda b: torch.compile(plus, backend=b, disable=True),
    "compiler.disable": lambda b: torch.compile(torch.compiler.disable(plus), backend=b),
    "optimize": lambda b: torch._dynamo.optimize(b)(plus),
    "optimize_assert": lambda b: torch._dynamo.optimize_assert(b)(plus),
    "run": lambda b: torch._dynamo.run(torch.compile(plus, backend=b)),
}


@program(FORMS, quick=("function", "module"))
def called(make):
    """Three shapes, two of them twice."""
    backend = Counting()
    compiled = make(backend)
    return [attempt(compiled, ones(*shape)) for shape in ((2,), (3,), (2,), (2, 2), (2, 2))], backend.calls


@program()
def looked_at():
    """What introspection says of each form."""
    return {name: _looks(make("eager")) for name, make in FORMS.items()}


def _looks(compiled):
    names = ("__name__", "__qualname__", "__module__", "__doc__", "__wrapped__", "__self__", "__defaults__")
    found = {name: repr(getattr(compiled, name, "none")) for name in names}
    found["type"] = f"{type(compiled).__module__}.{type(compiled).__qualname__}"
    found["bases"] = [base.__qualname__ for base in type(compiled).__mro__]
    found["signature"] = attempt(lambda: str(inspect.signature(compiled)))
    found["attributes"] = sorted(vars(compiled)) if hasattr(compiled, "__dict__") else []
    found["dir"] = [name for name in dir(compiled) if not name.startswith("__")]
    found["repr"] = repr(compiled)
    return found


WRONG = {
    "no function": lambda: torch.compile(None)(3),
    "unknown backend": lambda: torch.compile(plus, backend="there is none")(ones()),
    "unknown mode": lambda: torch.compile(plus, mode="there is none")(ones()),
    "mode and options": lambda: torch.compile(plus, mode="default", options={"max_autotune": True}),
    "unknown option": lambda: torch.compile(plus, options={"there is none": 1})(ones()),
    "class": lambda: torch.compile(Adder, backend="eager")(),
    "too few": lambda: torch.compile(plus, backend="eager")(),
    "too many": lambda: torch.compile(plus, backend="eager")(1, 2),
    "unknown keyword": lambda: torch.compile(plus, backend="eager")(ones(), y=3),
    "no tensor": lambda: torch.compile(plus, backend="eager")(3),
    "text": lambda: torch.compile(plus, backend="eager")("x"),
}


@program()
def called_wrongly():
    """The error is torch's own."""
    return {name: attempt(call) for name, call in WRONG.items()}


@program(quick=True)
def compiled_module_as_a_module():
    """An OptimizedModule hands everything on."""
    module = torch.compile(Adder(), backend="eager")
    module.eval()
    module.extra = 3
    module.by = 4
    del module.extra
    return {
        "keys": sorted(module.state_dict()),
        "named": [name for name, _ in module.named_modules()],
        "training": module._orig_mod.training,
        "by": module._orig_mod.by,
        "called": told(module(ones(2), scale=2)),
        "other": told(module.other(ones(2))),
        "parameters": len(list(module.parameters())),
        "is": isinstance(module, torch.nn.Module),
        "moved": told(module.double().layer.weight.dtype),
        "extra": hasattr(module, "extra"),
    }


@program()
def module_compile():
    """Module.compile() keeps the module as it is."""
    backend, module = Counting(), Adder()
    module.compile(backend=backend)
    copied = copy.deepcopy(module)
    return [told(m(ones(2))) for m in (module, copied, module)], backend.calls, sorted(vars(module))


@program({"copy": copy.copy, "deepcopy": copy.deepcopy})
def copied(how):
    """A copy of a compiled module compiles and runs by itself."""
    backend = Counting()
    module = torch.compile(Adder(), backend=backend)
    first = told(module(ones(2)))
    other = how(module)
    other.by = 7
    return first, told(other(ones(2))), told(module(ones(2))), backend.calls, type(other).__name__


@program()
def a_coroutine():
    """A compiled async function is awaited."""

    @torch.compile(backend="eager")
    async def f(x):
        await asyncio.sleep(0)
        return x + 1

    return attempt(lambda: asyncio.run(f(ones())))


@program()
def a_generator():
    """A compiled generator function gives what the plain one does."""

    @torch.compile(backend="eager")
    def f(x):
        for i in range(3):
            yield x + i

    return attempt(lambda: list(f(ones())))


@program()
def compiled_many_times():
    """Each torch.compile of one function gives an object of its own, and they share what is compiled."""
    backend = Counting()
    made = [torch.compile(plus, backend=backend) for _ in range(4)]
    results = [told(f(ones())) for f in made]
    return results, backend.calls, len({id(f) for f in made})


@program({"static": 0, "more": 1})
def shapes_become_dynamic(extra):
    """Automatic dynamic shapes and the recompile limit are reached as in plain torch."""
    backend = Counting()

    @torch.compile(backend=backend)
    def f(x, n):
        return x * n

    return [told(f(ones(2 + i), i * extra)) for i in range(4)], backend.calls


@program()
def recompile_limit():
    """After eight versions a function runs uncompiled, with one warning."""
    backend = Counting()

    @torch.compile(backend=backend, dynamic=False)
    def f(x):
        return x + 1

    return [told(f(ones(1 + i)))[1] for i in range(11)], backend.calls


@program()
def method_decorated_in_a_class():
    """A method that is decorated in its class is bound as usual, for each instance and a subclass."""
    backend = Counting()

    class Scaled:
        def __init__(self, by):
            self.by = by

        @torch.compile(backend=backend)
        def call(self, x):
            return x * self.by

        @property
        @torch.compile(backend=backend)
        def value(self):
            return ones() * self.by

    class Sub(Scaled):
        def call(self, x):
            return super().call(x) + 1

    made = Scaled(2), Scaled(2), Scaled(3), Sub(2)
    return [told(s.call(ones())) for s in made], [told(s.value) for s in made], backend.calls

"""Modules and arguments of the user's own making: a miss calls nothing of theirs that plain torch does not call."""

from __future__ import annotations

import torch
from torch import nn

from tests.fidelity.table import program

from ._common import Counting, attempt, ones

said: list[str] = []


def _say(name):
    def method(self, *args, **kwargs):
        said.append(name)
        raise RuntimeError(f"{name}() was called")

    return method


class Plain(nn.Module):
    """Adds one."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        return x + 1


#: Methods that a miss must not call.
NAMES = ("parameters", "named_parameters", "buffers", "__eq__", "__hash__", "__repr__", "__len__", "__bool__")


def _module_with(name):
    return type("Own", (Plain,), {name: _say(name)})


@program({name: name for name in NAMES})
def a_module_with_its_own(name):
    """The module itself is compiled, and one after a graph break; its method is not called, or as in plain torch."""
    backend = Counting()
    module = _module_with(name)()
    seen = [attempt(torch.compile(module, backend=backend), ones(*s)) for s in ((2,), (2,), (2, 2))]

    def f(x, m):
        torch._dynamo.graph_break()
        return m(x)

    seen.append(attempt(torch.compile(f, backend=backend), ones(), module))
    return seen, backend.calls, said


@program({name: name for name in NAMES}, quick=("parameters",))
def an_argument_with_its_own(name):
    """An object of a class of the user's is an argument, and a module is."""
    backend = Counting()
    thing = type("Thing", (), {name: _say(name), "n": 2})()
    by_attribute = torch.compile(lambda x, t: x + t.n, backend=backend)
    seen = [attempt(by_attribute, ones(*s), thing) for s in ((2,), (3,), (2, 2))]
    module = _module_with(name)()
    by_mode = torch.compile(lambda m: m.training, backend=backend)
    return seen, [attempt(by_mode, module) for _ in range(2)], attempt(by_mode, thing), backend.calls, said


class _Early(nn.Module):
    """Sets an attribute before nn.Module is initialised."""

    def __init__(self, k):
        self.hidden = k
        super().__init__()
        self.layer = nn.Linear(k, k)
        nn.init.ones_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)

    def __setattr__(self, name, value):
        object.__setattr__(self, name, value) if name == "hidden" else super().__setattr__(name, value)

    def forward(self, x):
        return self.layer(x)


class _Late(nn.Module):
    """Calls a method of its own before nn.Module is initialised."""

    def __init__(self):
        self.prepare(3)
        super().__init__()

    def prepare(self, n):
        object.__setattr__(self, "n", n)
        print(end="")

    def forward(self, x):
        return x + self.n


class _Breaks(nn.Module):
    """Has a graph break in its __init__."""

    def __init__(self):
        super().__init__()
        torch._dynamo.graph_break()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x):
        return x * self.weight


class _Never(nn.Module):
    """Never initialises nn.Module."""

    def __init__(self):
        pass

    def method(self, x):
        print(end="")
        return x + 1


UNDER_CONSTRUCTION = {
    "attribute first": lambda x: _Early(2)(x),
    "method first": lambda x: _Late()(x),
    "breaks": lambda x: _Breaks()(x),
    "never": lambda x: _Never().method(x),
    "new": lambda x: _Never.method(nn.Module.__new__(_Never), x),
    "sequential": lambda x: nn.Sequential(_Early(2), _Breaks())(x),
}


@program(UNDER_CONSTRUCTION, quick=("attribute first",))
def under_construction(build):
    """A module that is built in compiled code, after a graph break."""

    def f(x):
        torch._dynamo.graph_break()
        return build(x)

    backend = Counting()
    compiled = torch.compile(f, backend=backend)
    return [attempt(compiled, ones(2, 2)) for _ in range(2)], backend.calls


@program({name: UNDER_CONSTRUCTION[name] for name in ("method first", "breaks")})
def its_own_methods_compiled(build):
    """Methods that run during the construction are compiled themselves."""
    backend = Counting()
    torch._dynamo.reset()
    return attempt(torch.compile(build, backend=backend), ones(2, 2)), backend.calls


class _Dynamic(nn.Module):
    """Answers for each attribute."""

    def __getattr__(self, name):
        said.append(name)
        return super().__getattr__(name)

    def forward(self, x):
        return x + 1


class _Property(nn.Module):
    """Has a property that raises."""

    @property
    def device(self):
        said.append("device")
        raise RuntimeError("device was read")

    def forward(self, x):
        return x + 1


class _Called(Plain):
    """Overrides __call__."""

    def __call__(self, x):
        said.append("__call__")
        return super().__call__(x) * 2


class _Slots(Plain):
    """Has slots."""

    __slots__ = ("extra",)


class _Meta(type):
    def __call__(cls, *args, **kwargs):
        said.append("made")
        return super().__call__(*args, **kwargs)

    def __instancecheck__(cls, other):
        said.append("instance?")
        return super().__instancecheck__(other)


class _WithMeta(Plain, metaclass=_Meta):
    """Has a metaclass that watches."""


SUBCLASSES = {
    "getattr": _Dynamic,
    "property": _Property,
    "call": _Called,
    "slots": _Slots,
    "metaclass": _WithMeta,
    "lazy": lambda: nn.LazyLinear(2),
    "list": lambda: nn.Sequential(*nn.ModuleList([Plain(), Plain()])),
    "parametrized": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)),
    "shared": lambda: nn.Sequential(*[nn.ReLU()] * 2),
}


@program(SUBCLASSES)
def subclassed(make):
    """Compiled, called three times, and called inside a compiled function."""
    torch.manual_seed(0)
    backend, module = Counting(), make()
    compiled = torch.compile(module, backend=backend)
    seen = [attempt(lambda x=x: list(compiled(x).shape)) for x in (ones(2, 2), ones(2, 2), ones(3, 2))]
    inside = attempt(torch.compile(lambda x: module(x).sum() * 0, backend=backend), ones(2, 2))
    return seen, inside, backend.calls, said

"""Modules and arguments of the user's own making: a miss calls nothing of theirs that plain torch does not call."""

from __future__ import annotations

import collections
import dataclasses
import enum
import typing

import torch
from torch import nn

from ..table import program
from ._common import Counting, attempt, ones, told

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


@program({name: name for name in NAMES}, quick=("parameters",))
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


@program({name: name for name in NAMES}, quick=("__eq__",))
def an_argument_with_its_own(name):
    """An object of a class of the user's is an argument, and a module is."""
    backend = Counting()
    thing = type("Thing", (), {name: _say(name), "n": 2})()
    by_attribute = torch.compile(lambda x, t: x + t.n, backend=backend)
    seen = [attempt(by_attribute, ones(*s), thing) for s in ((2,), (3,), (2, 2))]
    module = _module_with(name)()
    by_mode = torch.compile(lambda x, m: x + m.training, backend=backend)
    return seen, [attempt(by_mode, ones(), module) for _ in range(2)], backend.calls, said


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


@program(UNDER_CONSTRUCTION, quick=("attribute first", "never"))
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
    "jit": lambda: torch.jit.script(nn.ReLU()),
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


class _Counted(dict):
    def __len__(self):
        said.append("len")
        return super().__len__()

    def __iter__(self):
        said.append("iter")
        return super().__iter__()


class _List(list):
    def __len__(self):
        said.append("len")
        return super().__len__()


@dataclasses.dataclass
class _Data:
    x: typing.Any
    n: int = 1


class _Colour(enum.Enum):
    RED = 2


Pair = collections.namedtuple("Pair", "a b")


class _Tensor(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        said.append(getattr(func, "__name__", "?"))
        return super().__torch_function__(func, types, args, kwargs or {})


ARGUMENTS = {
    "dict": (_Counted(n=2), lambda x, a: x + a["n"]),
    "list": (_List([1, 2]), lambda x, a: x + a[1]),
    "dataclass": (_Data(ones()), lambda x, a: x + a.x + a.n),
    "enum": (_Colour.RED, lambda x, a: x + a.value),
    "namedtuple": (Pair(1, 2), lambda x, a: x + a.b),
    "ordered": (collections.OrderedDict(n=1), lambda x, a: x + a["n"]),
    "default": (collections.defaultdict(int, n=1), lambda x, a: x + a["n"] + a["m"]),
    "tensor": (ones().as_subclass(_Tensor), lambda x, a: x + a),
    "iterator": (iter([1, 2]), lambda x, a: x + next(a)),
    "type": (int, lambda x, a: x + a("3")),
    "module": (Plain(), lambda x, a: a(x)),
    "function": (lambda y: y + 1, lambda x, a: a(x)),
    "device": (torch.device("cpu"), lambda x, a: x.to(a)),
}


@program(ARGUMENTS)
def arguments(value, function):
    """Arguments of many types, with two shapes of the other one."""
    backend = Counting()
    compiled = torch.compile(function, backend=backend)
    seen = [attempt(compiled, ones(*s), value) for s in ((2,), (2,), (3, 2))]
    return seen, backend.calls, said, told(repr(type(value)))

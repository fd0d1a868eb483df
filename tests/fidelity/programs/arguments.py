"""Arguments of many types, of the user's own making."""

from __future__ import annotations

import collections
import dataclasses
import enum
import typing

import torch

from tests.fidelity.table import program

from ._common import Counting, attempt, ones, told

said: list[str] = []


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
    "module": (torch.nn.ReLU(), lambda x, a: a(x)),
    "function": (lambda y: y + 1, lambda x, a: a(x)),
    "device": (torch.device("cpu"), lambda x, a: x.to(a)),
}


@program(ARGUMENTS)
def of_a_type(value, function):
    """Arguments of many types, with two shapes of the other one."""
    backend = Counting()
    compiled = torch.compile(function, backend=backend)
    seen = [attempt(compiled, ones(*s), value) for s in ((2,), (2,), (3, 2))]
    return seen, backend.calls, said, told(repr(type(value)))

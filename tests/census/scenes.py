"""What compiles, traces or transforms, each as a scene: a small program that is looked at in the middle.

A scene is a function that prepares and returns what is run three times. What is compiled is made anew for each run, so
that each run compiles. ``parks`` stops where operators run on fake tensors: in passes of Dynamo, AOTAutograd, Inductor.
"""

from __future__ import annotations

import copy
import importlib
import itertools
import math
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from .parking import Run, here
from .runner import PARTS


class Absent(Exception):
    """This release of torch, or this machine, lacks what the scene needs."""


class Scene(NamedTuple):
    """A scene. ``warm``: runs before the one that is looked at. ``limit_s``: for each of them."""

    name: str
    prepare: Callable[[], Run]
    warm: int
    limit_s: float


SCENES: dict[str, Scene] = {}


def scene(
    *, quick: bool = False, warm: int = 2, limit_s: float = 100.0
) -> Callable[[Callable[[], Run]], Callable[[], Run]]:
    """Adds a function to the table of scenes; ``quick``: to the run for CI, too (:func:`.runner.scene_names`)."""

    def add(prepare: Callable[[], Run]) -> Callable[[], Run]:
        SCENES[prepare.__name__] = Scene(prepare.__name__, prepare, warm, limit_s)
        return prepare

    return add


def all_scenes() -> dict[str, Scene]:
    """Returns the table."""
    for part in PARTS:
        importlib.import_module(f"{__package__}.scenes_{part}")
    return SCENES


def part_of_torch(module: str, name: str) -> Any:
    """Returns something of torch's.

    Raises:
        Absent: this release does not have it.
    """
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise Absent(f"{module}.{name}: {error}") from None


_numbers = itertools.count()


def anew(function: Any) -> Any:
    """Returns a copy of a function that was never compiled."""
    code = function.__code__.replace(co_name=f"{function.__name__}_{next(_numbers)}")
    copy = types.FunctionType(code, function.__globals__, code.co_name, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


@torch.library.custom_op("census::parks", mutates_args=())
def parks(x: torch.Tensor) -> torch.Tensor:
    """Returns a copy of its argument."""
    here()
    return x.clone()


@parks.register_fake
def _parks_on_fake_tensors(x: torch.Tensor) -> torch.Tensor:
    here()
    return torch.empty_like(x)


parks.register_autograd(lambda ctx, grad: grad)


class Small(nn.Module):
    """A small module."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 4)
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Runs a few layers, and parks."""
        hidden = torch.relu(self.norm(self.first(x)))
        return parks(self.second(hidden)) * self.scale * math.sqrt(2.0) + x.shape[0]


#: Made before anything is looked at: it draws random numbers.
_small = Small()


def model() -> nn.Module:
    """Returns such a module, of a class whose ``forward`` was never compiled."""
    made = copy.deepcopy(_small)
    made.__class__ = type("Small", (Small,), {"forward": anew(Small.forward)})
    return made


def batch() -> torch.Tensor:
    """Returns an argument for :func:`model`."""
    return torch.ones(3, 4)

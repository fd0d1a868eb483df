"""The private names of forward-mode AD and of ``torch.func.jvp``. As :mod:`.dynamo`, it only names and tells."""

from __future__ import annotations

import sys
from types import FunctionType, ModuleType
from typing import Any, TypeVar

FORWARD_AD = "torch.autograd.forward_ad"
EAGER_TRANSFORMS = "torch._functorch.eager_transforms"

#: The level that is on, or -1.
LEVEL = "_current_level"

#: How many ``jvp`` the process is in, and the test that one is in no other.
JVP_NESTING = "JVP_NESTING"
OUTERMOST = "JVP_NESTING == 1"

#: The functions in C that make a level, of which there is one at most for the process, and end it.
_LEVELS = ("_enter_dual_level", "_exit_dual_level")

_F = TypeVar("_F")


def initial_values() -> dict[str, Any]:
    """Returns what these variables are where nobody is in a level."""
    return {LEVEL: -1, JVP_NESTING: 0}


def dual_levels() -> list[list[tuple[Any, str]]]:
    """Returns, for each function of _LEVELS, its places: torch._C, and where it is imported by name (2.9+)."""
    c: Any = sys.modules["torch"]._C
    found = []
    for name in _LEVELS:
        places = [(c, name)]
        importer = sys.modules.get("torch._functorch.predispatch")
        if importer is not None and vars(importer).get(f"{name}_impl") is getattr(c, name):
            places.append((importer, f"{name}_impl"))
        found.append(places)
    return found


def end_level() -> None:
    """Ends the level in C, whoever has made it."""
    c: Any = sys.modules["torch"]._C
    c._exit_dual_level(level=0)


def known_as(function: _F, original: Any) -> _F:
    """Gives a function the name of the original: graphs call it by name."""
    named: Any = function
    named.__name__ = named.__qualname__ = original.__name__
    named.__module__ = "torch._C"
    return function


def users_of_jvp_nesting(module: ModuleType) -> list[FunctionType]:
    """Returns the function that tests OUTERMOST, and those that count."""
    return [module._jvp_with_argnums, module.enter_jvp_nesting, module.exit_jvp_nesting]


def mark_constant(function: Any) -> None:
    """Has Dynamo call a function while it traces, and take its result as a constant."""
    function._dynamo_marked_constant = True

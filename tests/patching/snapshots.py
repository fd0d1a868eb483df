"""A snapshot of everything in torch that may be patched."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from safecompile._installing.families import all_families

#: Every module of torch that a patch may touch: those that the families wait for, and two that are patched with them.
PATCHED_MODULES = tuple(
    sorted(
        {part.module for family in all_families() for part in family.parts}
        | {"torch.cuda", "torch._dynamo.mutation_guard"}
    )
)

_ABSENT = object()

#: Dynamo itself replaces these at its first compile, for good.
_TAGGED = {("Module", "__init__"), ("Module", "__setstate__")}


def _of_function(function: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    while isinstance(function, types.FunctionType):
        yield ("code", id(function)), function.__code__
        yield ("defaults", id(function)), function.__defaults__
        yield ("keyword defaults", id(function)), function.__kwdefaults__
        for index, cell in enumerate(function.__closure__ or ()):
            yield ("cell", id(function), index), cell
            if cell != types.CellType():
                yield ("cell contents", id(function), index), cell.cell_contents
        for name, value in vars(function).items():
            yield ("attribute", id(function), name), value
        function = vars(function).get("__wrapped__")


def snapshot(modules: Callable[[str], bool] = lambda name: name.partition(".")[0] == "torch") -> dict[Any, Any]:
    """Returns what the modules, their classes and the functions of both hold: the very objects, by where they are."""
    found: dict[Any, Any] = {}
    for module_name, module in list(sys.modules.items()):
        if not modules(module_name) or not isinstance(module, types.ModuleType):
            continue
        for name, value in list(vars(module).items()):
            found[module_name, name] = value
            found.update(((module_name, name, *key), one) for key, one in _of_function(value))
            if isinstance(value, type) and value.__module__ == module_name:
                for inner, one in list(vars(value).items()):
                    found[module_name, name, inner] = one
                    function = getattr(one, "__func__", getattr(one, "fget", one))
                    found.update(((module_name, name, inner, *key), part) for key, part in _of_function(function))
            if "hooks" in name and isinstance(value, (dict, list)):
                found[module_name, name, "hooks in it"] = tuple(value)
    return found


def differences(before: dict[Any, Any], after: dict[Any, Any]) -> list[str]:
    """Returns the places at which two snapshots do not hold the very same object."""
    return sorted(
        str(key)
        for key in before.keys() | after.keys()
        if before.get(key, _ABSENT) is not after.get(key, _ABSENT) and before.get(key) != after.get(key, _ABSENT)
    )


def patches(before: dict[Any, Any], after: dict[Any, Any]) -> list[str]:
    """The same for what can be called and for code: work changes counters and caches, only patches change these."""
    return [
        str(key)
        for key in before.keys() | after.keys()
        if before.get(key, _ABSENT) is not after.get(key, _ABSENT)
        and any(callable(one.get(key)) or isinstance(one.get(key), types.CodeType) for one in (before, after))
        and "attribute" not in key
        and key[1:3] not in _TAGGED
    ]


def identities(before: dict[Any, Any], after: dict[Any, Any]) -> list[str]:
    """Returns the places of ``before`` at which ``after`` holds another object, however equal."""
    return sorted(
        str(key) for key, value in before.items() if after.get(key, _ABSENT) is not value and type(value) is not int
    )

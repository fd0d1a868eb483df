"""``max``, ``min`` and ``math.pow``, which an export replaces while it traces: for its own thread alone.

``math`` tells by thread, by look-up. Code looks ``max`` up in the dictionary of ``builtins``, so what tells by thread
has to stand there. Dynamo, which compares by identity, looks these names up in the module instead, and finds the
originals; so do the guards that it makes.
"""

from __future__ import annotations

import ast
import builtins
import math
from types import ModuleType
from typing import Any, Final

from .._patching import rewriting
from .._patching.families import Part
from .._patching.patches import AttributePatch, CodePatch, Patch
from .._torch import export as host
from .._torch import fx as torch_fx
from . import slots

_REPLACE = "__safecompile_replace__"
_BRING_BACK = "__safecompile_bring_back__"
_SEEN_HERE = "__safecompile_seen_here__"
_SOURCE_OF = "__safecompile_source_of__"

_MODULES: Final[dict[str, ModuleType]] = {"builtins": builtins, "math": math}


def _replace(module: str, name: str, new: Any) -> slots.SlotPatch:
    host.know_builtins()
    patch = slots.SlotPatch(vars(_MODULES[module]), name, new, shared=True)
    patch.patch()
    return patch


class _ByThread(rewriting.KnowingTheEnd):
    """Turns ``math.pow = new`` into a replacement for this thread, and in a ``finally`` brings the original back."""

    def __init__(self) -> None:
        self.replaced: list[str] = []

    def visit_Assign(self, node: ast.Assign) -> ast.AST:  # noqa: N802 - the name is ast's
        module, _, name = ast.unparse(node.targets[0]).rpartition(".")
        if name not in host.OVERRIDDEN.get(module, ()):
            return node
        variable = f"__safecompile_{module}_{name}__"
        if self.at_the_end:
            return rewriting.located(ast.parse(f"{variable}.revert()").body[0], node)
        self.replaced.append(f"{module}.{name}")
        new: Any = rewriting.located(ast.parse(f"{variable} = {_REPLACE}({module!r}, {name!r}, None)").body[0], node)
        new.value.args[2] = node.value
        return new  # type: ignore[no-any-return]


def patches_of_non_strict(module: ModuleType) -> list[Patch]:
    """Returns the patches for what replaces these functions, where this torch does; changes nothing."""
    function, change = host.override_of_builtins(module), _ByThread()
    if function is None:
        return []
    code = rewriting.recompiled(function, change.visit)
    if sorted(change.replaced) != sorted(f"{one}.{name}" for one, names in host.OVERRIDDEN.items() for name in names):
        msg = f"other functions replaced in {function.__qualname__}: {', '.join(change.replaced)}"
        raise LookupError(msg)
    return [AttributePatch(module, _REPLACE, _replace, new=True), CodePatch(function, code)]


def _seen_here(dictionary: dict[str, Any], name: str) -> Any:
    """Returns what this thread finds under a name in the dictionary of a module."""
    is_it = dictionary is vars(builtins) and name in host.OVERRIDDEN["builtins"]
    return getattr(builtins, name) if is_it else dictionary[name]


def _source_of(tx: Any, dictionary: dict[str, Any], name: str) -> Any:
    is_it = dictionary is vars(builtins) and name in host.OVERRIDDEN["builtins"]
    return host.source_of_builtin(tx, name) if is_it else None


class _InTheModule(ast.NodeTransformer):
    """Turns ``dictionary[name]`` into what this thread finds, and has guards look in the module."""

    def __init__(self) -> None:
        self.changed = 0

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        text = ast.unparse(node)
        if text in ("val = self.f_builtins[argval]", "attr_value = self.value.__dict__[name]"):
            dictionary, name = ast.unparse(node.value.value), ast.unparse(node.value.slice)  # type: ignore[attr-defined]
            call = f"{_SEEN_HERE}({dictionary}, {name})"
        elif text == "var_source = DictGetItemSource(builtins_source, argval)":
            call = f"{_SOURCE_OF}(self, self.f_builtins, argval) or DictGetItemSource(builtins_source, argval)"
        else:
            return node
        self.changed += 1
        node.value = rewriting.located(ast.parse(call, mode="eval").body, node)
        return node


def patches_of_symbolic_convert(module: ModuleType) -> list[Patch]:
    """Returns the patch for names that Dynamo looks up in ``builtins``; changes nothing."""
    return _looking_in_the_module(module, host.lookup_of_builtins(module), 2)


def patches_of_misc(module: ModuleType) -> list[Patch]:
    """Returns the patch for attributes of modules that Dynamo looks up; changes nothing."""
    return _looking_in_the_module(module, host.lookup_in_modules(module), 1)


def _looking_in_the_module(module: ModuleType, function: Any, places: int) -> list[Patch]:
    code = rewriting.changed(function, _InTheModule(), f"{places} look-ups in a dictionary", places=places)
    return [
        AttributePatch(module, _SEEN_HERE, _seen_here, new=True),
        AttributePatch(module, _SOURCE_OF, _source_of, new=True),
        CodePatch(function, code),
    ]


def patches_of_comparing(module: ModuleType) -> list[Patch]:
    """Returns the patches by which a module finds the original functions; changes nothing."""
    return [AttributePatch(module, name, getattr(builtins, name), new=True) for name in host.OVERRIDDEN["builtins"]]


PARTS: Final = (
    Part("builtins", host.NON_STRICT, patches_of_non_strict),
    Part("builtins", torch_fx.SYMBOLIC_CONVERT, patches_of_symbolic_convert),
    Part("builtins", host.MISC, patches_of_misc),
    *(Part("builtins", one, patches_of_comparing) for one in host.COMPARING),
)

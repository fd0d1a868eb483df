"""Assignments by which torch's own functions change a setting for a while, up to torch 2.11.

They become changes for the thread: see :mod:`.scoped_settings`.
"""

from __future__ import annotations

import ast
from types import ModuleType
from typing import Any, Final

from .._patching.families import Part
from .._patching.patches import AttributePatch, CodePatch, Patch
from .._patching.rewriting import KnowingTheEnd, located, recompiled
from .._torch import dynamo
from .._torch import settings as host
from .scoped_settings import change, change_back

#: Under this name a rewritten function finds :func:`~.scoped_settings.change`.
CHANGE = "__safecompile_change_setting__"


class Scoped(KnowingTheEnd):
    """Turns ``<config>.x = value`` into a change for this thread, and in a ``finally`` into its end."""

    changed = False

    def visit_Assign(self, node: ast.Assign) -> ast.AST:  # noqa: N802 - the name is ast's
        target = node.targets[0]
        if not (isinstance(target, ast.Attribute) and ast.unparse(target.value) in host.OWN_CONFIG):
            return node
        self.changed = True
        view, arguments = f"{CHANGE}_{target.attr}", f"{ast.unparse(target.value)}, {target.attr!r}, None"
        text = f"{CHANGE}_back({arguments}, {view})" if self.at_the_end else f"{view} = {CHANGE}({arguments})"
        call: Any = located(ast.parse(text).body[0], node)
        call.value.args[2] = node.value
        return call  # type: ignore[no-any-return]


def helpers(module: ModuleType) -> list[Patch]:
    """Returns the patches that give a module what a function needs that :class:`Scoped` has rewritten."""
    found = ((CHANGE, change), (f"{CHANGE}_back", change_back))
    return [AttributePatch(module, name, function, new=True) for name, function in found]


def patches_of_dynamo_utils(module: ModuleType) -> list[Patch]:
    """Returns the patches for ``disable_cache_limit``; changes nothing."""
    if host.settings_are_per_context(host.config_module()):
        return []
    body, change = module.disable_cache_limit.__wrapped__, Scoped()
    code = recompiled(body, change.visit)
    if not change.changed:
        msg = "an assignment to a setting in disable_cache_limit"
        raise LookupError(msg)
    return [*helpers(module), CodePatch(body, code)]


PARTS: Final = (Part("settings", dynamo.DYNAMO_UTILS, patches_of_dynamo_utils),)

"""Operators that several threads trace for the first time at once, and the backends that an export switches off.

An operator that has no cached kernel for a way to call it makes one: in plain torch a second thread that comes
meanwhile raises ``already in dispatch cache``. An export switches MKL-DNN and the like off for the process, until the
last one ends.
"""

from __future__ import annotations

import ast
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from .._common import forks
from .._patching import rewriting
from .._patching.families import Part
from .._patching.patches import AttributePatch, CodePatch, Patch
from .._torch import export as torch_export
from .._torch import state as host

_OFF = "__safecompile_off__"
_ON_AGAIN = "__safecompile_on_again__"

# A leaf lock, held for a call of torch's that sets a flag. Reentrant, since a signal handler may export.
_flags = threading.RLock()

#: By backend: how many exports have it off, and what was set before the first.
_off: dict[str, tuple[int, tuple[Any, ...]]] = {}


def _switch_off(backend: str, set_flags: Callable[..., tuple[Any, ...]]) -> None:
    with _flags:
        count, before = _off.get(backend, (0, ()))
        _off[backend] = (count + 1, before if count else set_flags(False))


def _switch_on_again(backend: str, set_flags: Callable[..., Any]) -> None:
    with _flags:
        count, before = _off[backend]
        _off[backend] = (count - 1, before)
        if count == 1:
            set_flags(*before)


class _Counting(ast.NodeTransformer):
    """Turns ``flag = torch.backends.x.set_flags(False)`` and ``torch.backends.x.set_flags(*flag)`` into counts."""

    changed = 0

    def visit_Call(self, node: ast.Call) -> ast.AST:
        function = ast.unparse(node.func)
        if not function.endswith(".set_flags"):
            return node
        self.changed += 1
        name = _ON_AGAIN if isinstance(node.args[0], ast.Starred) else _OFF
        return rewriting.located(ast.parse(f"{name}({function!r}, {function})", mode="eval").body, node)


def patches_of_trace(module: ModuleType) -> list[Patch]:
    """Returns the patches for the backends that an export switches off; changes nothing."""
    function, change = torch_export.backends_off(module), _Counting()
    code = rewriting.recompiled(function, change.visit)
    if not change.changed or change.changed % 2:
        msg = f"pairs of calls of set_flags() in {function.__qualname__}"
        raise LookupError(msg)
    return [
        AttributePatch(module, _OFF, _switch_off, new=True),
        AttributePatch(module, _ON_AGAIN, _switch_on_again, new=True),
        CodePatch(function, code),
    ]


class _WhatIsThere(ast.NodeTransformer):
    """Turns the check that nothing is cached into a return of what is; and ``return cached_ops`` into one of a copy."""

    changed = 0

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        return self._checking(node, f"key not in {host.DISPATCH_CACHE}")

    def visit_If(self, node: ast.If) -> ast.AST:
        return self._checking(node, f"key in {host.DISPATCH_CACHE}")

    def _checking(self, node: ast.Assert | ast.If, test: str) -> ast.AST:
        if ast.unparse(node.test) != test:
            return node
        self.changed += 1
        # In one step, which another thread's clear() can't come between.
        text = f"if (cached := {host.DISPATCH_CACHE}.get(key)) is not None:\n    return cached"
        return rewriting.located(ast.parse(text).body[0], node)

    def visit_Return(self, node: ast.Return) -> ast.AST:
        if node.value is not None and ast.unparse(node.value) == "cached_ops":
            self.changed += 1
            node.value = rewriting.located(ast.parse("cached_ops.copy()", mode="eval").body, node)
        return node


def patches_of_ops(module: ModuleType) -> list[Patch]:
    """Returns the patches for the caches of operators; changes nothing."""
    return [
        CodePatch(one, rewriting.changed(one, _WhatIsThere(), "one look at a cache"))
        for one in host.cached_dispatches(module)
    ]


@forks.in_child
def after_fork_in_child() -> None:
    """Makes the lock anew: the thread that held it does not exist in the child."""
    global _flags
    _flags = threading.RLock()


PARTS: Final = (Part("operators", host.OPS, patches_of_ops), Part("operators", torch_export.TRACE, patches_of_trace))

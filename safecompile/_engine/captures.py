"""What is traced outside of a call, and one at a time: a strict export, an ahead-of-time compile, decompositions.

Since torch 2.9 the first two call Dynamo without a function call that it would intercept, and so without the compile
lock. The last changes hundreds of operators for the process while it traces.
"""

from __future__ import annotations

import ast
import sys
from types import FunctionType, ModuleType
from typing import Any, Final

from .._isolation import kernel_gates
from .._patching import rewriting
from .._patching.families import Part
from .._patching.patches import AttributePatch, CodePatch, Patch
from .._torch import dynamo, export
from .flights import wait_for_lock

_ONE_TRACE = "__safecompile_one_trace__"


class _OneTrace:
    """Holds torch's compile lock, and keeps autograd on this thread; inside of a compile of its own it does nothing."""

    __slots__ = ("is_outermost", "multithreading")

    def __enter__(self) -> None:
        lock = dynamo.compile_lock()
        self.is_outermost, self.multithreading = not lock._is_owned(), dynamo.autograd_multithreading()
        if not self.is_outermost:
            return
        kernel_gates.assert_none_held("the compile lock")
        try:
            wait_for_lock(lock, sys._getframe(1).f_code, "cpu")
            dynamo.set_autograd_multithreading(False)
        except BaseException:  # an asynchronous exception
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        if self.is_outermost and dynamo.compile_lock()._is_owned():
            dynamo.set_autograd_multithreading(self.multithreading)
            dynamo.compile_lock().release()


class _UnderTheLock(ast.NodeTransformer):
    """Puts the body of a function into ``with __safecompile_one_trace__():``."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.body = [_under_the_lock(node.body)]
        return node


class _StrictExport(ast.NodeTransformer):
    """Puts the statement by which a strict export has Dynamo trace into ``with __safecompile_one_trace__():``.

    From its capture to its guards: a reset, with which the next one begins, would come between.
    """

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        value = node.value
        if not isinstance(value, ast.Call) or ast.unparse(value.func) != export.CAPTURE:
            return node
        return _under_the_lock([node])  # type: ignore[no-any-return]


def _under_the_lock(body: list[Any]) -> Any:
    manager: Any = rewriting.located(ast.parse(f"with {_ONE_TRACE}():\n    pass").body[0], body[0])
    manager.body = body
    return manager


def patches_of_trace(module: ModuleType) -> list[Patch]:
    """Returns the patch for strict exports, where they do not come through a call; changes nothing."""
    function = export.strict_export(module)
    code = rewriting.recompiled(function, _StrictExport().visit)
    return [AttributePatch(module, _ONE_TRACE, _OneTrace, new=True), CodePatch(function, code)]


def patches_of_convert_frame(module: ModuleType) -> list[Patch]:
    """Returns the patches for captures, where this torch has them; changes nothing."""
    functions: list[FunctionType] = dynamo.captures(module)
    codes = [(one, rewriting.recompiled(one, _UnderTheLock().visit)) for one in functions]
    return [AttributePatch(module, _ONE_TRACE, _OneTrace, new=True), *(CodePatch(*one) for one in codes)]


def patches_of_exported_program(module: ModuleType) -> list[Patch]:
    """Returns the patches for what changes operators; changes nothing."""
    codes = [(one, rewriting.recompiled(one, _UnderTheLock().visit)) for one in export.decomposing(module)]
    return [AttributePatch(module, _ONE_TRACE, _OneTrace, new=True), *(CodePatch(*one) for one in codes)]


PARTS: Final = (
    Part("captures", dynamo.CONVERT_FRAME, patches_of_convert_frame),
    Part("captures", export.TRACE, patches_of_trace),
    Part("captures", export.EXPORTED_PROGRAM, patches_of_exported_program),
)

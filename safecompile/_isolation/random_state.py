"""What a compile puts back at its end: random states and global settings, which other threads use meanwhile.

torch restores the states of ``random`` and of its generators, the default dtype, deterministic mode and so on, to what
they were when the compile began. What another thread drew meanwhile is then drawn a second time, and what it set is
lost. With one live Python thread nothing changes. With more, nothing is put back: a number that the compile itself drew
is skipped, never handed out twice.
"""

from __future__ import annotations

import ast
import random
import sys
import threading
from types import ModuleType
from typing import Any, Final

from .._patching import rewriting
from .._patching.families import Part
from .._patching.patches import AttributePatch, ClosurePatch, CodePatch, Patch
from .._torch import dynamo
from .._torch import state as host

_NAME = "__safecompile_alone__"


class _Compile(threading.local):
    """This thread's compile in progress."""

    others = False  # other threads were alive when it began
    caller: int | None = None  # the frame to which torch's C code puts the state of ``random`` back afterwards


_compile = _Compile()


def began() -> None:
    """Notes who is alive when a compile begins."""
    _compile.others = _compile.others or not dynamo.one_thread_is_alive()


def ended(caller: Any) -> None:
    """Notes that a compile is over, and from which frame torch called it."""
    if not alone():
        _compile.caller = id(caller)
    _compile.others = False


def alone() -> bool:
    """Tells whether no other thread can have drawn or set anything since this thread's compile began."""
    return not _compile.others and dynamo.one_thread_is_alive()


class _OnlyAlone(ast.NodeTransformer):
    """Puts each statement that restores shared state under ``if __safecompile_alone__():``."""

    def __init__(self) -> None:
        self.changed = 0

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        if isinstance(node.value, ast.Call) and ast.unparse(node.value.func) in host.RESTORING:
            self.changed += 1
            only: ast.If = _located(ast.If(_call(), [node], []), node)
            return only
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        if ast.unparse(node.test) == host.CHECKING:
            node.test = _located(ast.BoolOp(ast.Or(), [ast.UnaryOp(ast.Not(), _call()), node.test]), node.test)
        return node

    def visit_If(self, node: ast.If) -> ast.AST:
        if ast.unparse(node.test) == f"not {host.CHECKING}":
            node.test = _located(ast.BoolOp(ast.And(), [_call(), node.test]), node.test)
            return node
        self.generic_visit(node)
        return node


def _call() -> ast.expr:
    return ast.Call(ast.Name(_NAME, ast.Load()), [], [])


def _located(new: Any, old: ast.AST) -> Any:
    for part in ast.walk(new):
        if not hasattr(part, "lineno"):
            ast.copy_location(part, old)
    return new


def patches_of_convert_frame(module: ModuleType) -> list[Patch]:
    """Returns the patches for the end of a compile; changes nothing."""
    function = module.preserve_global_state
    patches = _restoring_alone(module, function)
    inner = ClosurePatch(host.inner_code(function.__code__), host.inner_code(patches[-1].code))
    # torch 2.13+ restores the state of ``random`` in C, by calling random.setstate from the frame that missed.
    return [*patches, inner] if host.restores_random(function) else [*patches, inner, _random_patch()]


def patches_of_dynamo_utils(module: ModuleType) -> list[Patch]:
    """Returns the patch for the random states that AOTAutograd keeps around a trace; changes nothing."""
    return list(_restoring_alone(module, module.preserve_rng_state.__wrapped__))


def _restoring_alone(module: ModuleType, function: Any) -> tuple[Patch, CodePatch]:
    change = _OnlyAlone()
    code = rewriting.recompiled(function, change.visit)
    if not change.changed:
        msg = f"a statement in {function.__qualname__} that restores a random state"
        raise LookupError(msg)
    return AttributePatch(module, _NAME, alone, new=True), CodePatch(function, code)


def _random_patch() -> Patch:
    setstate = random.setstate

    def _patched_setstate(state: Any) -> None:
        expected, _compile.caller = _compile.caller, None
        if expected is None or expected != id(sys._getframe(1)):
            setstate(state)

    return AttributePatch(random, "setstate", _patched_setstate)


PARTS: Final = (
    Part("global state", dynamo.CONVERT_FRAME, patches_of_convert_frame),
    Part("global state", host.DYNAMO_UTILS, patches_of_dynamo_utils),
)

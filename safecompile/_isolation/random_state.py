"""Random numbers beside a compile: none is drawn twice, and a compile draws none that the user would miss.

At the end of a compile torch puts the states of ``random`` and of its generators back to what they were at its begin.
What another thread drew meanwhile is then drawn a second time. Here:

- A generator that is as before is left alone.
- What the trace itself draws, to have an example of what the traced function will return, it draws from a copy.
- The rest, such as what a backend draws, is undone only if no other thread has worked meanwhile. Otherwise these
  numbers are skipped.
"""

from __future__ import annotations

import ast
import random
import sys
import threading
from types import CodeType, ModuleType
from typing import Any, Final

from .._patching import rewriting
from .._patching.families import Part
from .._patching.patches import AttributePatch, ClosurePatch, CodePatch, Patch
from .._torch import dynamo, threads
from .._torch import shared_state as host
from . import open_compiles, shared_settings

_LOOK = "__safecompile_look__"
_LOOK_NOW = "__safecompile_look_now__"
_PUT_BACK = "__safecompile_put_back__"
_MAY_DIFFER = "__safecompile_may_differ__"
_COPY_OF = "__safecompile_copy_of__"


class _Missed(threading.local):
    """Where this thread's last miss came from, until torch's C code has put ``random`` back for it (2.13+)."""

    at: tuple[CodeType, int] | None = None


_missed = _Missed()

#: Whether torch's C code puts ``random`` back around the callback. Set by the installation.
_restored_in_c = False


def ended(before: open_compiles.Open | None, caller: Any) -> None:
    """Notes that a miss is over, inside of the compile ``before``, and from which frame torch called it."""
    one = open_compiles.innermost()
    if _restored_in_c:
        if one is not None and one is not before:
            _put_generator_back("random.setstate", one.look, one.random)
        _missed.at = (caller.f_code, caller.f_lasti)
    open_compiles.end(before)


def _look_now() -> threads.Look:
    one = open_compiles.innermost()
    return threads.look() if one is None else one.look


def _put_back(call: str, look: threads.Look, *args: Any, **more: Any) -> None:
    """Stands in the place of the ``call`` by which torch puts something back."""
    if call in host.GENERATORS:
        _put_generator_back(call, look, *args)
    else:
        shared_settings.put_back(call, (*args[-1:], *more.values()))


def _put_generator_back(call: str, look: threads.Look, before: Any) -> None:
    generator = host.GENERATORS[call]
    try:
        if generator.same(generator.state(), before):
            return
    except RuntimeError:  # beside a capture of a CUDA graph
        return
    threads.call_unless_worked(look, generator.steps(before))


def _may_differ(look: threads.Look) -> bool:
    """Tells whether another thread may have set, meanwhile, what Dynamo looks at once more at the end."""
    one = open_compiles.innermost()
    return (one is not None and bool(one.set_by_others)) or threads.have_worked(look)


class _PuttingBack(ast.NodeTransformer):
    """Puts this module's functions in the place of the calls that restore shared state."""

    def __init__(self) -> None:
        self.changed = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        if node.name in host.PRESERVING:
            node.body.insert(0, _located(ast.parse(f"{_LOOK} = {_LOOK_NOW}()").body[0], node.body[0]))
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        call = node.value
        if isinstance(call, ast.Call) and (name := ast.unparse(call.func)) in host.GENERATORS.keys() | host.SETTINGS:
            self.changed += 1
            call.args = [ast.Constant(name), ast.Name(_LOOK, ast.Load()), *call.args]
            call.func = ast.Name(_PUT_BACK, ast.Load())
            _located(call, node)
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        if ast.unparse(node.test) == host.CHECKING:
            node.test = _located(ast.BoolOp(ast.Or(), [node.test, _may()]), node.test)
        return node

    def visit_If(self, node: ast.If) -> ast.AST:
        if ast.unparse(node.test) == f"not {host.CHECKING}":
            allowed = ast.UnaryOp(ast.Not(), _may())
            node.test = _located(ast.BoolOp(ast.And(), [node.test, allowed]), node.test)
            return node
        self.generic_visit(node)
        return node


def _may() -> ast.expr:
    return ast.Call(ast.Name(_MAY_DIFFER, ast.Load()), [ast.Name(_LOOK, ast.Load())], [])


def _located(new: Any, old: ast.AST) -> Any:
    for part in ast.walk(new):
        if not hasattr(part, "lineno"):
            ast.copy_location(part, old)
    return new


def patches_of_convert_frame(module: ModuleType) -> list[Patch]:
    """Returns the patches for the end of a compile; changes nothing."""
    global _restored_in_c
    function = module.preserve_global_state
    patches = _putting_back(module, function)
    inner = ClosurePatch(host.inner_code(function.__code__), host.inner_code(patches[-1].code))
    # torch 2.13+ restores the state of ``random`` in C, by calling random.setstate from the frame that missed.
    _restored_in_c = not host.restores_random(function)
    return [*patches, inner, *([_random_patch()] if _restored_in_c else [])]


def patches_of_dynamo_utils(module: ModuleType) -> list[Patch]:
    """Returns the patch for the random states that AOTAutograd keeps around a trace; changes nothing."""
    return list(_putting_back(module, module.preserve_rng_state.__wrapped__))


def _putting_back(module: ModuleType, function: Any) -> tuple[Patch, Patch, Patch, CodePatch]:
    change = _PuttingBack()
    code = rewriting.recompiled(function, change.visit)
    if not change.changed:
        msg = f"a statement in {function.__qualname__} that restores a random state"
        raise LookupError(msg)
    return (
        AttributePatch(module, _LOOK_NOW, _look_now, new=True),
        AttributePatch(module, _PUT_BACK, _put_back, new=True),
        AttributePatch(module, _MAY_DIFFER, _may_differ, new=True),
        CodePatch(function, code),
    )


def _random_patch() -> Patch:
    setstate = random.setstate

    def _patched_setstate(state: Any) -> None:
        expected, _missed.at = _missed.at, None
        caller = sys._getframe(1)
        if expected is None or expected[0] is not caller.f_code or expected[1] != caller.f_lasti:
            setstate(state)

    return AttributePatch(random, "setstate", _patched_setstate)


def _copy_of(tx: Any, function: Any) -> Any:
    """Returns, for a function of the generator that all threads share, that of a copy, one for each trace."""
    shared = getattr(random.random, "__self__", None)
    if shared is None or getattr(function, "__self__", None) is not shared:
        return function
    copy = vars(tx.output).get("_safecompile_random")
    if copy is None:
        copy = tx.output._safecompile_random = random.Random()  # noqa: S311 - the traced code's generator
        copy.setstate(random.getstate())
    return getattr(copy, function.__name__)


class _DrawingFromACopy(ast.NodeTransformer):
    def __init__(self) -> None:
        self.changed = 0

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        if ast.unparse(node) == "example_value = fn(*args, **kwargs)":
            self.changed += 1
            node.value.func = ast.parse(f"{_COPY_OF}(tx, fn)", mode="eval").body  # type: ignore[attr-defined]
            _located(node.value, node)
        return node


def patches_of_user_defined(module: ModuleType) -> list[Patch]:
    """Returns the patch for what a trace draws for an example; changes nothing."""
    code = rewriting.changed(module.call_random_fn, _DrawingFromACopy(), "one 'fn(*args, **kwargs)'")
    return [AttributePatch(module, _COPY_OF, _copy_of, new=True), CodePatch(module.call_random_fn, code)]


def patches_of_drawing(module: ModuleType) -> list[Patch]:
    """Returns the patch for a module of torch's that draws for its own use, if it does; changes nothing."""
    own = random.Random()  # noqa: S311 - it makes names and keys
    return [AttributePatch(module, "random", own)] if vars(module).get("random") is random else []


PARTS: Final = (
    Part("global state", dynamo.CONVERT_FRAME, patches_of_convert_frame),
    Part("global state", dynamo.DYNAMO_UTILS, patches_of_dynamo_utils),
    Part("global state", host.USER_DEFINED, patches_of_user_defined),
    *(Part("draws", module, patches_of_drawing) for module in host.DRAWING),
)

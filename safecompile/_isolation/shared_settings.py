"""Settings of the whole process: at the end of a compile each is what it was, or what another thread has set meanwhile.

A trace sets them, by functions in C, wherever the traced code does, and torch puts back what was there before: the
default dtype, deterministic mode, the precision of float32 products. Others set them by torch's functions in Python.
These say so while a compile is open, so that its end puts back what others have set last. What bypasses them
is put back as in plain torch.
"""

from __future__ import annotations

import ast
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

from .._patching import rewriting
from .._patching.families import Part
from .._patching.patches import ClosurePatch, CodePatch, Patch
from .._torch import dynamo
from .._torch import shared_state as host
from . import open_compiles

_HAS_SET = "safecompile: the function has_set stands here"


def has_set(*settings: str) -> None:
    """Notes, in the compiles of other threads, that this thread has set ``settings``."""
    for one in open_compiles.of_others():
        for setting in settings:
            if host.SETTINGS[setting].is_there():
                one.set_by_others.append((setting, host.SETTINGS[setting].read()))


def put_back(setting: str, before: tuple[Any, ...]) -> None:
    """Gives a setting the value that another thread has given it last in this compile, else the one from ``before``."""
    one = open_compiles.innermost()
    others = [] if one is None else one.set_by_others
    value = next((value for name, value in reversed(others) if name == setting), before)
    host.SETTINGS[setting].write(value)


class _Saying(ast.NodeTransformer):
    """Has each call of a function in C that sets something followed by a call of :func:`has_set`."""

    def __init__(self, *, inlined: bool) -> None:
        # Dynamo traces what it inlines into: there it is told, as a constant, to leave that call out.
        self.but_in_a_trace = "torch.compiler.is_dynamo_compiling() or " if inlined else ""
        self.changed = 0

    def visit_Call(self, node: ast.Call) -> ast.AST:
        settings = host.SETTING.get(ast.unparse(node.func).rpartition("._C.")[2].removeprefix("_C."))
        if settings is None:
            return node
        self.changed += 1
        names = ", ".join(map(repr, settings))
        both: Any = ast.parse(f"(None, {self.but_in_a_trace}{_HAS_SET!r}.__call__({names}))[0]", mode="eval").body
        both.value.elts[0] = node
        for part in ast.walk(both):
            if not hasattr(part, "lineno") or part is not node:
                ast.copy_location(part, node)
        return both  # type: ignore[no-any-return]


def _saying(function: FunctionType) -> CodeType:
    change = _Saying(inlined=function.__module__ != "torch")
    code = rewriting.recompiled(function, change.visit)
    if not change.changed:
        msg = f"a call in {function.__qualname__} that sets a setting of the process"
        raise LookupError(msg)
    return rewriting.with_constants(code, {_HAS_SET: has_set})


def patches_of_setters(module: ModuleType) -> list[Patch]:  # noqa: ARG001 - the first compile's; the setters are elsewhere
    """Returns the patches of torch's functions that set something; changes nothing."""
    patches: list[Patch] = [CodePatch(function, _saying(function)) for function in host.public_setters()]
    maker = host.precision_setter_maker()
    if maker is None:
        return patches
    code = _saying(maker)
    inner = [next(one for one in each.co_consts if isinstance(one, CodeType)) for each in (maker.__code__, code)]
    return [*patches, CodePatch(maker, code), ClosurePatch(*inner)]


# When Dynamo is complete: until then one of these functions may be another one, which imports it first (first_uses).
PARTS: Final = (Part("global state", dynamo.DYNAMO, patches_of_setters),)

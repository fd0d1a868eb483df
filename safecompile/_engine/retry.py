"""An exception handler in torch's own wrapper, so that a call can be made again after somebody else compiled.

``torch.compile(fn)`` returns a function whose body is ``compile_wrapper`` in ``_TorchDynamoContext.__call__``. Its
code is recompiled from torch's source with one change::

    result = fn(*args, **kwargs)

becomes ::

    while True:
        try:
            result = fn(*args, **kwargs)
            break
        except Retry:
            __safecompile_retried__ = True
            _maybe_set_eval_frame(_callback_from_stance(callback))

On Python 3.11 and later a ``try`` costs nothing until something is raised, and ``while True`` has no test: a warm
call runs the same instructions as before but for one or two (measured in ``benchmarks``). It adds no frame.
``Retry`` is a constant of the code, so that a call that runs while the patches are taken out still finds it.

A second change is made where ``fullgraph=True`` finds that a call ran no compiled code. torch 2.12 to 2.14 count in a
variable of the process, which the start of a call in another thread sets back to zero: the condition asks once more.
It is reached only when the count is zero, so it costs a warm call nothing.
"""

from __future__ import annotations

import ast
import copy
from types import CodeType, ModuleType
from typing import Any, Final

from .._patching import rewriting
from .._patching.families import Part
from .._patching.patches import ClosurePatch, CodePatch, Patch
from .._torch import dynamo, eager
from . import flights

#: The name of the local variable by which torch's wrapper says that it has called again already.
RETRIED = "__safecompile_retried__"

_RETRY = "safecompile: the class Retry stands here"
_REALLY = "safecompile: the function really_nothing_compiled stands here"


class _AddHandler(ast.NodeTransformer):
    """Makes the change that the module describes, in the ``try`` that handles torch's ShortenTraceback."""

    def __init__(self) -> None:
        self.changed = 0
        self.set_frame: ast.stmt | None = None

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        if dynamo.SETTING_THE_FRAME in ast.unparse(node):
            self.set_frame = node
        return node

    def visit_If(self, node: ast.If) -> ast.AST:
        self.generic_visit(node)
        if ast.unparse(node.test).startswith("count == 0 and "):
            really: Any = rewriting.located(ast.parse("None.__call__(fn)", mode="eval").body, node)
            really.func.value.value = _REALLY
            node.test = ast.BoolOp(ast.And(), [node.test, really])
        return node

    def visit_Try(self, node: ast.Try) -> ast.AST:
        self.generic_visit(node)
        kinds = {ast.unparse(h.type) for h in node.handlers if h.type is not None}
        if "ShortenTraceback" in kinds and self.set_frame is not None:
            call = node.body[0]
            if ast.unparse(call).endswith("fn(*args, **kwargs)"):
                self.changed += 1
                node.body[0] = self._calling_again(call)
        return node

    def _calling_again(self, call: ast.stmt) -> ast.stmt:
        assert self.set_frame is not None
        retried = ast.Assign([ast.Name(RETRIED, ast.Store())], ast.Constant(True))
        handler = ast.ExceptHandler(ast.Constant(_RETRY), None, [retried, copy.deepcopy(self.set_frame)])
        body: list[ast.stmt] = [call] if isinstance(call, ast.Return) else [call, ast.Break()]
        again = ast.While(ast.Constant(True), [ast.Try(body, [handler], [], [])], [])
        for part in ast.walk(again):
            ast.copy_location(part, part if hasattr(part, "lineno") else call)
        return ast.copy_location(again, call)


#: The code of torch's wrapper that catches a retry, since the patch went in. To be compared by identity: code that
#: Dynamo has made may have constants that can't be hashed.
wrapper: CodeType | None = None


class _WrapperPatch(ClosurePatch):
    """Gives each wrapper that torch has made the other code."""

    def apply(self) -> None:
        global wrapper
        wrapper = self.new
        super().apply()


def patches_of_eval_frame(module: ModuleType) -> list[Patch]:
    """Returns the patches for the module that wraps compiled functions; changes nothing."""
    call = dynamo.context_class(module).__call__
    change = _AddHandler()
    code = rewriting.recompiled(call, change.visit)
    if change.changed != 1:
        msg = "one 'fn(*args, **kwargs)' in the wrapper of a compiled function"
        raise LookupError(msg)
    code = rewriting.with_constants(code, {_RETRY: flights.Retry, _REALLY: eager.really_nothing_compiled})
    wrappers = _WrapperPatch(dynamo.wrapper_code(call.__code__), dynamo.wrapper_code(code))
    return [CodePatch(call, code), wrappers]


PARTS: Final = (Part("miss", dynamo.EVAL_FRAME, patches_of_eval_frame),)

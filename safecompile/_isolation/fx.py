"""FX tracing, per thread: the flag, the patches on ``nn.Module``, the wrapped functions, the patcher, the metadata.

torch keeps all of it in variables of the process (:data:`.._torch.fx.FX_GLOBALS`). Here the variables become
per-thread, and what a trace patches into shared places (the methods of ``nn.Module``, functions such as
``math.sqrt`` in a module's dictionary) becomes a slot: something that stands in the place while *any* thread
has it patched, and that acts for the threads that trace alone. Traces may therefore overlap and end in any order.
No trace waits for another.
"""

from __future__ import annotations

import ast
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from .._patching import rewriting, thread_names
from .._patching.families import Part
from .._patching.patches import AttributePatch, CodePatch, Patch
from .._patching.thread_globals import thread_local_globals
from .._patching.thread_modules import ModuleOfThreads
from .._torch import dynamo
from .._torch import fx as torch_fx
from . import slots
from .module_slots import ModuleByThread
from .slot_kinds import plain_function


class _Local(threading.local):
    """The per-thread values of FX's global variables; a thread begins with what the module begins with."""

    # In the instance: Dynamo guards on what its dictionary has, which a first assignment would change.
    def __init__(self) -> None:
        vars(self).update(torch_fx.initial_values() | torch_fx.initial_tables())


# In the class: a signal handler may come in the middle of a thread's first use.
for _name, _value in torch_fx.initial_values().items():
    setattr(_Local, _name, _value)

local: Any = _Local()


def _patched_patch(
    self: Any, frame_dict: dict[str, Any], name: str, new_fn: Callable[..., Any], deduplicate: bool = True
) -> None:
    """Replaces ``_Patcher.patch``: an entry of a module's dictionary."""
    # Functions that FX puts there act on Proxy arguments only: one for all threads is enough.
    record = slots.SlotPatch(frame_dict, name, new_fn, shared=deduplicate)
    self.patches_made.append(record)
    record.patch()


def _patched_patch_method(
    self: Any, cls: type, name: str, new_fn: Callable[..., Any], deduplicate: bool = True
) -> None:
    """Replaces ``_Patcher.patch_method``: an attribute of a class, such as ``nn.Module.__call__``."""
    record = slots.SlotPatch(cls, name, new_fn, shared=deduplicate)
    self.patches_made.append(record)
    record.patch()


def _patched_wrapping(original: Callable[[Any], None]) -> Callable[[Any], None]:
    """Returns what replaces ``_patch_wrapped_functions``: nothing for ``make_fx``, and so for every AOT compile.

    The wrappers stand in shared dictionaries, where the guards of other threads' compiled code see them.
    """

    def wrapping(patcher: Any) -> None:
        tracer = sys._getframe(1).f_locals.get("self")
        if getattr(local, torch_fx.MAKE_FX_TRACER) is None or not torch_fx.traces_with_tensors(tracer):
            original(patcher)

    return wrapping


class _SeeThrough(ast.NodeTransformer):
    """Turns ``id(value)`` into ``__safecompile_id__(value)``, and goes through a copy of the dictionary.

    Dynamo puts what it compiles into the same dictionary, whose size must not change meanwhile. A tuple of all items
    would not do: one is made for each, where Python 3.11 may collect garbage, and so lose the GIL.
    """

    changed = False

    def visit_For(self, node: ast.For) -> ast.AST:
        self.generic_visit(node)
        if not ast.unparse(node.iter).endswith(".items()"):
            return node
        dictionary: Any = node.iter.func  # type: ignore[attr-defined]
        copied: Any = ast.parse("it.copy()", mode="eval").body
        copied.func.value = dictionary.value
        dictionary.value = rewriting.located(copied, dictionary.value)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "id":
            node.func.id, self.changed = "__safecompile_id__", True
        return node


class _AutogradOnThisThread(ast.NodeTransformer):
    """Puts ``yield`` into ``with __safecompile_autograd__():``, so that a trace keeps autograd on its thread.

    Autograd's workers would see another thread's tracing state. Not done at ``Tracer.trace``, which Dynamo replaces.
    """

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        if not isinstance(node.value, ast.Yield):
            return node
        manager = ast.parse("with __safecompile_autograd__():\n    pass").body[0]
        manager.body = [node]  # type: ignore[attr-defined]
        return rewriting.located(manager, node)


def patches_of_symbolic_trace(module: ModuleType) -> list[Patch]:
    """Returns the patches for the module of FX's traces; changes nothing."""
    patcher, searching, in_trace = torch_fx.parts_of_a_trace(module)
    see_through = _SeeThrough()
    search = rewriting.recompiled(searching, see_through.visit)
    if not see_through.changed:
        msg = f"a call of id() in {searching.__qualname__}"
        raise LookupError(msg)
    names, optional = torch_fx.FX_GLOBALS[module.__name__]
    change = thread_names.ThreadLocalNames([*names, *optional], flags=[torch_fx.FX_FLAG])
    entering = rewriting.recompiled(in_trace, lambda node: _AutogradOnThisThread().visit(change.visit(node)))
    return [
        AttributePatch(module, "__safecompile_autograd__", dynamo.autograd_on_this_thread, new=True),
        *(one for one in patches_of_globals(module) if getattr(one, "function", None) is not in_trace),
        CodePatch(in_trace, entering),
        AttributePatch(module, "__safecompile_id__", slots.original_id, new=True),
        CodePatch(searching, search),
        AttributePatch(module, torch_fx.FX_WRAPPING, _patched_wrapping(vars(module)[torch_fx.FX_WRAPPING])),
        AttributePatch(patcher, "patch", _patched_patch),
        AttributePatch(patcher, "patch_method", _patched_patch_method),
        # What a trace calls when it means the original: that function dispatches while somebody traces.
        *(AttributePatch(module, name, plain_function(vars(module)[name])) for name in torch_fx.FX_ORIGINALS),
    ]


class _AnyModule(ast.NodeTransformer):
    """Turns ``istype(value, (types.ModuleType, …))`` into ``isinstance(…)``."""

    changed = False

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        names = {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}
        if isinstance(node.func, ast.Name) and node.func.id == "istype" and "ModuleType" in names:
            node.func.id, self.changed = "isinstance", True
        return node


def patches_of_symbolic_convert(module: ModuleType) -> list[Patch]:
    """Returns the patch for an ``import math`` in code that Dynamo traces beside a symbolic trace; changes nothing."""
    any_module = _AnyModule()
    code = rewriting.recompiled(module.InstructionTranslatorBase.IMPORT_NAME, any_module.visit)
    # torch 2.7-2.10: exact type; isinstance since. Drop when min torch > 2.10.
    return [CodePatch(module.InstructionTranslatorBase.IMPORT_NAME, code)] if any_module.changed else []


def patches_of_builder(module: ModuleType) -> list[Patch]:
    """Returns the patch that has Dynamo take modules of other classes for modules; changes nothing."""
    builder = module.SourcelessBuilder
    handlers = vars(builder)[torch_fx.TYPE_HANDLERS]
    if ModuleType not in handlers:
        msg = f"{module.__name__}.SourcelessBuilder's handler of modules"
        raise LookupError(msg)
    more = {**handlers, ModuleByThread: handlers[ModuleType], ModuleOfThreads: handlers[ModuleType]}
    return [AttributePatch(builder, torch_fx.TYPE_HANDLERS, more)]


def patches_of_globals(module: ModuleType) -> list[Patch]:
    """Returns the patches for another module that keeps FX tracing state; changes nothing."""
    names, optional = torch_fx.FX_GLOBALS[module.__name__]
    return thread_local_globals(module, names, local, optional=optional, flags=[torch_fx.FX_FLAG])


PARTS: Final = (
    Part("fx", torch_fx.SYMBOLIC_TRACE, patches_of_symbolic_trace),
    *(
        Part("fx", one, patches_of_globals)
        for one in (torch_fx.TRACEBACK, torch_fx.PROXY_TENSOR, torch_fx.LAZY_GRAPH_MODULE)
    ),
    Part("fx", torch_fx.SYMBOLIC_CONVERT, patches_of_symbolic_convert),
    Part("fx", torch_fx.BUILDER, patches_of_builder),
)

"""``torch.export``, ``torch.export.load`` and custom operators' contexts: each thread has its own of what they note.

In plain torch it is noted for the process: of two exports at once one fails, as does the second of two loads, and a
fake implementation that asks for its context gets that of another thread's.
"""

from __future__ import annotations

import ast
import threading
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any, Final

from .._patching import rewriting
from .._patching.families import Part
from .._patching.patches import AttributePatch, CodePatch, Patch
from .._patching.thread_globals import thread_local_globals
from .._torch import export as host
from . import slots
from .slot_kinds import plain_function

_HOOK = "__safecompile_hook__"


class _Local(threading.local):
    """The per-thread values; a thread begins with what a process begins with."""

    def __init__(self) -> None:
        vars(self).update(host.initial_values())


# In the class: a signal handler may come in the middle of a thread's first use.
for _name, _value in host.initial_values().items():
    setattr(_Local, _name, _value)

local: Any = _Local()


def patches_of_trace(module: ModuleType) -> list[Patch]:
    """Returns the patches for what an export knows of its module; changes nothing."""
    return thread_local_globals(module, host.OF_AN_EXPORT, local)


def patches_of_serialize(module: ModuleType) -> list[Patch]:
    """Returns the patches for ``torch.export.load``; changes nothing."""
    return thread_local_globals(module, [host.DESERIALIZER], local)


def patches_of_fake_impl(module: ModuleType) -> list[Patch]:
    """Returns the patches for the contexts of fake implementations; changes nothing."""
    setattr(_Local, host.CONTEXT_GETTER, staticmethod(host.context_getter(module)))
    return thread_local_globals(module, [host.CONTEXT_GETTER], local)


class _HookOfAThread:
    """A hook that sees the buffers which its own thread registers, in the form of torch's handle of a hook for all."""

    def __init__(self, hook: Callable[..., Any]) -> None:
        owner, name, hooks = host.registering_of_buffers()
        original = plain_function(vars(owner)[name])
        space = {**original.__globals__, hooks: {**original.__globals__[hooks], self: hook}}
        own = FunctionType(original.__code__, space, name, original.__defaults__)
        self.patch = slots.SlotPatch(owner, name, own, shared=False)
        self.patch.patch()

    def remove(self) -> None:
        """Takes the hook away."""
        self.patch.revert()


class _ForThisThread(ast.NodeTransformer):
    """Turns torch's registration of a hook for all modules into one for this thread."""

    changed = 0

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if ast.unparse(node.func).endswith(host.REGISTERING_A_HOOK):
            self.changed += 1
            node.func = ast.copy_location(ast.Name(_HOOK, ast.Load()), node.func)
        return node


def patches_of_aot_utils(module: ModuleType) -> list[Patch]:
    """Returns the patches for the hook by which a trace sees buffers that are assigned; changes nothing."""
    host.registering_of_buffers()
    function = host.watching_buffers(module)
    code = rewriting.changed(function, _ForThisThread(), f"one call of {host.REGISTERING_A_HOOK}")
    return [AttributePatch(module, _HOOK, _HookOfAThread, new=True), CodePatch(function, code)]


PARTS: Final = (
    Part("export", host.TRACE, patches_of_trace),
    Part("export", host.SERIALIZE, patches_of_serialize),
    Part("custom operators", host.FAKE_IMPL, patches_of_fake_impl),
    Part("hooks", host.AOT_UTILS, patches_of_aot_utils),
)

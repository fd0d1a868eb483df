"""FX tracing, per thread: the flag, the patches on ``nn.Module``, the wrapped functions, the patcher, the metadata.

torch keeps all of it in variables of the process (:data:`_torch.FX_GLOBALS`). Here the variables become
per-thread, and what a trace patches into shared places (the methods of ``nn.Module``, functions such as
``math.sqrt`` in a module's dictionary) becomes a slot: something that stands in the place while *any* thread
has it patched, and that acts for the threads that trace alone. Traces may therefore overlap and end in any order.
No trace waits for another.
"""

from __future__ import annotations

import ast
import functools
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from . import _rewrite, _torch
from ._patches import AttributePatch, CodePatch, Patch, thread_local_globals


class _Local(threading.local):
    """The per-thread values of FX's global variables; a thread begins with what the module begins with."""

    _is_fx_tracing_flag = False
    CURRENT_PATCHER = None
    _CURRENT_MAKE_FX_TRACER = None
    _use_lazy_graph_module_flag = False
    should_preserve_node_meta = False
    _should_preserve_node_meta = False
    current_replay_node = None

    def __init__(self) -> None:
        self.current_meta: dict[str, Any] = {}
        self.CURRENT_DECOMPOSITION_TABLE: dict[Any, Any] = {}


local = _Local()

# A leaf lock around the bookkeeping of slots: held for a few dictionary operations, while nothing of torch's or
# of the user's runs and no other lock is taken. Reentrant, since a finalizer may trace.
_bookkeeping = threading.RLock()

#: The slots that are in place, by (id of the class or dictionary, name). The slot keeps the owner alive, and is
#: in the table only while a thread traces. Guarded by _bookkeeping.
_slots: dict[tuple[int, str], _Slot] = {}

#: id of the function that stands in a slot -> id of the original; for the search for functions to wrap.
_originals: dict[int, int] = {}

_ABSENT = object()


class _Slot:
    """One place that traces patch: an attribute of a class, or an entry of a module's dictionary."""

    def __init__(self, owner: Any, name: str, shared: Callable[..., Any] | None) -> None:
        self.owner, self.name = owner, name
        self.is_class = isinstance(owner, type)
        self.original = (vars(owner) if self.is_class else owner).get(name, _ABSENT)
        self.stacks: dict[int, list[Callable[..., Any]]] = {}
        self.standing = shared if shared is not None else self._dispatcher()

    def _dispatcher(self) -> Callable[..., Any]:
        stacks, get_ident = self.stacks, threading.get_ident
        original: Any = getattr(self.owner, self.name) if self.is_class else self.original

        @functools.wraps(original)
        def dispatch(*args: Any, **kwargs: Any) -> Any:
            stack = stacks.get(get_ident())
            return (stack[-1] if stack else original)(*args, **kwargs)

        return dispatch

    def put(self, value: Any) -> None:
        if value is _ABSENT:
            if self.is_class:
                delattr(self.owner, self.name)
            else:
                del self.owner[self.name]
        elif self.is_class:
            setattr(self.owner, self.name, value)
        else:
            self.owner[self.name] = value


class _SlotPatch:
    """A patch of one trace, in the form that torch's ``_Patcher`` keeps in ``patches_made``."""

    def __init__(self, owner: Any, name: str, new: Callable[..., Any], *, shared: bool) -> None:
        self.owner, self.name, self.new, self.shared = owner, name, new, shared

    def patch(self) -> None:
        key = (id(self.owner), self.name)
        with _bookkeeping:
            slot = _slots.get(key)
            if slot is None:
                slot = _Slot(self.owner, self.name, self.new if self.shared else None)
                _slots[key] = slot
                _originals[id(slot.standing)] = id(slot.original)
                slot.put(slot.standing)
            slot.stacks.setdefault(threading.get_ident(), []).append(self.new)

    def revert(self) -> None:
        with _bookkeeping:
            slot = _slots.get((id(self.owner), self.name))
            stack = slot.stacks.get(threading.get_ident()) if slot is not None else None
            if slot is None or not stack or self.new not in stack:
                return
            stack.reverse()  # the innermost of equal patches
            stack.remove(self.new)
            stack.reverse()
            if not stack:
                del slot.stacks[threading.get_ident()]
            if not slot.stacks:
                _remove(slot)


def _remove(slot: _Slot) -> None:
    _slots.pop((id(slot.owner), slot.name), None)
    _originals.pop(id(slot.standing), None)
    slot.put(slot.original)


def after_fork_in_child() -> None:
    """Takes away what the parent's other threads have patched: they do not exist in the child."""
    global _bookkeeping
    _bookkeeping = threading.RLock()
    me = threading.get_ident()
    for slot in list(_slots.values()):
        for ident in [ident for ident in slot.stacks if ident != me]:
            del slot.stacks[ident]
        if not slot.stacks:
            _remove(slot)


def _patched_patch(
    self: Any, frame_dict: dict[str, Any], name: str, new_fn: Callable[..., Any], deduplicate: bool = True
) -> None:
    """Replaces ``_Patcher.patch``: an entry of a module's dictionary."""
    # Functions that FX puts there act on Proxy arguments only: one for all threads is enough.
    record = _SlotPatch(frame_dict, name, new_fn, shared=deduplicate)
    self.patches_made.append(record)
    record.patch()


def _patched_patch_method(
    self: Any, cls: type, name: str, new_fn: Callable[..., Any], deduplicate: bool = True
) -> None:
    """Replaces ``_Patcher.patch_method``: an attribute of a class, such as ``nn.Module.__call__``."""
    record = _SlotPatch(cls, name, new_fn, shared=deduplicate)
    self.patches_made.append(record)
    record.patch()


def original_id(value: Any) -> int:
    """Returns the ``id`` of what ``value`` stands for: what a module's dictionary holds while nobody traces."""
    return _originals.get(id(value), id(value))


class _SeeThrough(ast.NodeTransformer):
    """Turns ``id(value)`` into ``__safecompile_id__(value)``."""

    changed = False

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "id":
            node.func.id, self.changed = "__safecompile_id__", True
        return node


def patches_of_symbolic_trace(module: ModuleType) -> list[Patch]:
    """Returns the patches for ``torch.fx._symbolic_trace``; changes nothing."""
    patcher, tracer = module._Patcher, module.Tracer
    original_trace = tracer.trace

    @functools.wraps(original_trace)
    def _patched_trace(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Autograd stays on this thread: its workers would see another thread's tracing state.
        with _torch.autograd_on_this_thread():
            return original_trace(self, *args, **kwargs)

    see_through = _SeeThrough()
    search = _rewrite.recompiled(module._autowrap_check, see_through.visit)
    if not see_through.changed:
        msg = "a call of id() in _autowrap_check"
        raise LookupError(msg)
    return [
        *thread_local_globals(module, _torch.FX_GLOBALS[module.__name__], local),
        AttributePatch(module, "__safecompile_id__", original_id),
        CodePatch(module._autowrap_check, search),
        AttributePatch(patcher, "patch", _patched_patch),
        AttributePatch(patcher, "patch_method", _patched_patch_method),
        AttributePatch(tracer, "trace", _patched_trace),
    ]


def patches_of_globals(module: ModuleType) -> list[Patch]:
    """Returns the patches for another module that keeps FX tracing state; changes nothing."""
    return thread_local_globals(module, _torch.FX_GLOBALS[module.__name__], local)

"""The places that FX traces patch: each acts for the threads that trace, and is torch's own for all others.

A slot stands in its place while at least one thread has it patched. Traces may overlap and end in any order.
"""

from __future__ import annotations

import builtins
import dis
import functools
import threading
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

from .._common import forks
from .._patching import rewriting
from .module_slots import BuiltinSlot, ModuleSlot, module_in_c
from .slot_kinds import FunctionSlot, Slot, in_place, wraps

# A leaf lock around the bookkeeping of slots: held for a few dictionary operations, while nothing of torch's or
# of the user's runs and no other lock is taken. Reentrant, since a finalizer may trace.
_bookkeeping = threading.RLock()

#: id of the function that stands in a slot -> id of the original; for the search for functions to wrap.
_originals: dict[int, int] = {}


#: The function slots made so far, kept so that torch sees one dispatching code only. Guarded by _bookkeeping.
_function_slots: dict[tuple[type, str], FunctionSlot] = {}


#: The function that stands for each function that FX wraps, made once: guards of compiled code know it by identity.
#: The oldest go where there are too many. Guarded by _bookkeeping.
_standing: dict[int, tuple[Any, Callable[..., Any]]] = {}
_STANDING_AT_MOST = 256

#: Counts the changes of shared places, so that a compile can tell that its surroundings have moved.
changes = 0


def _slot_for(owner: Any, name: str, new: Callable[..., Any], *, shared: bool) -> Slot:
    if shared or not isinstance(owner, type):
        module = None if isinstance(owner, type) else module_in_c(owner)
        kind = Slot if module is None else BuiltinSlot if module is builtins else ModuleSlot
        slot = kind(owner if module is None else module, name, new)
        if wraps(new, slot):
            slot.standing = _known_by(slot, new)
        return slot
    if not isinstance(vars(owner).get(name), FunctionType):
        return Slot(owner, name, new)
    known = _function_slots.get((owner, name))
    if known is None or known.function is not vars(owner)[name] or known.function.__code__ is not known.code:
        try:
            known = _function_slots[owner, name] = FunctionSlot(owner, name)
        except rewriting.RewriteError:  # somebody's own function in the place of torch's
            return Slot(owner, name, _by_thread(vars(owner)[name], owner, name))
    return known


def _known_by(slot: Slot, new: Callable[..., Any]) -> Callable[..., Any]:
    """Returns FX's one wrapper of a function; in the place of the first one a slot is made."""
    found = _standing.setdefault(id(slot.original), (slot.original, new))[1]
    while len(_standing) > _STANDING_AT_MOST:
        del _standing[next(iter(_standing))]
    return found


def _by_thread(original: Callable[..., Any], owner: type, name: str) -> Callable[..., Any]:
    """Returns a method that calls the innermost patch of its thread, or the original."""

    @functools.wraps(original)
    def dispatch(*args: Any, **kwargs: Any) -> Any:
        slot = in_place.get((id(owner), name))
        stack = slot.stacks.get(threading.get_ident()) if slot is not None else None
        return (stack[-1] if stack else original)(*args, **kwargs)

    return dispatch


class SlotPatch:
    """A patch of one trace, in the form that torch's ``_Patcher`` keeps in ``patches_made``."""

    def __init__(self, owner: Any, name: str, new: Callable[..., Any], *, shared: bool) -> None:
        self.owner, self.name, self.new, self.shared = owner, name, new, shared

    def patch(self) -> None:
        global changes
        key = (id(self.owner), self.name)
        with _bookkeeping:
            slot = in_place.get(key)
            if slot is None:
                slot = in_place[key] = _slot_for(self.owner, self.name, self.new, shared=self.shared)
                if not isinstance(slot, ModuleSlot) or wraps(self.new, slot):
                    _originals[id(slot.standing)] = id(slot.original)
                changes += 1
                slot.stand()
            elif isinstance(slot, ModuleSlot) and wraps(self.new, slot):
                slot.standing = _known_by(slot, self.new)
            slot.stacks.setdefault(threading.get_ident(), []).append(self.new)

    def revert(self) -> None:
        with _bookkeeping:
            slot = in_place.get((id(self.owner), self.name))
            stack = slot.stacks.get(threading.get_ident()) if slot is not None else None
            if slot is None or not stack or self.new not in stack:
                return
            stack.reverse()  # the innermost of equal patches
            stack.remove(self.new)
            stack.reverse()
            if not stack:
                del slot.stacks[threading.get_ident()]
                if isinstance(slot, ModuleSlot):
                    slot.assigned.pop(threading.get_ident(), None)
            if not slot.stacks:
                _remove(slot)


def _remove(slot: Slot) -> None:
    global changes
    changes += 1
    in_place.pop((id(slot.owner), slot.name), None)
    if not any(other.standing is slot.standing for other in in_place.values()):
        _originals.pop(id(slot.standing), None)
    slot.clear()


@forks.in_child
def after_fork_in_child() -> None:
    """Takes away what the parent's other threads have patched: they do not exist in the child."""
    global _bookkeeping
    _bookkeeping = threading.RLock()
    me = threading.get_ident()
    for slot in list(in_place.values()):
        for ident in [ident for ident in slot.stacks if ident != me]:
            del slot.stacks[ident]
        if not slot.stacks:
            _remove(slot)


def wrapped_for_another_thread(code: CodeType, dictionary: dict[str, Any]) -> str | None:
    """Returns a name used by ``code`` that only other threads' traces have wrapped in its globals, or None."""
    me = threading.get_ident()
    names = {
        name for (owner, name), slot in in_place.copy().items() if owner == id(dictionary) and me not in slot.stacks
    }
    used = {one.argval for one in dis.get_instructions(code) if one.opname == "LOAD_GLOBAL"} if names else set()
    return min(names & used, default=None)


def forget() -> None:
    """Takes away what the slots have left in torch's modules; for the end of an uninstallation."""
    with _bookkeeping:
        if not in_place:
            for slot in _function_slots.values():
                slot.leave()
            _function_slots.clear()
            _standing.clear()


def original_id(value: Any) -> int:
    """Returns the ``id`` of what ``value`` stands for: what a module's dictionary holds while nobody traces."""
    return _originals.get(id(value), id(value))

"""The places that FX traces patch: each acts for the threads that trace, and is torch's own for all others.

A slot stands in its place while at least one thread has it patched. Traces may overlap and end in any order.
"""

from __future__ import annotations

import builtins
import dis
import functools
import importlib
import sys
import threading
from collections.abc import Callable
from importlib.machinery import BuiltinImporter, ExtensionFileLoader
from types import CodeType, FunctionType, ModuleType
from typing import Any

from .._common import forks
from .._patching import rewriting
from .slot_kinds import FunctionSlot, Slot

# A leaf lock around the bookkeeping of slots: held for a few dictionary operations, while nothing of torch's or
# of the user's runs and no other lock is taken. Reentrant, since a finalizer may trace.
_bookkeeping = threading.RLock()

#: The slots that are in place, by (id of the class or dictionary, name). The slot keeps the owner alive, and is
#: in the table only while a thread traces. Guarded by _bookkeeping.
_slots: dict[tuple[int, str], Slot] = {}

#: id of the function that stands in a slot -> id of the original; for the search for functions to wrap.
_originals: dict[int, int] = {}


class _ModuleSlot(Slot):
    """A function of a module in C, such as ``math.sqrt``: the entry stays, and the module looks up by thread.

    Dynamo guards on the identity of such a function, in the module's dictionary. The dictionary of a module in C is the
    globals of no Python code, so an attribute look-up is the only way to the entry.
    """

    def __init__(self, module: ModuleType, name: str, standing: Callable[..., Any]) -> None:
        super().__init__(vars(module), name, standing)
        self.module = module
        self.assigned: dict[int, Any] = {}  # by thread: what the traced code itself has put there

    def value_for(self, thread: int) -> Any:
        """Returns what a thread that traces finds."""
        top = self.stacks[thread][-1]
        return self.assigned.get(thread, self.standing if _wraps(top, self) else top)

    def stand(self) -> None:
        self.module.__class__ = ModuleByThread

    def clear(self) -> None:
        if not any(isinstance(slot, _ModuleSlot) and slot.module is self.module for slot in _slots.values()):
            self.module.__class__ = ModuleType


class _BuiltinSlot(_ModuleSlot):
    """A function of Python's ``builtins``: code finds it in the dictionary, where one that tells by thread stands.

    Dynamo looks such names up in the module (:mod:`.overridden_functions`), and finds the original.
    """

    def __init__(self, module: ModuleType, name: str, standing: Callable[..., Any]) -> None:
        super().__init__(module, name, standing)
        self.telling = _telling_by_thread(self.original, self.stacks, self.assigned)

    def stand(self) -> None:
        super().stand()
        self._put(self.telling)

    def clear(self) -> None:
        if self.owner[self.name] is self.telling:  # else somebody has replaced it meanwhile
            self._put(self.original)
        super().clear()


def _telling_by_thread(
    original: Callable[..., Any], stacks: dict[int, list[Callable[..., Any]]], assigned: dict[int, Any]
) -> Callable[..., Any]:
    get_ident = threading.get_ident

    @functools.wraps(original)
    def tell(*args: Any, **kwargs: Any) -> Any:
        me = get_ident()
        stack = stacks.get(me)
        return (assigned.get(me, stack[-1]) if stack else original)(*args, **kwargs)

    return tell


_TELLING = _telling_by_thread(len, {}, {}).__code__


class ModuleByThread(ModuleType):
    """The class of a module in C while a thread traces."""

    def __getattribute__(self, name: str) -> Any:
        get = ModuleType.__getattribute__
        slot = _slots.get((id(get(self, "__dict__")), name))
        me = threading.get_ident()
        if isinstance(slot, _ModuleSlot) and me in slot.stacks:
            return slot.value_for(me)
        value: Any = get(self, name)
        # The entry of a builtin tells by thread, also if it has come since the first line.
        return vars(value)["__wrapped__"] if type(value) is FunctionType and value.__code__ is _TELLING else value

    def __setattr__(self, name: str, value: Any) -> None:
        slot, me = _slots.get((id(vars(self)), name)), threading.get_ident()
        if isinstance(slot, _ModuleSlot) and me in slot.stacks:
            if type(value) is FunctionType and value.__code__ is _TELLING:  # from the dictionary: a mock ends
                slot.assigned.pop(me, None)
            else:
                slot.assigned[me] = value  # until its trace ends, when torch brings the original back
        else:
            super().__setattr__(name, value)

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return importlib.import_module, (self.__name__,)


def _module_in_c(dictionary: dict[str, Any]) -> ModuleType | None:
    """Returns the module in C whose dictionary this is, or None."""
    module = sys.modules.get(str(dictionary.get("__name__")))
    if module is None or type(module) not in (ModuleType, ModuleByThread) or vars(module) is not dictionary:
        return None
    loader = getattr(module.__spec__, "loader", None)
    return module if loader is BuiltinImporter or isinstance(loader, ExtensionFileLoader) else None


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
        module = None if isinstance(owner, type) else _module_in_c(owner)
        kind = Slot if module is None else _BuiltinSlot if module is builtins else _ModuleSlot
        slot = kind(owner if module is None else module, name, new)
        if _wraps(new, slot):
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


def _wraps(new: Callable[..., Any], slot: Slot) -> bool:
    """Tells whether this is FX's wrapper of what stands there, not somebody's own replacement."""
    return getattr(new, "__wrapped__", None) is slot.original


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
        slot = _slots.get((id(owner), name))
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
            slot = _slots.get(key)
            if slot is None:
                slot = _slots[key] = _slot_for(self.owner, self.name, self.new, shared=self.shared)
                if not isinstance(slot, _ModuleSlot) or _wraps(self.new, slot):
                    _originals[id(slot.standing)] = id(slot.original)
                changes += 1
                slot.stand()
            elif isinstance(slot, _ModuleSlot) and _wraps(self.new, slot):
                slot.standing = _known_by(slot, self.new)
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
                if isinstance(slot, _ModuleSlot):
                    slot.assigned.pop(threading.get_ident(), None)
            if not slot.stacks:
                _remove(slot)


def _remove(slot: Slot) -> None:
    global changes
    changes += 1
    _slots.pop((id(slot.owner), slot.name), None)
    if not any(other.standing is slot.standing for other in _slots.values()):
        _originals.pop(id(slot.standing), None)
    slot.clear()


@forks.in_child
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


def wrapped_for_another_thread(code: CodeType, dictionary: dict[str, Any]) -> str | None:
    """Returns a name used by ``code`` that only other threads' traces have wrapped in its globals, or None."""
    me = threading.get_ident()
    names = {name for (owner, name), slot in list(_slots.items()) if owner == id(dictionary) and me not in slot.stacks}
    used = {one.argval for one in dis.get_instructions(code) if one.opname == "LOAD_GLOBAL"} if names else set()
    return min(names & used, default=None)


def forget() -> None:
    """Takes away what the slots have left in torch's modules; for the end of an uninstallation."""
    with _bookkeeping:
        if not _slots:
            for slot in _function_slots.values():
                slot.leave()
            _function_slots.clear()
            _standing.clear()


def original_id(value: Any) -> int:
    """Returns the ``id`` of what ``value`` stands for: what a module's dictionary holds while nobody traces."""
    return _originals.get(id(value), id(value))

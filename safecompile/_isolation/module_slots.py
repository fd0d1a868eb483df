"""Slots for the functions of modules in C, such as ``math.sqrt``: the module looks its names up by thread."""

from __future__ import annotations

import functools
import importlib
import sys
import threading
from collections.abc import Callable
from importlib.machinery import BuiltinImporter, ExtensionFileLoader
from types import FunctionType, ModuleType
from typing import Any

from .slot_kinds import Slot, in_place, wraps


class ModuleSlot(Slot):
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
        return self.assigned.get(thread, self.standing if wraps(top, self) else top)

    def stand(self) -> None:
        self.module.__class__ = ModuleByThread

    def clear(self) -> None:
        if not any(isinstance(slot, ModuleSlot) and slot.module is self.module for slot in in_place.values()):
            self.module.__class__ = ModuleType


class BuiltinSlot(ModuleSlot):
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
        slot = in_place.get((id(get(self, "__dict__")), name))
        me = threading.get_ident()
        if isinstance(slot, ModuleSlot) and me in slot.stacks:
            return slot.value_for(me)
        value: Any = get(self, name)
        # The entry of a builtin tells by thread, also if it has come since the first line.
        return vars(value)["__wrapped__"] if type(value) is FunctionType and value.__code__ is _TELLING else value

    def __setattr__(self, name: str, value: Any) -> None:
        slot, me = in_place.get((id(vars(self)), name)), threading.get_ident()
        if isinstance(slot, ModuleSlot) and me in slot.stacks:
            if type(value) is FunctionType and value.__code__ is _TELLING:  # from the dictionary: a mock ends
                slot.assigned.pop(me, None)
            else:
                slot.assigned[me] = value  # until its trace ends, when torch brings the original back
        else:
            super().__setattr__(name, value)

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return importlib.import_module, (self.__name__,)


def module_in_c(dictionary: dict[str, Any]) -> ModuleType | None:
    """Returns the module in C whose dictionary this is, or None."""
    module = sys.modules.get(str(dictionary.get("__name__")))
    if module is None or type(module) not in (ModuleType, ModuleByThread) or vars(module) is not dictionary:
        return None
    loader = getattr(module.__spec__, "loader", None)
    return module if loader is BuiltinImporter or isinstance(loader, ExtensionFileLoader) else None

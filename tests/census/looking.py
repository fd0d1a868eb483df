"""All that a thread can see of this process's Python state: what of it is another than before.

A place has a name: ``module.variable``, ``module.Class.attribute``, ``module.function.__code__``. What hangs deeper is
named after the way there (``module.variable.attribute``), in containers and further down after its class
(``module.Class().attribute``). ``…[]`` is the contents of a container.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import operator
import re
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from .words import COUNT, READABLE, Words, offset_of

#: Modules that are looked at in depth. Of all others only the variables are.
DEEP = ("torch", "functorch", "torchgen")
DEEP_OF_PYTHON = (
    *("builtins", "contextlib", "copy", "copyreg", "functools", "gc", "inspect", "linecache", "logging", "math"),
    *("operator", "os", "pickle", "random", "sys", "threading", "types", "typing", "warnings", "weakref"),
)
NOT_LOOKED_AT = ("safecompile", "tests", "__main__")
SIMPLE = (bool, int, float, complex, str, bytes, type(None))
SEQUENCES = (list, deque, set)
WEAK = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet)
#: Of a module and a class: what Python makes itself.
NOT_NAMES = frozenset(("__dict__", "__weakref__", "__doc__", "__builtins__", "__warningregistry__"))
#: What Python notes while something prints itself, or is gone through: ``reprlib`` by thread, ``weakref`` by object.
NOTES = frozenset(("repr_running", "_iterating", "_pending_removals"))
DEPTH = 7
#: What belongs to one graph or one trace: nobody else has it.
OWNED = ("Node", "Graph", "GraphModule", "GraphModule.__new__.<locals>.GraphModuleImpl", "FakeTensorMode", "ShapeEnv")
ASSIGNMENT = re.compile(r"^(\w+)[ \t]*(?::[^=\n]+)?=(?!=)", re.MULTILINE)
#: A new variable with a number in its name, such as those of Dynamo's, is told with ``N``: the next has another number.
NUMBERED = re.compile(r"[0-9a-f]{8}(?:_[0-9a-f]{4}){3}_[0-9a-f]{12}|\d+")
_is: Callable[[Any, Any], bool] = operator.is_


def _root(module_name: str) -> str:
    return module_name.partition(".")[0]


def _is_deep(module_name: Any) -> bool:
    return isinstance(module_name, str) and (_root(module_name) in DEEP or module_name in DEEP_OF_PYTHON)


@functools.lru_cache(maxsize=1)
def assigned() -> frozenset[str]:
    """Returns the names of torch's variables, each with the module whose file assigns it."""
    found = set()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if _is_deep(name) and file and file.endswith(".py") and Path(file).exists():
            text = Path(file).read_text(errors="replace")
            found.update(f"{name}.{match[1]}" for match in ASSIGNMENT.finditer(text))
    return frozenset(found)


def same(a: Any, b: Any) -> bool:
    """Tells whether a reader could not tell two values apart; calls nothing of theirs."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if type(a) in (*SIMPLE, types.MethodType, types.BuiltinMethodType):
        return bool(a == b) or repr(a) == repr(b)
    if type(a) is functools.partial:
        return same((a.func, a.args), (b.func, b.args)) and a.keywords == b.keywords
    if type(a) is tuple:
        return len(a) == len(b) and all(map(same, a, b))
    return False


def told(value: Any) -> str:
    """Returns a value in a few words; calls nothing of it."""
    kind = type(value)
    if kind in SIMPLE or value is ...:
        return repr(value)[:60]
    if issubclass(kind, type) or kind is types.FunctionType:
        return f"{value.__module__}.{value.__qualname__}"
    length = f" of {len(value)}" if kind in (dict, list, set, tuple) else ""
    return f"{kind.__module__}.{kind.__qualname__}{length}"


class Names:
    """A dictionary: the variables of a module, the attributes of a class or an object, a container."""

    __slots__ = ("contents", "keys", "name", "space", "values")

    def __init__(self, name: str, space: Any, *, contents: bool = False) -> None:
        self.name, self.space, self.contents = name, space, contents
        self.renew()

    def renew(self) -> None:
        """Takes what is there now for what is expected."""
        self.keys, self.values = list(self.space), list(self.space.values())

    def is_as_before(self) -> bool:
        """Tells so of all names at once."""
        space = self.space
        return len(space) == len(self.values) and all(map(_is, space.values(), self.values))

    def differences(self) -> Iterator[tuple[str, str, str]]:
        """Yields the place, and what is there before and now."""
        now, before = dict(self.space), dict(zip(self.keys, self.values, strict=True))
        for key in [*before, *(k for k in now if k not in before)]:
            a, b = before.get(key, Ellipsis), now.get(key, Ellipsis)
            if same(a, b) or (not self.contents and key in NOT_NAMES):
                continue
            if self.contents:
                yield f"{self.name}[]", f"{len(before)}: {told(key)}: {told(a)}", f"{len(now)}: {told(b)}"
                return
            name = key if a is not ... else NUMBERED.sub("N", str(key))
            yield f"{self.name}.{name}", told(a), told(b)


class Items:
    """A list, a set or a deque."""

    __slots__ = ("items", "name", "values")

    def __init__(self, name: str, items: Any) -> None:
        self.name, self.items = name, items
        self.renew()

    def renew(self) -> None:
        self.values = list(self.items)

    def is_as_before(self) -> bool:
        return len(self.items) == len(self.values) and all(map(_is, self.items, self.values))

    def differences(self) -> Iterator[tuple[str, str, str]]:
        now = list(self.items)
        if len(now) != len(self.values) or not all(map(same, now, self.values)):
            yield f"{self.name}[]", told(self.values), told(now)


class Attribute:
    """One attribute in C of many objects: the code of functions, the cells of closures, slots."""

    def __init__(self, suffix: str, read: Callable[[Any], Any]) -> None:
        self.suffix, self.read = suffix, read
        self.names: list[str] = []
        self.owners: list[Any] = []
        self._words: Words | None = None

    def add(self, name: str, owner: Any) -> None:
        """Adds an object, if it has the attribute now."""
        if self._now(owner) is not ...:
            self.names.append(name)
            self.owners.append(owner)

    def renew(self) -> None:
        """Takes what is there now for what is expected."""
        self.values = [self._now(owner) for owner in self.owners]
        self._changed: set[int] = set()
        if READABLE and self.owners and type(self.read) is operator.attrgetter:
            self._words = Words(self.owners, offset_of(self.owners[0], self.values[0]))

    def _now(self, owner: Any) -> Any:
        try:
            return self.read(owner)
        except (AttributeError, ValueError):
            return ...

    def is_as_before(self) -> bool:
        """Tells so of all objects at once."""
        if self._words is not None:
            self._changed.update(self._words.written())
            return not self._changed
        try:
            return all(map(_is, map(self.read, self.owners), self.values))
        except (AttributeError, ValueError):
            return False

    def differences(self) -> Iterator[tuple[str, str, str]]:
        """Yields the place, and what is there before and now."""
        for i in range(len(self.owners)) if self._words is None else sorted(self._changed):
            now = self._now(self.owners[i])
            if not same(self.values[i], now):
                yield f"{self.names[i]}{self.suffix}", told(self.values[i]), told(now)


class Landscape:
    """Every place that can be reached from the modules that are imported now."""

    def __init__(self) -> None:
        self.seen: dict[int, Any] = {}  # keeps them alive, so that no number is used twice
        self.code = Attribute(".__code__", operator.attrgetter("__code__"))
        self.cells = Attribute("", operator.attrgetter("cell_contents"))
        self.slots: dict[Any, Attribute] = {}
        self.places: list[Any] = []
        self._queue: Any = []
        self._walk()
        self.renew()

    def _walk(self) -> None:
        modules = [(n, m) for n, m in list(sys.modules.items()) if m is not None and _root(n) not in NOT_LOOKED_AT]
        # What several modules name is named after the one whose file assigns it, else the one nearest to the top.
        modules.sort(key=lambda one: (one[0].count("."), one[0]))
        for name, module in modules:
            self._module(name, module)
        queue = self._queue = deque(sorted(self._queue, key=lambda one: one[0] not in assigned()))
        while queue:
            self._look(*queue.popleft())

    def extend(self) -> None:
        """Adds what has come since, and takes what is there now for what is expected."""
        for place in [*self._written(), *self._grown(closely=True)]:
            contents = place.name + "[]" if isinstance(place, Items) or place.contents else ""
            items = place.space.items() if isinstance(place, Names) else enumerate(place.items)
            self._queue.extend(
                (contents or f"{place.name}.{key}", value, 2) for key, value in list(items) if key not in NOT_NAMES
            )
        self._walk()
        self.renew()

    def _module(self, name: str, module: Any) -> None:
        space = getattr(module, "__dict__", None)
        if id(module) in self.seen or not isinstance(space, dict):
            return
        self.seen[id(module)] = module
        self.places.append(Names(name, space))
        if _is_deep(name):
            self._queue.extend((f"{name}.{key}", value, 1) for key, value in space.items() if key not in NOT_NAMES)

    def _look(self, name: str, value: Any, depth: int) -> None:
        kind = type(value)  # isinstance() would ask the value, and deprecated ones warn then
        if kind in SIMPLE or id(value) in self.seen or depth > DEPTH or issubclass(kind, types.ModuleType):
            return
        self.seen[id(value)] = value
        if issubclass(kind, type):
            if _is_deep(value.__module__):
                self._class(f"{value.__module__}.{value.__qualname__}", value, depth)
        elif kind is types.FunctionType:
            self._function(value, depth)
        elif issubclass(kind, dict | types.MappingProxyType):
            self._children(name, Names(name, value, contents=True), depth)
        elif issubclass(kind, SEQUENCES):
            self.places.append(Items(name, value))
            self._elements(name, value, depth)
        elif issubclass(kind, tuple | frozenset):
            self._elements(name, value, depth)
        elif kind in (staticmethod, classmethod, types.MethodType):
            self._look(name, value.__func__, depth)
        elif kind is property:
            self._elements(name, (value.fget, value.fset), depth)
        elif kind is functools.partial:
            self._elements(name, (value.func, *value.args, *value.keywords.values()), depth)
        elif (_is_deep(kind.__module__) and kind.__qualname__ not in OWNED) or issubclass(kind, WEAK):
            self._object(name, value, depth)

    def _object(self, name: str, value: Any, depth: int) -> None:
        kind = type(value)
        if "[]" in name or depth > 3 or kind is logging.Logger:  # of these there is one in each file
            name = f"{kind.__module__}.{kind.__qualname__}()"
        self._queue.append((name, kind, depth + 1))
        for base in kind.__mro__:
            for key, member in list(vars(base).items()):
                if type(member) is types.MemberDescriptorType and kind.__flags__ & (1 << 9):  # a class of Python's
                    slot = self.slots.setdefault(member, Attribute(f".{key}", member.__get__))
                    slot.add(name, value)
                    self._queue.append((f"{name}.{key}", getattr(value, key, None), depth + 1))
        try:
            space = object.__getattribute__(value, "__dict__")
        except AttributeError:
            return
        if isinstance(space, dict):
            self._children(name, Names(name, space), depth)

    def _children(self, name: str, place: Names, depth: int) -> None:
        self.places.append(place)
        for key, value in zip(place.keys, place.values, strict=True):
            if place.contents or key not in NOTES:
                self._queue.append((f"{name}[]" if place.contents else f"{name}.{key}", value, depth + 1))

    def _class(self, name: str, value: type, depth: int) -> None:
        self.places.append(Names(name, value.__dict__))
        self._queue.extend((f"{name}.{k}", v, depth + 1) for k, v in vars(value).items() if k not in NOT_NAMES)

    def _function(self, value: Any, depth: int) -> None:
        name = f"{value.__module__}.{value.__qualname__}"
        self.code.add(name, value)
        if value.__dict__:
            self._children(name, Names(name, value.__dict__), depth)
        for key, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            if id(cell) not in self.seen and _is_deep(value.__module__) and key not in NOTES:
                self.seen[id(cell)] = cell
                self.cells.add(f"{name}.<{key}>", cell)
                with contextlib.suppress(ValueError):  # nothing in it yet
                    self._queue.append((f"{name}.<{key}>", cell.cell_contents, depth + 1))

    def _elements(self, name: str, values: Iterable[Any], depth: int) -> None:
        self._queue.extend((f"{name}[]", value, depth + 1) for value in values)

    def renew(self) -> None:
        """Takes what is there now for what is expected."""
        places = [*self.places, self.code, self.cells, *self.slots.values()]
        for place in places:
            place.renew()
        self._dicts = [place for place in places if type(place) is Names]
        self._items = [place for place in places if type(place) is Items]
        self._attributes = [place for place in places if type(place) is Attribute]
        self._versions = Words([place.space for place in self._dicts], COUNT) if READABLE else None
        self._changed: set[int] = set()
        self._containers = [place.items for place in self._items]
        self._lengths = list(map(len, self._containers))

    def differences(self, *, closely: bool = True) -> dict[str, tuple[str, str]]:
        """Returns each place where something else is now: what was there, and what is.

        Args:
            closely: also look into lists that are as long as before, for another element.
        """
        found: dict[str, tuple[str, str]] = {}
        for place in [*self._written(), *self._grown(closely), *self._attributes]:
            if not place.is_as_before():
                found.update((name, (before, now)) for name, before, now in place.differences())
        return found

    def _written(self) -> list[Names]:
        if self._versions is None:
            return self._dicts
        self._changed.update(self._versions.written())
        self._changed = {i for i in self._changed if not self._dicts[i].is_as_before()}
        return [self._dicts[i] for i in sorted(self._changed)]

    def _grown(self, closely: bool) -> list[Items]:
        if closely:
            return self._items
        now = list(map(len, self._containers))
        if now == self._lengths:
            return []
        return [place for place, a, b in zip(self._items, self._lengths, now, strict=True) if a != b]


@functools.lru_cache(maxsize=1)
def landscape() -> Landscape:
    """Returns the one of this process, as it was at the first call: a fork has its parent's."""
    return Landscape()

"""Does a call reach what must be compiled: flex_attention and its like, or a checkpoint?

Found by names, without a call of the user's code: what the code of the function names in its globals, in its closure
and in its object, and so on from there. What is chosen at run time (a dictionary of functions) is not found.
"""

from __future__ import annotations

import functools
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

from .._common import reading
from .._torch import arguments, eager

#: More functions are not looked through.
_AT_MOST: Final = 5000

#: More answers are not kept.
_KEPT_AT_MOST: Final = 1000

#: What was found for a function and the objects that it was given. Each use is one dictionary operation.
_kept: dict[tuple[int, ...], tuple[list[weakref.ref[Any]], str | None]] = {}


def what_needs_a_compile(frame: Any) -> str | None:
    """Returns, in words, what a call of this frame reaches that must be compiled, or None."""
    if type(frame.f_locals) is not dict:  # the body of a class, in a mapping of its metaclass
        return None
    given = [frame.f_code, *_objects_in(frame)]
    key = tuple(map(id, given))
    references, found = _kept.get(key, ((), None))
    if references and all(reference() is one for reference, one in zip(references, given, strict=True)):
        return found
    what = _Search().run(frame, given[1:])
    answer = None if what is None else f"it uses {what}"
    if len(_kept) >= _KEPT_AT_MOST:
        _kept.clear()
    with suppress(TypeError):  # an object of a class with __slots__: looked through each time
        _kept[key] = ([weakref.ref(one) for one in given], answer)
    return answer


def _objects_in(frame: Any) -> list[Any]:
    """Returns the variables of a call that has just begun which may lead to functions."""
    code, values = frame.f_code, frame.f_locals
    found = [values.get(name) for name in (*code.co_varnames[: code.co_argcount + 2], *code.co_freevars)]
    objects: list[Any] = []
    for one in found:
        if type(one) is MethodType:
            objects += [one.__self__, one.__func__]
        elif _may_lead_on(one):
            objects.append(one)
    return objects


#: What most arguments are, and what never leads to a function: the ids of types, since a user's type may have an ``==``
#: and a hash of its own.
_LEADS_NOWHERE: Final = frozenset(map(id, (type(None), bool, int, float, str, tuple, list, dict)))


def _may_lead_on(value: Any) -> bool:
    if id(type(value)) in _LEADS_NOWHERE or arguments.is_tensor(value):
        return False
    return (
        type(value) is FunctionType
        or type(value) is functools.partial
        or arguments.is_module(value)
        or type(reading.of_class(value, "__call__")) is FunctionType
        or bool(reading.dictionary(value) and not reading.is_a(value, ModuleType))
    )


class _Search:
    """One walk from a call to all that its code names."""

    def __init__(self) -> None:
        self.seen: dict[tuple[int, int], Any] = {}

    def run(self, frame: Any, objects: list[Any]) -> str | None:
        """Returns what is found first, or None."""
        owner = objects[0] if objects else None
        stack = [iter(objects), self._named(frame.f_code, frame.f_globals, owner)]
        while stack and len(self.seen) < _AT_MOST:
            for value in stack[-1]:
                found = eager.what_needs_a_compile(value.__func__ if type(value) is MethodType else value)
                if found is not None:
                    return found
                stack.append(self._behind(value))
                break
            else:
                stack.pop()
        return None

    def _is_new(self, one: Any, other: Any = None) -> bool:
        key = (id(one), id(other))
        if key in self.seen:
            return False
        self.seen[key] = (one, other)  # keeps their ids from being used again
        return True

    def _behind(self, value: Any) -> Iterator[Any]:
        """Yields what a call of ``value`` may call."""
        kind = type(value)
        if kind is FunctionType:
            yield from self._of_function(value, None)
        elif kind is MethodType and type(value.__func__) is FunctionType:
            yield from self._of_function(value.__func__, value.__self__)
        elif kind is functools.partial:
            yield from (value.func, *value.args, *value.keywords.values()) if self._is_new(value) else ()
        elif kind is list or kind is tuple:
            yield from value[:100] if self._is_new(value) else ()
        elif arguments.is_module(value):
            if self._is_new(value):
                yield from _values(reading.dictionary(value).get(arguments.SUBMODULES))
                yield from _attribute(value, "forward")
                yield from _attribute(value, "__call__")
        elif type(reading.of_class(value, "__call__")) is FunctionType:
            yield from _attribute(value, "__call__")

    def _of_function(self, function: FunctionType, owner: Any) -> Iterator[Any]:
        if not self._is_new(function, owner):
            return
        yield from function.__defaults__ or ()
        for cell in function.__closure__ or ():
            with suppress(ValueError):  # empty
                yield cell.cell_contents
        if str(function.__globals__.get("__name__")).partition(".")[0] != "torch":
            yield from self._named(function.__code__, function.__globals__, owner)

    def _named(self, code: CodeType, space: dict[str, Any], owner: Any) -> Iterator[Any]:
        """Yields what ``code`` names: in its globals, in modules there, and in the object whose method it is."""
        for name in code.co_names:
            yield from self._through(space.get(name), code.co_names)
            yield from _attribute(owner, name)
        for constant in code.co_consts:
            if type(constant) is CodeType:
                yield from self._named(constant, space, owner)

    def _through(self, value: Any, names: tuple[str, ...]) -> Iterator[Any]:
        if not reading.is_a(value, ModuleType):
            yield value
        elif self._is_new(value, names):
            for name in names:
                yield from self._through(reading.dictionary(value).get(name), names)


def _attribute(owner: Any, name: str) -> Iterator[Any]:
    """Yields what ``owner`` has under ``name``, bound as a call would find it; no property is asked."""
    yield reading.dictionary(owner).get(name)
    found = reading.of_class(owner, name)
    if type(found) is FunctionType:
        yield MethodType(found, owner)
    elif type(found) is classmethod or type(found) is staticmethod:
        yield found.__func__
    elif type(found) is property and type(found.fget) is FunctionType:
        yield MethodType(found.fget, owner)
    else:
        yield found


def _values(found: Any) -> list[Any]:
    return list(found.values()) if type(found) is dict or type(found) is OrderedDict else []

"""Reading objects of the user's without calling a line of the user's code.

An argument may be a module whose constructor has not run yet, a proxy that answers for any name, an object whose class
is a property. ``isinstance``, ``getattr``, ``==`` and ``iter`` would run their code in the middle of a miss, where
plain torch runs none. Here types, their bases and dictionaries are read as the interpreter keeps them.
"""

from __future__ import annotations

from types import GetSetDescriptorType, MemberDescriptorType, MethodType
from typing import Any, Final

_bases: Final = vars(type)["__mro__"].__get__
_namespace: Final = vars(type)["__dict__"].__get__

#: The ids of the types whose ``==`` is the interpreter's own, and looks at nothing else. Not the types: a type of the
#: user's may have an ``==`` and a hash of its own.
_PLAIN: Final = frozenset(map(id, (bool, int, float, str, bytes, type(None))))


def is_a(value: Any, kind: type) -> bool:
    """Tells whether the type of ``value`` is ``kind`` or derived from it, whatever ``__class__`` says."""
    for one in _bases(type(value)):  # noqa: SIM110 - any() takes three times as long, and a miss asks this often
        if one is kind:
            return True
    return False


def of_class(value: Any, name: str) -> Any:
    """Returns what the class of ``value`` has under ``name``, bound to nothing, or None."""
    for one in _bases(type(value)):
        space = _namespace(one)
        if name in space:
            return space[name]
    return None


def dictionary(value: Any) -> dict[str, Any]:
    """Returns the attributes of ``value`` itself; an empty dictionary if it has none, or makes up its own."""
    descriptor = of_class(value, "__dict__")
    if type(descriptor) is not GetSetDescriptorType and type(descriptor) is not MemberDescriptorType:
        return {}
    found = descriptor.__get__(value)
    return found if type(found) is dict else {}


def items(value: Any) -> tuple[Any, ...]:
    """Returns the items of a tuple or a list, derived ones included; of anything else, itself."""
    for kind in (tuple, list):
        if is_a(value, kind):
            return tuple(kind.__iter__(value))
    return (value,)


def same(one: Any, other: Any, like_dictionaries: tuple[type, ...] = ()) -> bool:
    """Tells whether two values are the same object, or equal by the interpreter's own comparison.

    Those of ``like_dictionaries`` are equal if their attributes are. Of any other class only the object itself is.
    """
    if one is other:
        return True
    kind = type(one)
    if kind is not type(other):
        return False
    if id(kind) in _PLAIN:
        return bool(one == other)
    if kind is MethodType:
        return one.__self__ is other.__self__ and one.__func__ is other.__func__
    if kind is tuple or kind is list:
        return len(one) == len(other) and all(
            same(a, b, like_dictionaries) for a, b in zip(tuple(one), tuple(other), strict=False)
        )
    if any(kind is like for like in like_dictionaries):
        one, other, kind = dictionary(one), dictionary(other), dict
    if kind is not dict or len(one) != len(other):
        return False
    pairs = list(one.items())
    return all(
        type(name) is str and name in other and same(value, other[name], like_dictionaries) for name, value in pairs
    )

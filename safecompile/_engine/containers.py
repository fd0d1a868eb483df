"""The dicts, lists and sets that a call can reach: does another thread keep changing one of them?

Asked after torch has failed to trace the call, to tell that from an error of torch's own, which is raised. It calls no
code of the user's: it looks into containers of Python's own types only.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from time import sleep
from typing import Any, Final

#: Seconds for which the containers are watched, and between two looks.
_WATCHED_S: Final = 0.02
_LOOK_S: Final = 0.001

#: More containers are not looked at.
_CONTAINERS_AT_MOST: Final = 1000

#: How Python says that a container has changed while it went through it.
_WHILE_ITERATING: Final = ("during iteration", "mutated during iteration")

#: By their ids: a user's type may have an ``==`` and a hash of its own.
_TYPES: Final = frozenset(map(id, (dict, list, set, OrderedDict, deque)))


def keep_changing(frame: Any, seen: list[Any], error: BaseException) -> bool:
    """Tells whether another thread keeps changing what ``frame`` reads; ``seen`` is an earlier :func:`look`."""
    if _is_about_iterating(error):
        return True
    for _ in range(round(_WATCHED_S / _LOOK_S)):
        if look(frame) != seen:
            return True
        sleep(_LOOK_S)
    return False


def look(frame: Any) -> list[Any]:
    """Returns what is in the containers that ``frame`` reads: its variables, globals, and what these hold."""
    code = frame.f_code
    roots = [*frame.f_locals.values(), *(frame.f_globals.get(name) for name in code.co_names)]
    inner = [one for root in roots for one in _content(root)]
    found: list[Any] = []
    for one in (*roots, *inner):
        content = _content(one)
        if content:
            found.append(list(map(id, content)))
        if len(found) > _CONTAINERS_AT_MOST:
            break
    return found


def _content(value: Any) -> Iterable[Any]:
    """Returns what a container of Python's own holds, keys too, or what the attributes of another object are."""
    if id(type(value)) not in _TYPES:
        try:
            value = object.__getattribute__(value, "__dict__")
        except AttributeError:
            return ()
        if type(value) is not dict:
            return ()
    try:
        return [*dict.keys(value), *dict.values(value)] if isinstance(value, dict) else list(value)
    except RuntimeError:  # changed while it was read
        return [object()]


def _is_about_iterating(error: BaseException | None) -> bool:
    """Tells whether ``error``, or what it was raised from, is Python's own about a container that has changed."""
    for _ in range(10):
        if error is None:
            return False
        if isinstance(error, RuntimeError) and any(text in str(error) for text in _WHILE_ITERATING):
            return True
        error = error.__cause__ or error.__context__
    return False

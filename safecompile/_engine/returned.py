"""Compiled code that torch's callback has returned and that torch has not published yet.

Between the two the compile lock is free and torch's list of entries is not complete. So whoever goes through all that
is compiled reads *this first*, keeping what it finds, and torch's list second: things move from here to there.
"""

from __future__ import annotations

import itertools
import weakref
from types import CodeType
from typing import Any

#: What compiles have returned, until torch drops it. Each use is one dictionary operation, atomic by the GIL. No weak
#: dictionary: its callbacks would run inside the user's compiled call, where Dynamo compiles them.
notes: dict[int, weakref.ref[Any]] = {}

_numbers = itertools.count()


def note(guarded: Any, code: CodeType) -> None:
    """Notes what a compile of ``code`` is about to return; forgets what is published by now."""
    guarded.__dict__["_safecompile_code"] = code
    for number in [number for number, reference in list(notes.items()) if reference() is None]:
        notes.pop(number, None)
    notes[next(_numbers)] = weakref.ref(guarded)


def about_to_be_published() -> list[tuple[CodeType, Any]]:
    """Returns what is noted: the function's code, and what torch makes an entry of."""
    there = [guarded for reference in list(notes.values()) if (guarded := reference()) is not None]
    return [(guarded._safecompile_code, guarded) for guarded in there]

"""Compiled code that torch's callback has returned and that torch has not published yet.

Between the two the compile lock is free and torch's list of entries is not complete. So whoever goes through all that
is compiled reads *this first*, keeping what it finds, and torch's list second: things move from here to there.
"""

from __future__ import annotations

import itertools
import weakref
from time import sleep
from types import CodeType
from typing import Any

from .._common import forks
from .._torch import dynamo

#: What compiles have returned, until torch drops it. Each use is one dictionary operation, atomic by the GIL. No weak
#: dictionary: its callbacks would run inside the user's compiled call, where Dynamo compiles them.
notes: dict[int, weakref.ref[Any]] = {}

_numbers = itertools.count()


def note(guarded: Any, code: CodeType) -> None:
    """Notes what a compile of ``code`` is about to return; forgets what is published by now."""
    guarded.__dict__["_safecompile_code"] = code
    for number in [number for number, reference in notes.copy().items() if reference() is None]:
        notes.pop(number, None)
    notes[next(_numbers)] = weakref.ref(guarded)


def about_to_be_published() -> list[tuple[CodeType, Any]]:
    """Returns what is noted: the function's code, and what torch makes an entry of."""
    there = [guarded for reference in list(notes.values()) if (guarded := reference()) is not None]
    return [(guarded._safecompile_code, guarded) for guarded in there]


def is_published(entry: Any) -> bool:
    """Tells whether torch has ``entry`` in its list; gives its leader a moment to get there."""
    for _ in range(0 if dynamo.compile_lock()._is_owned() else 20):
        if entry.guard_manager.cache_entry is not None:
            return True
        sleep(0.001)
    return entry.guard_manager.cache_entry is not None


@forks.in_child
def after_fork_in_child() -> None:
    """Forgets what other threads of the parent have returned: in the child nobody publishes it."""
    notes.clear()

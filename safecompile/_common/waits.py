"""Waits that look around now and then, and that the end of the process finds asleep.

At its end Python takes the GIL away from threads that still run: a daemon thread that wakes up then is unwound through
torch's C frames, which kills the process (status 139 or 134; up to Python 3.13). One that sleeps until somebody wakes
it, as in plain torch, is not touched. So when the exit handlers run, by when Python has joined all threads that it
joins, each wait under way goes on without a limit.
"""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable
from time import monotonic, sleep
from typing import Any, Final

from . import forks

#: Seconds between two looks of a waiting thread at the one it waits for.
TICK_S: Final = 0.5

#: Seconds that a thread which has said that it goes to sleep gets to do so.
_FALLS_ASLEEP_S: Final = 0.02

_leaving = False

#: The waits that end by themselves. Each use is one dictionary operation, atomic by the GIL.
_timed: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


class _Wait:
    """A wait of which nobody tells anything."""


def wait(
    ended: Callable[[float], bool], look: Callable[[], None], what: Any = None, limit_s: float | None = None
) -> bool:
    """Waits until ``ended(seconds)`` tells that it has; calls ``look`` each time that these seconds are over.

    ``ended`` waits for that long at most, or with -1 as long as it takes. Whatever either raises ends the wait.
    ``what`` tells of the wait, to those who ask what waits are :func:`in_progress`.

    Returns:
        False if that has lasted for ``limit_s`` seconds. With 0 it asks once and waits for nothing.
    """
    until = None if limit_s is None else monotonic() + limit_s
    token = _Wait() if what is None else what
    try:
        _timed[id(token)] = token  # before the look at the flag, so that _leave waits for this thread
        while not _leaving:
            left_s = TICK_S if until is None else max(0.0, until - monotonic())
            if ended(min(TICK_S, left_s)):
                return True
            if left_s <= TICK_S and until is not None:
                return False
            look()
    finally:
        _timed.pop(id(token), None)
    return ended(-1.0)


def in_progress() -> list[object]:
    """Returns what was given for each wait in progress."""
    return [one for ref in _timed.valuerefs() if (one := ref()) is not None]


def _leave() -> None:
    global _leaving
    _leaving = True
    if _timed:
        end = monotonic() + 2 * TICK_S
        while _timed and monotonic() < end:
            sleep(_FALLS_ASLEEP_S / 4)
        sleep(_FALLS_ASLEEP_S)


@forks.in_child
def after_fork_in_child() -> None:
    """Forgets the waits of the parent's other threads."""
    _timed.clear()


# Handlers run in the opposite order of their registration. Those that end a user's daemon threads are seldom registered
# before the library is installed, and so find the waits as they are.
atexit.register(_leave)

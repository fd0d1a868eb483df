"""The frame in which each thread is: ``sys._current_frames()``, without the deadlock that it has before Python 3.12.

Python 3.11 makes frame objects while it holds the lock over the interpreter's list of threads. Each may begin a garbage
collection there. If a finalizer loses the GIL, and another thread begins or ends, that thread waits for the lock with
the GIL in its hand, for ever (CPython gh-106883; seen with Python 3.11.7 and the callbacks of Dynamo's weak
references). So nothing is collected meanwhile, and nobody gets a turn: what stands here runs in C.
"""

from __future__ import annotations

import gc
import itertools
import operator
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final

_CALL: Final = operator.methodcaller("__call__")


def of_all_threads() -> dict[int, FrameType]:
    """Returns the frame in which each thread is, by its identity.

    Thread safety: may be called anywhere, also in finalizers. It takes no lock but the interpreter's own.
    """
    (frames,) = once()
    return frames


def once() -> Iterator[dict[int, FrameType]]:
    """Yields that dictionary, in C, and nothing else; must be taken to its end in C, too."""
    return filter(None, map(_CALL, _steps()))


def _steps() -> Iterator[Callable[[], Any]]:
    if sys.version_info >= (3, 12):  # collects nothing in the middle of a function in C
        return iter((sys._current_frames,))
    is_enabled, is_to_be_enabled = itertools.tee(map(_CALL, (gc.isenabled,)))
    return itertools.chain(
        itertools.compress((gc.disable,), is_enabled),
        (sys._current_frames,),
        itertools.compress((gc.enable,), is_to_be_enabled),
    )

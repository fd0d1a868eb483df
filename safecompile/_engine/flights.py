"""Compiles in progress: who makes them, and how others wait for them."""

from __future__ import annotations

import functools
import gc
import re
import sys
import threading
from time import monotonic
from types import CodeType, FrameType
from typing import Any

from .._common import activity, events, forks, identity, waits
from .._torch import dynamo


class Retry(BaseException):
    """Raised through a frame in which nothing has run yet; torch's wrapper catches it and calls again."""


class Flight:
    """One compile in progress, and who does it.

    Args:
        frame: the one in which its leader handles the miss, and which closes the flight.
    """

    __slots__ = ("_frame", "_thread", "code", "done", "key", "leader", "skip")

    def __init__(self, key: tuple[int, str], code: CodeType, frame: FrameType) -> None:
        self.key = key
        self.code = code  # keeps the id in the key from being used again
        self.leader = threading.get_ident()  # for messages alone
        self._thread = identity.of_this_thread()
        self._frame: FrameType | None = frame
        self.done = threading.Event()
        self.skip: Any = None  # what the leader returned, if it was that torch leaves this code alone for good

    def close(self) -> None:
        """Ends the flight; may be called more than once, and by any thread."""
        if flights.get(self.key) is self:
            flights.pop(self.key, None)
        self._frame = None  # whose variables hold this flight
        self.done.set()

    def ended(self, seconds: float) -> bool:
        """Waits until the flight is over, for so many seconds at most, -1 for ever; tells whether it is."""
        # An event's wait takes a lock, which the threads of a herd would wait for even with 0 seconds.
        return self.done.is_set() or (seconds != 0.0 and self.done.wait(None if seconds < 0 else seconds))

    def is_abandoned(self) -> bool:
        """Tells whether its leader has left the engine without closing it (an exception in the wrong moment)."""
        # Python clears no frame that runs, be it in a greenlet that waits, whose stack is nowhere to be found.
        frame = self._frame
        try:
            if frame is not None:
                frame.clear()
        except RuntimeError:
            return False
        return True

    def is_over(self) -> bool:
        """Tells whether it is over, which it is if its leader has left."""
        if self.is_abandoned():
            self.close()
        return self.done.is_set()

    def is_this_threads(self) -> bool:
        """Tells whether the calling thread is the leader."""
        return self._thread is identity.of_this_thread()


#: The compiles in progress by (id of the code, device). Each use is one dictionary operation, atomic by the GIL.
flights: dict[tuple[int, str], Flight] = {}


def warn_of_wait(code: CodeType, device: str, began: float, holder: int | None) -> bool:
    """Warns if a wait that ``began`` (monotonic seconds) is long by now; tells whether it did."""
    waited = monotonic() - began
    if waited < events.wait_warning_s:
        return False
    events.warn_of_wait(code, device, waited, holder)
    return True


def owner_of(lock: Any) -> int | None:
    """Returns the identity of the thread that holds an RLock, which only its repr tells; for messages."""
    found = re.search(r"owner=(\d+)", repr(lock))
    return int(found.group(1)) or None if found else None


def wait_for_lock(lock: Any, code: CodeType, device: str, limit_s: float | None = None) -> bool:
    """Takes an RLock, and warns if that lasts; tells whether it has it, which it may not after ``limit_s`` seconds."""
    began, warned = monotonic(), False

    def look() -> None:
        nonlocal warned
        warned = warned or warn_of_wait(code, device, began, owner_of(lock))

    holder = owner_of(lock) if events.listeners else None  # the report asks by itself
    what = activity.Waiting("lock", events.place(code), device, began, holder)
    has_it = waits.wait(lambda seconds: lock.acquire(timeout=seconds), look, what, limit_s)
    what.is_over()
    return has_it


@forks.in_child
def after_fork_in_child() -> None:
    """Forgets the parent's other threads: nobody in the child would ever end their flights or free their lock."""
    if dynamo.loaded(dynamo.CONVERT_FRAME):
        lock = dynamo.compile_lock()
        if not lock._is_owned():
            if owner_of(lock) is not None:
                _free_cached_properties()
            lock._at_fork_reinit()
    flights.clear()


def _free_cached_properties() -> None:
    """Makes the locks of all cached properties anew, of which the thread that compiled may have held some.

    Each is one for all objects of a class, up to Python 3.11; torch's symbolic shapes have some. Takes 0.1 s or less.
    """
    if sys.version_info < (3, 12):
        for one in gc.get_objects():
            if type(one) is functools.cached_property:
                lock: Any = vars(one)["lock"]
                if not lock._is_owned():
                    lock._at_fork_reinit()

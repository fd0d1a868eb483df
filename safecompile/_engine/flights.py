"""Compiles in progress: who makes them, and how others wait for them."""

from __future__ import annotations

import re
import sys
import threading
from time import monotonic
from types import CodeType
from typing import Any

from .._common import events


class Retry(BaseException):
    """Raised through a frame in which nothing has run yet; torch's wrapper catches it and calls again."""


class Flight:
    """One compile in progress, and who does it."""

    __slots__ = ("code", "done", "key", "leader", "skip")

    def __init__(self, key: tuple[int, str], code: CodeType) -> None:
        self.key = key
        self.code = code  # keeps the id in the key from being used again
        self.leader = threading.get_ident()
        self.done = threading.Event()
        self.skip: Any = None  # what the leader returned, if it was that torch leaves this code alone for good

    def close(self) -> None:
        """Ends the flight; may be called more than once, and by any thread."""
        if flights.get(self.key) is self:
            flights.pop(self.key, None)
        self.done.set()

    def is_abandoned(self) -> bool:
        """Tells whether its leader has left the engine without closing it (an exception in the wrong moment)."""
        frame = sys._current_frames().get(self.leader)
        while frame is not None:
            if frame.f_code.co_name == "on_miss" and frame.f_locals.get("flight") is self:
                return False
            frame = frame.f_back
        return True


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
    """Returns the identity of the thread that holds an RLock, which only its repr tells."""
    found = re.search(r"owner=(\d+)", repr(lock))
    return int(found.group(1)) or None if found else None

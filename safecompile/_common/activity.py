"""What threads do in the library just now: who compiles, who waits, and since when. Nothing goes by it."""

from __future__ import annotations

import threading
import weakref
from time import monotonic
from types import CodeType
from typing import TYPE_CHECKING, Any, Final

from . import events, forks, waits
from .records import CompileBegun, CompileEnded, Wait

if TYPE_CHECKING:
    from typing_extensions import Self


class Waiting:
    """A thread's wait for another one.

    Args:
        reason: ``"result"`` of another thread's compile, ``"lock"`` or ``"kernel"``.
        place: the function's name, file and line.
        began: monotonic seconds.
        holder: the identity of the thread that it waits for, as far as that is known at its begin; for messages.
    """

    __slots__ = ("__weakref__", "began", "device", "holder", "holder_name", "place", "reason", "thread")

    def __init__(self, reason: str, place: tuple[str, str, int], device: str, began: float, holder: int | None) -> None:
        self.reason, self.place, self.device, self.began, self.holder = reason, place, device, began, holder
        self.holder_name = events.name_of(holder)  # it may have ended when the wait does
        self.thread = threading.get_ident()  # for messages alone

    def is_over(self) -> None:
        """Tells of the wait, which is over now."""
        seconds = monotonic() - self.began
        was_free = self.reason == "lock" and not self.holder_name
        if events.listeners and seconds > (_GIL_S if was_free else _SHORTEST_WAIT_S):
            events.tell(Wait, self.device, self.place, seconds, self.reason, self.holder_name)


#: A wait that is shorter is none: the lock was free.
_SHORTEST_WAIT_S: Final = 0.0005

#: Seconds that a thread may wait for the GIL while it takes a free lock.
_GIL_S: Final = 0.1


class Compiling:
    """The compile of one function, from its trace to its guards. Entered by the thread that does it."""

    __slots__ = ("__weakref__", "began", "device", "outcome", "place", "thread")

    def __init__(self, code: CodeType, device: str, *, backward: bool = False) -> None:
        self.place, self.device = events.place(code, backward=backward), device
        self.outcome = "failed"
        self.thread = threading.get_ident()  # for messages alone

    def __enter__(self) -> Self:
        self.began = monotonic()
        compiles[id(self)] = self
        if events.listeners:
            events.tell(CompileBegun, self.device, self.place)
        return self

    def __exit__(self, *_: object) -> None:
        compiles.pop(id(self), None)
        if events.listeners:
            events.tell(CompileEnded, self.device, self.place, monotonic() - self.began, self.outcome)


#: The compiles in progress, by the id of each. Weak: an exception from outside may strike before a block is entered.
compiles: weakref.WeakValueDictionary[int, Compiling] = weakref.WeakValueDictionary()


def compiling_now() -> list[Compiling]:
    """Returns the compiles in progress, the one that began first at the beginning."""
    return sorted((one for ref in compiles.valuerefs() if (one := ref()) is not None), key=_began)


def waiting_now() -> list[Waiting]:
    """Returns the waits in progress, the longest first."""
    return sorted((one for one in waits.in_progress() if isinstance(one, Waiting)), key=_began)


def _began(one: Any) -> float:
    return float(one.began)


@forks.in_child
def after_fork_in_child() -> None:
    """Forgets the compiles of threads that the child does not have."""
    me = threading.get_ident()
    for number, one in list(compiles.items()):
        if one.thread != me:
            del compiles[number]

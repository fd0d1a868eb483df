"""How events reach those who listen: at once and raw, or called back once their thread holds no lock.

Nothing here runs on a warm call. Without a listener an event costs one test of an empty list.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic
from types import CodeType
from typing import Any, Final

from . import totals
from .records import Event, Miss

log = logging.getLogger("safecompile")

#: Who hears of events at once, wherever they happen: functions that take no lock and call nothing of the user's. They
#: get the class of the record and its arguments, as one tuple. Each use is one operation on a list, atomic by the GIL.
listeners: list[Callable[[tuple[Any, ...]], object]] = []

Callback = Callable[[Any], object]


class _Subscription:
    """Keeps what happens in a thread until it holds no lock, and then calls back."""

    def __init__(self, callback: Callback, kinds: type[Event] | tuple[type[Event], ...]) -> None:
        self.callback, self.kinds = callback, kinds

    def __call__(self, event: tuple[Any, ...]) -> None:
        if issubclass(event[0], self.kinds):
            _here.pending.append((self, event))

    def end(self) -> None:
        leave(self)


class _Here(threading.local):
    """What this thread has still to call back of."""

    def __init__(self) -> None:
        self.pending: deque[tuple[_Subscription, tuple[Any, ...]]] = deque()


_here = _Here()


def leave(listener: Callable[[tuple[Any, ...]], object]) -> bool:
    """Takes a listener out; tells whether it was in. Two threads may do so at once."""
    try:
        listeners.remove(listener)
    except ValueError:
        return False
    return True


def subscribe(callback: Callback, kinds: type[Event] | tuple[type[Event], ...] = Miss) -> Callable[[], None]:
    """Calls ``callback`` with each record of these ``kinds``, in the thread that it is about; returns what ends it.

    It runs while its thread holds no lock of the library's or torch's. If it raises, one WARNING says so, and it is
    called no more.

    Thread safety: may be called from any thread at any time.
    """
    one = _Subscription(callback, kinds)
    listeners.append(one)
    return one.end


def place(code: CodeType, *, backward: bool = False) -> totals.Place:
    """Returns what tells a function: its qualified name, its file and its line."""
    name = getattr(code, "co_qualname", code.co_name)
    return (f"{name} (backward)" if backward else name, code.co_filename, code.co_firstlineno)


def tell(kind: type[Event], device: str, where: totals.Place, *rest: Any) -> None:
    """Tells the listeners of one event. To be called where there are any; takes no lock."""
    ident = threading.get_ident()
    thread = _threads.get(ident)  # threading.current_thread() would make an object for a thread that has none
    name = f"thread {ident}" if thread is None else thread.name
    # Not the thread's native_id, which in a forked child is the parent's.
    event = (kind, monotonic(), name, threading.get_native_id(), device, *where, *rest)
    for listener in tuple(listeners):
        listener(event)


_threads: Final[dict[int, threading.Thread]] = threading._active  # type: ignore[attr-defined]


def name_of(ident: int | None) -> str:
    """Returns the name of a thread, or an empty string if there is no such thread any more."""
    thread = None if ident is None else _threads.get(ident)
    return "" if thread is None else thread.name


def deliver() -> None:
    """Calls back of what this thread has told so far. To be called where it holds no lock."""
    pending = _here.pending
    while pending:
        subscription, (kind, *values) = pending.popleft()
        if subscription not in listeners:
            continue
        try:
            subscription.callback(kind(*values))
        except Exception:
            if not leave(subscription):
                continue  # another thread's call of it has raised, too
            log.warning(
                "a subscriber to safecompile's events raised, and is not called again. Your program goes on. Mend the "
                "callback and subscribe it again. More: docs/debugging.md#events",
                exc_info=True,
            )

"""What the library does, told as it happens: :func:`subscribe` and :func:`record`, and the records that they give.

While nobody listens nothing is recorded. An event that is recorded costs a microsecond or two, and a warm call none: it
is no event.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, TypeVar, overload

from typing_extensions import Self

from ._common import telling
from ._common.errors import SafeCompileError
from ._common.records import (
    CaptureGated,
    CompileBegun,
    CompileEnded,
    Event,
    Failed,
    ForeignTrace,
    Miss,
    ResetPutOff,
    Reuse,
    Uncompiled,
    Wait,
)

__all__ = [
    "CaptureGated",
    "CompileBegun",
    "CompileEnded",
    "Event",
    "Failed",
    "ForeignTrace",
    "Miss",
    "Recording",
    "ResetPutOff",
    "Reuse",
    "Uncompiled",
    "Wait",
    "record",
    "subscribe",
]

_E = TypeVar("_E", bound=Event)


def subscribe(callback: Callable[[Any], object], *kinds: type[Event]) -> Callable[[], None]:
    """Calls ``callback`` with each event from now on, and returns a function that ends it.

    Args:
        callback: is called with one record, in the thread that the record is about, as soon as that thread holds no
            lock of torch's or the library's (after a reset, or a wait for a kernel, with the thread's next miss). It
            may compile, and wait for other threads. If it raises, one WARNING says so, and it is called no more.
        *kinds: the types of records that it wants; with none, all. Those derived from them are among them: all that
            came of a miss for :class:`Miss`.

    Raises:
        SafeCompileError: ``callback`` can't be called, or one of ``kinds`` is no type of records.

    Example::

        end = safecompile.events.subscribe(print, safecompile.events.Miss)

    Thread safety: may be called from any thread at any time. Callbacks run in several threads at once.
    """
    if not callable(callback):
        msg = f"subscribe() got {callback!r}, which can't be called. Pass a function that takes one record."
        raise SafeCompileError(msg)
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, Event)):
            msg = f"subscribe() got {kind!r}, which is no type of records. Pass some, such as safecompile.events.Miss."
            raise SafeCompileError(msg)
    return telling.subscribe(callback, kinds or (Event,))


class _Keep:
    """A listener that keeps events. The deque's own method is another one each time in code that Dynamo traces."""

    def __init__(self, raw: deque[tuple[Any, ...]]) -> None:
        self._raw = raw

    def __call__(self, event: tuple[Any, ...]) -> None:
        self._raw.append(event)


class Recording(Sequence[Event]):
    """The events of a time, as a sequence of records, the oldest first. A context manager: it records inside.

    Thread safety: may be read from any thread, also while it records.
    """

    def __init__(self, most: int) -> None:
        self._raw: deque[tuple[Any, ...]] = deque(maxlen=most)
        self._keep = _Keep(self._raw)

    def __enter__(self) -> Self:
        """Begins to record.

        Thread safety: to be entered by one thread at a time.
        """
        telling.listeners.append(self._keep)
        return self

    def __exit__(self, *_: object) -> None:
        """Ends it. The records stay.

        Thread safety: may be called from any thread.
        """
        telling.leave(self._keep)

    def __len__(self) -> int:
        return len(self._raw)

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> list[Event]: ...
    def __getitem__(self, index: int | slice) -> Event | list[Event]:
        if isinstance(index, slice):
            return list(self)[index]
        kind, *values = self._raw[index]
        record: Event = kind(*values)
        return record

    def __iter__(self) -> Any:
        return iter([kind(*values) for kind, *values in self._raw.copy()])

    def of(self, kind: type[_E]) -> list[_E]:
        """Returns the records of one type, and of those derived from it.

        Thread safety: may be called from any thread.
        """
        return [one for one in self if isinstance(one, kind)]

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, islice(self, 3)))
        return f"<{len(self)} events: {shown}{', ...' if len(self) > 3 else ''}>"


def record(most: int = 65536) -> Recording:
    """Records what happens in all threads, inside a ``with`` block.

    Args:
        most: how many events are kept; of more, the newest.

    Example::

        with safecompile.record() as events:
            model(x)
        print(events.of(safecompile.events.Miss))

    Thread safety: may be called from any thread; several may record at once.
    """
    return Recording(most)

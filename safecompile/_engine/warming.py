"""Functions that were warmed up, of which a call that would compile again is an error, and the thread that does it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any, Final

from .._common import reading
from .._common.errors import RecompileError
from .._torch import cache, cuda_graphs, dynamo
from . import cache_entries, frames

#: Whether some function is closed to compiles.
some_are_closed = False

_CLOSED: Final = "_safecompile_closed"
_MARK: Final = "safecompile_warmup"
_here = threading.local()


def close(compiled: Any, *, closed: bool) -> None:
    """Has each call of a compiled function raise where it would compile, or compile again."""
    global some_are_closed
    vars(dynamo.context_of_compiled(compiled))[_CLOSED] = closed
    some_are_closed = some_are_closed or closed


@contextmanager
def warming() -> Iterator[object]:
    """In this thread, all functions compile, and all calls wait for as long as it takes.

    Yields a mark of this warm-up, for :func:`is_for`.
    """
    before, mark = getattr(_here, "warms", None), object()
    try:
        _here.warms = mark
        cuda_graphs.set_in_thread(_MARK, mark)
        yield mark
    finally:
        _here.warms = before
        cuda_graphs.set_in_thread(_MARK, before)


def is_here() -> bool:
    """Tells whether this thread is warming something up."""
    return getattr(_here, "warms", None) is not None


def is_for(mark: object) -> bool:
    """Tells whether this thread is in that warm-up, or runs a backward for the thread that is."""
    return cuda_graphs.in_thread(_MARK) is mark


def check(frame: Any, device: str) -> None:
    """Raises for a call that finds no compiled code, if it is a call of a function that is closed, or by one."""
    if not is_here() and any(reading.dictionary(one).get(_CLOSED) for one in frames.contexts_of_the_call()):
        raise RecompileError(*_where(frame.f_code), device, _why(frame))


def _where(code: CodeType) -> tuple[str, str]:
    return getattr(code, "co_qualname", code.co_name), f"{code.co_filename}:{code.co_firstlineno}"


def _why(frame: Any) -> list[str]:
    """Returns the guard that fails, of each compiled version in the order in which they were compiled."""
    found = []
    for entry in reversed(cache_entries.without_copies(cache.cache_entries(frame.f_code))):
        found += cache.failing_guards(entry.guard_manager, frame.f_locals)
    return list(dict.fromkeys(found))

"""The compiles that are in progress, and what others do meanwhile to what a compile puts back at its end."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

from .._common import forks, identity
from .._torch import threads


class Open:
    """A compile from its begin to its end. One that begins inside another's is one more."""

    def __init__(self, token: object, outer: Open | None) -> None:
        self.token, self.outer = token, outer
        self.look: threads.Look = threads.look() if outer is None else outer.look
        self.random = random.getstate()
        self.set_by_others: list[tuple[str, Any]] = []
        """Which setting of the process, and its value. The oldest first."""


class _Here(threading.local):
    innermost: Open | None = None


_here = _Here()

# Each use is one operation on a list, atomic by the GIL.
_all: list[Open] = []


def innermost() -> Open | None:
    """Returns this thread's compile in progress."""
    return _here.innermost


def begin() -> None:
    """Notes that this thread begins a compile."""
    _here.innermost = Open(identity.of_this_thread(), _here.innermost)
    _all.append(_here.innermost)


def end(before: Open | None) -> None:
    """Notes that what this thread has begun since ``before`` was its innermost compile is over."""
    while (one := _here.innermost) is not None and one is not before:
        if one in _all:  # else an asynchronous exception has come between
            _all.remove(one)
        _here.innermost = one.outer


def of_others() -> Iterator[Open]:
    """Yields the compiles of other threads."""
    if _all:
        yield from [one for one in list(_all) if one.token is not identity.of_this_thread()]


@forks.in_child
def after_fork_in_child() -> None:
    """Forgets the compiles of threads that the child does not have."""
    _all[:] = [one for one in _all if one.token is identity.of_this_thread()]

"""The gates of kernels: one thread at a time launches a kernel for the first time, while others wait.

They are leaves: compile lock, then the gates of a device, then the gate of a kernel. Who has one waits for no other
lock of the library's, and takes the gate of a second kernel only if it is free.

Nothing of the user's runs meanwhile, unless there is something that torch calls itself: Triton's hooks, or a mode of
that thread's. Such code may wait for a thread that wants the same kernel. So where there is any, that thread waits for
``HOOKS_AT_MOST_S``, and then launches as in plain torch.
"""

from __future__ import annotations

import threading
import traceback
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from types import FrameType
from typing import Any, Final

from .._common import activity, events, forks, waits
from .._torch import kernels as host

#: Seconds for which a thread waits for another's first launch in which code of the user's runs.
HOOKS_AT_MOST_S: Final = 10.0


class _Held(threading.local):
    """How many gates this thread has, and whether code of the user's may run meanwhile."""

    count = 0
    runs_code_of_users = False


class _Gate:
    """The lock of one kernel, the frame that has it, and whether code of the user's runs meanwhile."""

    def __init__(self) -> None:
        self.lock: Any = threading.RLock()
        self.frame: FrameType | None = None
        self.runs_code_of_users = False

    def is_abandoned(self) -> bool:
        """Tells whether its holder has left without letting it go (an exception in the wrong moment)."""
        frame = self.frame
        try:
            if frame is None:
                return False
            frame.clear()  # raises for one that runs, be it in a greenlet that waits
        except RuntimeError:
            return False
        return self.frame is frame


held = _Held()

#: The gate of each kernel that has not been launched yet. Each use is one operation.
_gates: weakref.WeakKeyDictionary[Any, _Gate] = weakref.WeakKeyDictionary()


@contextmanager
def gate(kernel: Any, frame: FrameType) -> Iterator[bool]:
    """Holds the gate of ``kernel``; yields False if this thread must not wait for it any longer.

    Args:
        kernel: what is launched.
        frame: the caller's own.
    """
    mine = _enter(kernel)
    if mine is None:
        yield False
        return
    before = (held.count, held.runs_code_of_users, mine.frame)
    try:
        mine.frame = frame
        held.runs_code_of_users = mine.runs_code_of_users = host.runs_code_of_users()
        held.count += 1
        yield True
    finally:
        held.count, held.runs_code_of_users, mine.frame = before
        mine.lock.release()


def forget(kernel: Any) -> None:
    """Drops the gate of a kernel that needs none any more. Those who wait for it still have it."""
    _gates.pop(kernel, None)


def assert_none_held(what: str) -> None:
    """Asserts that this thread has no kernel's gate, at a place where it may wait for another thread."""
    assert not held.count or held.runs_code_of_users, (
        f"code that ran in the middle of the first launch of a Triton kernel, a finalizer for example, wants {what}: "
        "it could wait there for a thread that waits for that kernel"
    )


def _enter(kernel: Any) -> _Gate | None:
    while True:
        found = _gates.get(kernel) or _gates.setdefault(kernel, _Gate())
        if found.lock.acquire(blocking=False):
            return found
        if held.count:
            return None
        wait = _Wait(kernel, found)
        what = activity.Waiting("kernel", (host.name_of(kernel), "", 0), "", wait.began, None)
        waits.wait(wait.ended, wait.look, what)
        what.is_over()
        if wait.has_it:
            return found
        if not found.is_abandoned():
            return None
        if _gates.get(kernel) is found:
            forget(kernel)


class _Wait:
    """A thread's wait for a gate; it ends too if the gate is abandoned, or after a time with code of the user's."""

    def __init__(self, kernel: Any, wanted: _Gate) -> None:
        self.kernel, self.wanted, self.began = kernel, wanted, monotonic()
        self.has_it = self.is_over = self.told = False

    def ended(self, seconds: float) -> bool:
        """Waits for so many seconds; tells whether the wait has ended."""
        self.has_it = not self.is_over and self.wanted.lock.acquire(timeout=seconds)
        return self.has_it or self.is_over

    def look(self) -> None:
        """Looks at who has the gate."""
        waited = monotonic() - self.began
        if self.wanted.is_abandoned() or (self.wanted.runs_code_of_users and waited > HOOKS_AT_MOST_S):
            self.is_over = True
        elif waited > events.wait_warning_s and not self.told:
            self.told = True
            stack = traceback.format_stack(self.wanted.frame) if self.wanted.frame is not None else []
            events.log.warning(
                "thread %r has waited %.0f s for another thread's first launch of the Triton kernel %s. It goes on "
                "when that launch ends. More: docs/debugging.md#it-hangs. The launch was called here:\n%s",
                threading.current_thread().name,
                waited,
                host.name_of(self.kernel),
                "".join(stack),
            )


@forks.in_child
def after_fork_in_child() -> None:
    """Forgets the gates of the parent's other threads."""
    _gates.clear()
    held.__dict__.clear()

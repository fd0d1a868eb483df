"""A moment later: what other threads may have been in the middle of is freed soon, whether anybody compiles or not.

A thread of the library's own does it, while there is something to free, which is for a few tenths of a second. It is
started only beside other threads, runs no code of the user's but finalizers, and no random numbers, settings or
counts of threads go by it.
"""

from __future__ import annotations

import _thread
import atexit
import threading
from collections.abc import Callable
from time import monotonic, sleep
from typing import Final

from .._common import forks
from .._torch import threads

#: What says when something is due (monotonic seconds; None: nothing is), and what does it. Set by :mod:`.resets`.
task: tuple[Callable[[], float | None], Callable[[], None]] | None = None

#: Holds the thread's mark while it runs. Each use is one operation on a list, atomic by the GIL.
_running: list[object] = []

#: Seconds that it sleeps at least, so that what can't be done yet does not keep it busy.
PAUSE_S: Final = 0.02

#: Seconds that an exit, or an uninstallation, waits at most for what is not yet freed, which most have nothing of.
EXIT_S: Final = 0.5


def soon() -> None:
    """Has what is due done in a moment. Takes no lock: may be called in finalizers."""
    if _running:
        return
    _running.append(None)
    try:
        # Not threading.Thread, whose start takes locks that the thread that is in a finalizer may hold.
        _thread.start_new_thread(_run, ())
    except RuntimeError:  # no more threads, or the interpreter is at its end: the next miss or reset does it
        _running.clear()


def wait_until_over() -> None:
    """Waits until the thread has ended, if there is one: plain torch's ``reset()`` must not meet it (crash, 2.7.1)."""
    limit = monotonic() + EXIT_S
    while _running and monotonic() < limit and threading.get_ident() not in threads.ours:
        sleep(PAUSE_S / 4)


def _run() -> None:
    threads.ours[threading.get_ident()] = threading.get_native_id()
    try:
        while (when := _due()) is not None:
            sleep(max(when - monotonic(), PAUSE_S))
            _work()
    finally:
        threads.ours.pop(threading.get_ident(), None)
        _running.clear()
    if _due() is not None:  # it came after the last look
        soon()


def _at_exit() -> None:
    # What is kept for longer dies when torch's modules are half gone, which torch's own finalizers complain about.
    limit = monotonic() + EXIT_S
    while (when := _due()) is not None and when < limit:
        sleep(max(when - monotonic(), PAUSE_S))
        _work()


atexit.register(_at_exit)  # before torch's, where the library is imported first, and so called after them


def _due() -> float | None:
    return None if task is None else task[0]()


def _work() -> None:
    if task is not None:
        task[1]()


@forks.in_child
def after_fork_in_child() -> None:
    """Forgets the thread, which the child does not have."""
    threads.ours.clear()
    _running.clear()
    if _due() is not None:
        _work()

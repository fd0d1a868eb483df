"""One live line on a terminal while something compiles for more than a few seconds, for those who ask for it."""

from __future__ import annotations

import _thread
import os
import shutil
import sys
import threading
from time import monotonic, sleep
from typing import Any, Final, TextIO

from typing_extensions import Self

from .._common import activity, arguments, environment, forks, telling
from .._common.records import CompileBegun
from .._torch import threads

#: Seconds between two lines.
PAUSE_S: Final = 0.2

#: Begins a line anew, and clears it.
_CLEAR: Final = "\r\x1b[K"


class progress:  # noqa: N801 - used as a function is
    """Shows, inside a ``with`` block, one live line while something compiles: function, device, seconds, who waits.

    Only on a terminal; elsewhere it does nothing. A thread of its own writes, while there is something to show.
    ``SAFECOMPILE_PROGRESS=1`` shows it from the installation on.

    Args:
        stream: where to; None for ``sys.stderr``.
        after_s: for how many seconds a compile must have lasted.

    Raises:
        TypeError: ``after_s`` is no number.
        ValueError: ``after_s`` is not a number of seconds (nan).

    Example::

        with safecompile.progress():
            model(x)

    Thread safety: may be called from any thread; shows the compiles of all threads.
    """

    def __init__(self, *, stream: TextIO | None = None, after_s: float = 3.0) -> None:
        self._stream, self._after_s = stream or sys.stderr, arguments.seconds("after_s", after_s)
        self._is_on = False
        # Holds a mark while the thread runs. Each use is one operation on a list, atomic by the GIL.
        self._running: list[None] = []

    def __enter__(self) -> Self:
        """Begins to show."""
        self.begin()
        return self

    def __exit__(self, *_: object) -> None:
        """Ends it."""
        self.end()

    def begin(self) -> None:
        """Begins to show, as entering does."""
        if environment.is_terminal(self._stream) and not self._is_on:
            self._is_on = True
            telling.listeners.append(self._hear)
            if activity.compiles:
                self._start()

    def end(self) -> None:
        """Ends it, as leaving does."""
        if self._is_on:
            self._is_on = False
            telling.leave(self._hear)

    def _hear(self, event: tuple[Any, ...]) -> None:
        if event[0] is CompileBegun:
            self._start()

    def _start(self) -> None:
        if not self._running:
            self._running.append(None)
            try:
                # Not threading.Thread, whose start would wait for it, in the middle of a compile.
                _thread.start_new_thread(self._run, ())
            except RuntimeError:
                self._running.clear()

    def _run(self) -> None:
        threads.ours[threading.get_ident()] = threading.get_native_id()
        shown = False
        try:
            while self._is_on and activity.compiles:
                text = line(self._after_s)
                if text or shown:
                    self._write(_CLEAR + text[: shutil.get_terminal_size().columns - 1])
                shown = bool(text)
                sleep(PAUSE_S)
        finally:
            if shown:
                self._write(_CLEAR)
            threads.ours.pop(threading.get_ident(), None)
            self._running.clear()
        if self._is_on and activity.compiles:  # it began after the last look
            self._start()

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # it is closed
            self.end()


def line(after_s: float) -> str:
    """Returns what compiles for longer than that, and who waits, in one line; an empty one if nothing does."""
    compiles = [one for one in activity.compiling_now() if monotonic() - one.began >= after_s]
    if not compiles:
        return ""
    first = compiles[0]
    name, filename, number = first.place
    text = f"compiling {name} ({os.path.basename(filename)}:{number}) on {first.device}, "  # noqa: PTH119
    text += f"{monotonic() - first.began:.0f} s"
    waiting = list(dict.fromkeys(telling.name_of(one.thread) for one in activity.waiting_now()))
    if waiting:
        more = f" and {len(waiting) - 3} more" if len(waiting) > 3 else ""
        text += f"; waiting: {', '.join(waiting[:3])}{more}"
    return text


#: What ``SAFECOMPILE_PROGRESS`` has asked for.
_of_process: progress | None = None


def begin_for_process() -> None:
    """Shows it from now on. Called by the installation."""
    global _of_process
    if _of_process is None:
        _of_process = progress()
        _of_process.begin()


def end_for_process() -> None:
    """Ends that. Called when the patches are taken out."""
    global _of_process
    if _of_process is not None:
        _of_process.end()
        _of_process = None


@forks.in_child
def after_fork_in_child() -> None:
    """Lets the threads, which the child does not have, be started anew."""
    for one in telling.listeners:
        owner = getattr(one, "__self__", None)
        if isinstance(owner, progress):
            owner._running.clear()

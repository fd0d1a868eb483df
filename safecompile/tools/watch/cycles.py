"""Looks for threads that wait for each other around torch's compile lock, from a thread of its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from time import monotonic
from types import FrameType
from typing import Final

from ..._common import thread_frames
from ..._engine.flights import owner_of
from ..._torch import dynamo, threads
from ..._torch.settings import torch_folder
from .compiles import Compiles, Miss
from .findings import Findings

#: Seconds between two looks.
PAUSE_S: Final = 0.25

#: Nanoseconds of CPU time in all that a thread which waits uses at most.
BUSY_NS: Final = 20_000_000

_PYTHON: Final = os.path.dirname(threading.__file__) + os.sep  # noqa: PTH120


class Cycles:
    """Finds a thread that stands still in a wait in the middle of its compile, while others want the compile lock.

    Args:
        after_s: for how long it must stand still.
        told: is called, in the thread that looks, with each new finding.
    """

    def __init__(self, findings: Findings, compiles: Compiles, after_s: float, told: Callable[[], None]) -> None:
        self.findings, self.compiles, self.after_s, self.told = findings, compiles, after_s, told
        self._stopped = threading.Event()
        self._still: tuple[Miss | None, int, float] = (None, 0, 0.0)

    def start(self) -> None:
        """Begins to look."""
        threading.Thread(target=self._run, name="safecompile watch", daemon=True).start()

    def stop(self) -> None:
        """Ends it."""
        self._stopped.set()

    def _run(self) -> None:
        ident = threading.get_ident()
        threads.ours[ident] = threading.get_native_id()
        try:
            while not self._stopped.wait(PAUSE_S):
                if self.compiles.misses:
                    self._look()
        finally:
            threads.ours.pop(ident, None)

    def _look(self) -> None:
        misses = list(self.compiles.misses.values())
        holder = owner_of(dynamo.compile_lock())
        compiling = next((one for one in misses if one.ident == holder), None)
        waiting = [one for one in misses if one.ident != holder]
        top = thread_frames.of_all_threads().get(holder) if holder is not None else None
        if compiling is None or not waiting or top is None:
            return
        # A thread that computes uses CPU time; one that waits in short steps uses next to none.
        now, cpu = monotonic(), _cpu_ns(compiling.ident)
        mark, cpu_before, since = self._still
        if mark is not compiling or cpu - cpu_before > BUSY_NS or not _is_users(top):
            self._still = (compiling, cpu, now)
        elif now - max(since, min(one.began for one in waiting)) > self.after_s:
            self._add(compiling, waiting, top)

    def _add(self, compiling: Miss, waiting: list[Miss], top: FrameType) -> None:
        other = waiting[0]
        sure = any(_is_joining(top, one.ident) for one in waiting)
        new = self.findings.add(
            "cycle",
            (compiling.name, compiling.code.co_name, other.name),
            f"Thread {compiling.name!r} waits in the middle of its compile of {compiling.code.co_name}, and thread "
            f"{other.name!r} waits for the compile lock that it holds. "
            + ("It waits for that very thread." if sure else "If it waits for that thread, neither goes on."),
            holds_the_lock=top,
            wants_the_lock=thread_frames.of_all_threads().get(other.ident),
        )
        if new:
            self.told()


def _is_users(top: FrameType) -> bool:
    """Tells whether code of the user's, not torch's, is at the end of this stack, Python's own library left out."""
    frame: FrameType | None = top
    while frame is not None and frame.f_code.co_filename.startswith(_PYTHON) and "site-packages" not in _file(frame):
        frame = frame.f_back
    return frame is not None and not _file(frame).startswith(torch_folder())  # Inductor waits for its compile workers


def _file(frame: FrameType) -> str:
    return frame.f_code.co_filename


def _cpu_ns(ident: int) -> int:
    native = next((one.native_id for one in threading.enumerate() if one.ident == ident), None)
    return 0 if native is None else threads.cpu_ns(native)


def _is_joining(top: FrameType, ident: int) -> bool:
    frame: FrameType | None = top
    while frame is not None and frame.f_code.co_filename.startswith(_PYTHON):
        thread = frame.f_locals.get("self")
        if frame.f_code.co_name == "join" and isinstance(thread, threading.Thread):
            return thread.ident == ident
        frame = frame.f_back
    return False

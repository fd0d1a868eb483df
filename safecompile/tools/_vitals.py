"""Whether a process still gets on: what it has done, the CPU time that it used, and the CPU time that it waited for."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from contextlib import suppress
from pathlib import Path

#: Less than this share of one core, used or waited for, and nothing else to show: a process does not work any more.
IDLE_SHARE = 0.05
#: Seconds without anything done before the CPU time is asked. More where only the child itself can be asked, as the
#: compilers that it has started are not seen there.
PATIENCE_S, PATIENCE_OF_ONE_S = 20.0, 90.0


def session_s(leader: int) -> float | None:
    """Returns the seconds that the processes of a session have worked, or waited for a core; None where nothing tells.

    What they waited counts, so that a machine that is busy with other things does not make a process look idle.
    """
    if not Path("/proc/self/stat").exists():
        return None
    total = 0.0
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            # A process may end while it is looked at.
            with suppress(OSError, ValueError, IndexError):
                total += _process_s(process, leader)
    return total


def _process_s(process: Path, leader: int) -> float:
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    if int(fields[3]) != leader:
        return 0.0
    worked = sum(map(int, fields[11:15])) / _ticks_a_second()  # its ended children included
    waited = 0
    for thread in (process / "task").iterdir():
        with suppress(OSError, ValueError, IndexError):
            waited += int((thread / "schedstat").read_text().split()[1])
    return worked + waited / 1e9


class Watch:
    """Tells a process that is slow from one that has stopped.

    Args:
        busy_s: returns the seconds that the process has worked so far; they may fall when a part of it ends.
        patience_s: how long nothing may get done before ``busy_s`` decides.

    Thread safety: for one thread.
    """

    def __init__(self, busy_s: Callable[[], float], patience_s: float, now: float) -> None:
        self._busy_s, self._patience_s = busy_s, patience_s
        self._done: Hashable = None
        self._last, self._looked = busy_s(), now
        self._worked = 0.0
        self._begin = self.quiet_since = now

    def stopped(self, done: Hashable, now: float) -> bool:
        """Tells whether the process has stopped; ``done`` is what it has done so far, in any form that compares."""
        if done != self._done:
            self._done, self.quiet_since = done, now
            self._again(now)
        if now - self._looked >= 1.0:
            busy, self._looked = self._busy_s(), now
            self._worked, self._last = self._worked + max(0.0, busy - self._last), busy
        if now - self._begin < self._patience_s:
            return False
        idle = self._worked < IDLE_SHARE * (now - self._begin)
        if not idle:
            self._again(now)
        return idle

    def _again(self, now: float) -> None:
        self._begin, self._worked = now, 0.0


def _ticks_a_second() -> int:
    return int(getattr(os, "sysconf")("SC_CLK_TCK"))  # noqa: B009 - Linux has it, Windows' types do not

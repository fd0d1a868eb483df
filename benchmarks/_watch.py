"""Looks at the stacks of threads at intervals and tells what each was doing: the timeline of a run.

It patches nothing, so it sees plain torch and safecompile alike. A look costs microseconds.
"""

from __future__ import annotations

import sys
import threading
import time
from types import FrameType
from typing import Any

#: Waiting: the innermost frame, those of threading left out, is one of these; or it takes a lock in one of these files.
_WAITS = {("safecompile/_engine/miss.py", "wait_for"), ("safecompile/_engine/miss.py", "compile")}
_LOCK_USERS = ("torch/_dynamo/convert_frame.py", "torch/_inductor/compile_fx.py", "safecompile/_engine/backward.py")

#: Compiling: otherwise, a frame of one of these files is on the stack.
_COMPILES = _LOCK_USERS


def state_of(frame: FrameType | None) -> str:
    """Returns ``"waits"``, ``"compiles"`` or ``"runs"`` for a stack."""
    innermost = True
    while frame is not None:
        name, function = frame.f_code.co_filename.replace("\\", "/"), frame.f_code.co_name
        if innermost and name.endswith("/threading.py"):
            frame = frame.f_back
            continue
        if innermost and name.endswith(_LOCK_USERS) and "lock" in _line(frame):
            return "waits"
        if innermost and any(name.endswith(file) and function == wanted for file, wanted in _WAITS):
            return "waits"
        if name.endswith(_COMPILES) and function != "run":  # Inductor wraps compiled code in a function of this name
            return "compiles"
        innermost = False
        frame = frame.f_back
    return "runs"


def _line(frame: FrameType) -> str:
    import linecache

    return linecache.getline(frame.f_code.co_filename, frame.f_lineno)


class Watch:
    """Watches the threads whose names begin with ``prefixes`` until it is stopped.

    Thread safety: ``stop`` may be called from any thread; ``spans`` is to be read after it.
    """

    def __init__(self, prefixes: tuple[str, ...], *, every_s: float = 0.1) -> None:
        self.prefixes, self.every_s = prefixes, every_s
        self.spans: dict[str, list[list[Any]]] = {}  # written by the watching thread alone
        self._began = time.perf_counter()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the watch."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self.every_s):
            now = round(time.perf_counter() - self._began, 2)
            names = {t.ident: t.name for t in threading.enumerate()}
            for ident, frame in sys._current_frames().items():
                name = names.get(ident) or f"autograd-{ident}"
                if name.startswith("Dummy-"):
                    name = f"autograd-{name}"
                if name.startswith((*self.prefixes, "autograd")):
                    self._note(name, now, state_of(frame))

    def _note(self, name: str, now: float, state: str) -> None:
        spans = self.spans.setdefault(name, [])
        if spans and spans[-1][2] == state:
            spans[-1][1] = now
        else:
            spans.append([spans[-1][1] if spans else now, now, state])

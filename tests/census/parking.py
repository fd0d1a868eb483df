"""Runs a scene in a thread that is parked again and again, and looks around from another thread each time."""

from __future__ import annotations

import _thread
import gc
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any

from torch._dynamo.eval_frame import skip_code

from tests.helpers.threads import ROOT

from .getters import Answers
from .looking import landscape

LIBRARY = str(ROOT / "safecompile")
Run = Callable[[], Any]
_stops: list[Callable[[FrameType], None]] = []


def here() -> None:
    """Parks the scene that calls this in the middle of what it does, if it is looked at."""
    for stop in _stops:
        stop(sys._getframe(1))


class Calls:
    """Counts a thread's calls, and the different functions among them; stops at some of both.

    Args:
        stop: called with the frame.
        every: stop at each so-manieth call; 0 for never.
        new: at each so-manieth function that is called for the first time.
    """

    def __init__(self, stop: Callable[[FrameType], None], every: int = 0, new: int = 0) -> None:
        self.stop, self.every, self.new = stop, every, new
        self.calls = 0
        self.functions: set[int] = set()

    def __enter__(self) -> None:
        functions, stop, every, new = self.functions, self.stop, self.every or sys.maxsize, self.new or sys.maxsize

        def profile(frame: FrameType, event: str, arg: Any) -> None:
            if frame.f_code.co_filename.startswith(LIBRARY):
                return  # it may hold a lock that whoever looks around needs for a moment
            if event == "call":
                self.calls += 1
                number = id(frame.f_code)
                if number not in functions:
                    functions.add(number)
                    if not len(functions) % new:
                        stop(frame)
                        return
                if not self.calls % every:
                    stop(frame)
            elif event == "c_call":
                self.calls += 1
                if not self.calls % every:
                    stop(frame)

        _not_for_dynamo(profile)
        sys.setprofile(profile)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)


def _not_for_dynamo(function: Any) -> None:
    """Keeps Dynamo from compiling the functions that watch it."""
    skip_code(function.__code__)


class Watch:
    """Looks at a scene.

    Args:
        stops: how often to park it, about.
        limit_s: seconds for each of its runs.
    """

    def __init__(self, run: Run, stops: int, limit_s: float) -> None:
        self.run, self.stops, self.limit_s = run, stops, limit_s
        self._asked, self._go = _thread.allocate_lock(), _thread.allocate_lock()
        self._asked.acquire()
        self._go.acquire()
        self._at, self._parked = "", False
        self.found: dict[str, dict[str, Any]] = {}
        self.looked = 0
        self.error: BaseException | None = None

    def look(self, warm: int = 2) -> None:
        """Runs the scene ``warm`` times, so that what is made once is there; then once more, parked."""
        calls = Calls(lambda _: None)
        self._answers, self._landscape = Answers(), landscape()
        for number in range(warm):
            with_calls = calls if number == warm - 1 else None
            self._in_thread(with_calls)
        gc.collect()
        self._answers.renew()
        self._landscape.extend()
        _not_for_dynamo(self._stop.__func__)
        _stops.append(self._stop)
        try:
            half = max(1, self.stops // 2)
            self._in_thread(Calls(self._stop, calls.calls // half + 1, len(calls.functions) // half + 1))
        finally:
            _stops.clear()
        after = self._differences()
        for name, finding in self.found.items():
            finding["stays"] = name in after
        for name, (before, now) in after.items():
            self.found.setdefault(name, {"before": before, "now": now, "at": "the end", "stays": True})
        self.calls, self.functions = calls.calls, len(calls.functions)

    def _in_thread(self, calls: Calls | None) -> None:
        def job() -> None:
            try:
                if calls is None:
                    self.run()
                else:
                    with calls:
                        self.run()
            except BaseException as error:
                self.error = error

        thread = threading.Thread(target=job, daemon=True, name="the scene")
        thread.start()
        until = time.monotonic() + self.limit_s
        while thread.is_alive():
            if self._asked.acquire(timeout=0.05):
                self._look_around()
                self._go.release()
            if time.monotonic() > until:
                stack = "".join(traceback.format_stack(sys._current_frames().get(thread.ident or 0)))
                raise TimeoutError(f"the scene has not ended after {self.limit_s:g} s, {self.looked} looks\n{stack}")
        if self.error is not None:
            raise self.error

    def _stop(self, frame: FrameType) -> None:
        if self._parked:  # the calls in here are the thread's, too
            return
        self._parked = True
        self._at = f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}"
        self._asked.release()
        self._go.acquire()
        self._parked = False

    def _look_around(self) -> None:
        self.looked += 1
        for name, (before, now) in self._differences(closely=self.looked % 8 == 0).items():
            self.found.setdefault(name, {"before": before, "now": now, "at": self._at})

    def _differences(self, *, closely: bool = True) -> dict[str, tuple[str, str]]:
        return self._answers.differences() | self._landscape.differences(closely=closely)

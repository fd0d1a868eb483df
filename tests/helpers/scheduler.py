"""A deterministic scheduler: real threads run real code, one at a time, in an order that the test decides.

Each line (or instruction) of the traced files is a point where another thread may go on, and so is each wait: the
locks and events of the code under test must be replaced by ones that wait through :meth:`Scheduler.block`. Time is
virtual: it passes only when every thread waits. The same choices give the same run, so a schedule that fails can
be run again.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

#: Virtual seconds that a run may spend with every thread waiting, before it counts as hung.
IDLE_LIMIT_S = 60.0


class Hang(AssertionError):
    """No thread could go on, or all of them went round in circles."""


class Stuck(BaseException):
    """Raised in the threads of a run that is over, so that they end."""


class Worker:
    """One thread of a run."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.baton = threading.Semaphore(0)
        self.ready: Callable[[], bool] | None = None
        self.deadline: float | None = None
        self.timed_out = self.finished = self.may_end = False
        self.steps = 0
        self.value: Any = None
        self.error: BaseException | None = None
        self.where = ""

    def can_go_on(self) -> bool:
        """Tells whether this thread waits for nothing."""
        return not self.finished and (self.ready is None or self.timed_out or self.ready())


class Scheduler:
    """Runs functions in threads, one at a time.

    Args:
        choose: receives the options (indices of threads, the running one first if it can go on) and returns one.
        files: the files whose lines are points.
        opcodes: makes each instruction a point, not only each line.
        inject: receives a thread and raises what is to be raised at that point.
    """

    def __init__(
        self,
        choose: Callable[[list[int], bool], int],
        files: Iterable[str],
        *,
        opcodes: bool = False,
        inject: Callable[[Worker], None] | None = None,
    ) -> None:
        self.choose, self.files, self.opcodes, self.inject = choose, frozenset(files), opcodes, inject
        self.workers: list[Worker] = []
        self.by_ident: dict[int, Worker] = {}
        self.now = self.idle_s = 0.0
        self.trouble: str | None = None
        self._over = threading.Event()

    def run(self, functions: list[Callable[[], Any]], timeout_s: float = 60.0) -> list[Worker]:
        """Runs the functions to their end and returns what became of each.

        Raises:
            Hang: they never end under this schedule.
        """
        self.workers = [Worker(index) for index in range(len(functions))]
        threads = [
            threading.Thread(target=self._main, args=(worker, function), daemon=True)
            for worker, function in zip(self.workers, functions, strict=True)
        ]
        for thread in threads:
            thread.start()
        self._pick(None).baton.release()
        if not self._over.wait(timeout_s):
            self.trouble = f"a thread waits outside the scheduler, at {[w.where for w in self.workers]}"
        for thread in threads:
            thread.join(1.0)
        if self.trouble is not None:
            raised = [one.error for one in self.workers if one.error is not None and not isinstance(one.error, Stuck)]
            raise Hang(self.trouble) from next(iter(raised), None)
        return self.workers

    def monotonic(self) -> float:
        """The virtual time, in seconds; it never stands quite still."""
        self.now += 1e-6
        return self.now

    def point(self, where: str = "") -> None:
        """Lets another thread go on, if so chosen; may raise what is injected."""
        me = self.by_ident.get(threading.get_ident())
        if me is None:
            return
        me.steps += 1
        me.where = where or me.where
        self._hand_over(me)
        if self.inject is not None:
            self.inject(me)

    def block(
        self, ready: Callable[[], bool], timeout: float | None = None, where: str = "", *, may_end: bool = False
    ) -> bool:
        """Waits until ``ready()`` or for ``timeout`` virtual seconds; tells which.

        Args:
            may_end: the end of the wait is a step of its own, which may be chosen while other threads can go on.
        """
        me = self.by_ident[threading.get_ident()]
        me.where = where
        if self.inject is not None:
            self.inject(me)
        me.ready, me.deadline = ready, None if timeout is None or timeout < 0 else self.now + timeout
        me.may_end = may_end
        try:
            self._hand_over(me)
            return not me.timed_out
        finally:
            me.ready, me.deadline, me.timed_out, me.may_end = None, None, False, False

    def trace_again(self) -> None:
        """Traces this thread (again): Python stops tracing a thread when its trace function has raised."""
        if sys.gettrace() is None and threading.get_ident() in self.by_ident:
            frame: FrameType | None = sys._getframe()
            while frame is not None:
                if frame.f_code.co_filename in self.files:
                    frame.f_trace, frame.f_trace_opcodes = self._local, self.opcodes
                frame = frame.f_back
            sys.settrace(self._call)

    def _main(self, worker: Worker, function: Callable[[], Any]) -> None:
        self.by_ident[threading.get_ident()] = worker
        worker.baton.acquire()
        sys.settrace(self._call)
        try:
            worker.value = function()
        except BaseException as error:
            worker.error = error
        finally:
            sys.settrace(None)
            worker.finished = True
            del self.by_ident[threading.get_ident()]
            if all(one.finished for one in self.workers):
                self._over.set()
            else:
                self._pick(None).baton.release()

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code.co_filename not in self.files:
            return None
        frame.f_trace_opcodes = self.opcodes
        return self._local

    def _local(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == ("opcode" if self.opcodes else "line"):
            self.point(f"{frame.f_code.co_name}:{frame.f_lineno}")
        return self._local

    def _hand_over(self, me: Worker) -> None:
        if self.trouble is not None:
            raise Stuck
        following = self._pick(me)
        if following is not me:
            following.baton.release()
            me.baton.acquire()
        if self.trouble is not None:
            raise Stuck

    def _pick(self, me: Worker | None) -> Worker:
        unfinished = [one for one in self.workers if not one.finished]
        if self.trouble is not None:
            return unfinished[0]
        options = [one for one in unfinished if one.can_go_on() or one.may_end]
        while not options:
            waiting = [one for one in unfinished if one.deadline is not None]
            if not waiting or self.idle_s > IDLE_LIMIT_S:
                self.trouble = f"nobody can go on: {[f'{one.index} at {one.where}' for one in unfinished]}"
                return me if me is not None else unfinished[0]
            first = min(waiting, key=lambda one: one.deadline or 0.0)
            self.idle_s += (first.deadline or 0.0) - self.now
            self.now, first.timed_out = first.deadline or 0.0, True
            options = [first]
        goes_on = me in options and me is not None and me.can_go_on()
        options.sort(key=lambda one: (one is not me, one.index))
        chosen = self.choose([one.index for one in options], goes_on) if len(options) > 1 else options[0].index
        if not self.workers[chosen].can_go_on():
            self.workers[chosen].timed_out, self.now = True, max(self.now, self.workers[chosen].deadline or 0.0)
        return self.workers[chosen]


def every_schedule(preemptions: int) -> Iterator[Callable[[list[int], bool], int]]:
    """Yields a ``choose`` for each schedule in which a thread that could go on is stopped at most so many times."""
    path: list[list[int]] = []  # [choice, number of choices] where there was more than one
    while True:
        depth, left = 0, preemptions

        def choose(options: list[int], goes_on: bool) -> int:
            nonlocal depth, left
            if goes_on and not left:
                return options[0]
            if depth == len(path):
                path.append([0, len(options)])
            choice, count = path[depth]
            assert count == len(options), "a run is not the same as the one before with the same choices"
            depth, left = depth + 1, left - (goes_on and choice > 0)
            return options[choice]

        yield choose
        while path and path[-1][0] + 1 == path[-1][1]:
            path.pop()
        if not path:
            return
        path[-1][0] += 1


def random_schedule(seed: int, switching: float = 0.1) -> Callable[[list[int], bool], int]:
    """Returns a ``choose`` that lets a thread go on, but for a share ``switching`` of the points."""
    dice = random.Random(seed)

    def choose(options: list[int], goes_on: bool) -> int:
        return options[0] if goes_on and dice.random() > switching else dice.choice(options)

    return choose

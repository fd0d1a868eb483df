"""Threads, parked compiles and fresh processes, each with a time limit and never a lost traceback."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[2]

#: Seconds that the other threads still get to end by themselves once one of them has raised.
GRACE_S = 5.0


class Hung(AssertionError):
    """Threads or a process did not end in time; the message holds the stack of every thread."""


def stacks() -> str:
    """Returns the stack of every thread, each under its name."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"--- {names.get(ident, '?')} ({ident})\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )


def run_threads(functions: Iterable[Callable[[], T]], timeout_s: float = 60.0) -> list[T]:
    """Calls each function in a thread of its own, all released at once, and returns their results in order.

    Raises:
        Hung: some thread has not ended after ``timeout_s``, and none has raised.
        BaseException: the first exception that a thread raised, with its traceback.
    """
    jobs = list(functions)
    results: dict[int, T] = {}
    errors: list[BaseException] = []
    start = threading.Barrier(len(jobs))

    def run(index: int) -> None:
        try:
            start.wait(timeout_s)
            results[index] = jobs[index]()
        except BaseException as error:
            errors.append(error)

    # Daemons, so that a hung one doesn't keep the test run from ending.
    threads = [threading.Thread(target=run, args=(i,), name=f"job-{i}", daemon=True) for i in range(len(jobs))]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + timeout_s
    hurried = False
    while (alive := [thread for thread in threads if thread.is_alive()]) and time.monotonic() < deadline:
        if errors and not hurried:
            deadline, hurried = min(deadline, time.monotonic() + GRACE_S), True
        alive[0].join(0.02)
    report = f"{len(alive)} of {len(threads)} threads have not ended: {', '.join(t.name for t in alive)}\n{stacks()}"
    if errors:
        if alive and hasattr(errors[0], "add_note"):
            errors[0].add_note(report)
        raise errors[0]
    if alive:
        raise Hung(f"after {timeout_s:g} s {report}")
    return [results[i] for i in range(len(jobs))]


class ParkedBackend:
    """A backend for ``torch.compile`` that waits in every compile until :meth:`release`, and counts.

    Args:
        parked: False lets compiles through at once.
        timeout_s: a compile that is parked for longer raises :class:`Hung`.

    Attributes:
        compiles: how often the backend was called.
        now, most: how many threads are in it now, and were at most at once.
        threads: the identity of the thread of each call, in order.
    """

    def __init__(self, *, parked: bool = True, timeout_s: float = 60.0) -> None:
        self.__name__ = "parked"
        self.timeout_s = timeout_s
        self.compiles = self.now = self.most = 0
        self.threads: list[int] = []
        self._open = threading.Event()
        # Guards the counts.
        self._counts = threading.Condition()
        if not parked:
            self._open.set()

    def __call__(self, graph_module: Any, example_inputs: list[Any]) -> Callable[..., Any]:
        with self._counts:
            self.compiles += 1
            self.now += 1
            self.most = max(self.most, self.now)
            self.threads.append(threading.get_ident())
            self._counts.notify_all()
        try:
            if not self._open.wait(self.timeout_s):
                raise Hung(f"the backend was not released in {self.timeout_s:g} s\n{stacks()}")
        finally:
            with self._counts:
                self.now -= 1
                self._counts.notify_all()
        return graph_module.forward

    def wait_parked(self, count: int = 1, timeout_s: float = 30.0) -> None:
        """Waits until ``count`` threads are in the backend."""
        with self._counts:
            if not self._counts.wait_for(lambda: self.now >= count, timeout_s):
                raise Hung(f"{self.now} threads are in the backend after {timeout_s:g} s, not {count}\n{stacks()}")

    def release(self) -> None:
        """Lets every compile through, now and later."""
        self._open.set()

    def release_after(self, seconds: float) -> None:
        """Does so once a thread has been in the backend for so many seconds."""
        self.wait_parked()
        time.sleep(seconds)
        self.release()

    def park(self) -> None:
        """Lets no further compile through until :meth:`release`."""
        self._open.clear()


def child_environment() -> dict[str, str]:
    """Returns this process's environment without its ``SAFECOMPILE_*`` variables, the repository on the path."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("SAFECOMPILE_")}
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), variables.get("PYTHONPATH"))))
    return variables


def in_fresh_process(
    code: str, *, timeout_s: float = 90.0, flags: Iterable[str] = (), **env: str
) -> subprocess.CompletedProcess[str]:
    """Runs ``code`` (indented as it stands in the test) with ``python -c``, the repository on its path.

    The child sees this process's environment without its ``SAFECOMPILE_*`` variables, and with ``env`` on top.

    Raises:
        Hung: the child has not ended after ``timeout_s``; the message holds the stack of each of its threads.
    """
    command = [sys.executable, *flags, "-X", "faulthandler", "-c", textwrap.dedent(code)]
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=child_environment() | env,
        cwd=ROOT,
        start_new_session=True,
    )
    try:
        out, err = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGABRT)  # faulthandler prints every thread's stack
        try:
            out, err = child.communicate(timeout=5.0)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            out, err = child.communicate()
        raise Hung(f"the process has not ended after {timeout_s:g} s\n--- stdout\n{out}\n--- stderr\n{err}") from None
    finally:
        with contextlib.suppress(ProcessLookupError):  # what the child left running
            os.killpg(child.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(command, child.returncode, out, err)

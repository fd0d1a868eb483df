"""The live line: on a terminal, while a compile lasts, and only if it was asked for."""

from __future__ import annotations

import io
import os
import sys
import threading
import time
from typing import Any

import pytest
import torch

import safecompile
from safecompile import _warmup
from safecompile._common import activity, telling
from safecompile._engine import progress as inside
from safecompile._torch import threads
from tests.helpers.threads import ParkedBackend, in_fresh_process, run_threads

pytestmark = pytest.mark.usefixtures("nobody_listens")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def body(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def slow_compile(stream: Any, after_s: float, until: str) -> str:
    """Compiles in one thread while another waits, until the stream holds a text or five seconds are over."""
    backend = ParkedBackend()
    compiled = torch.compile(body, backend=backend)

    def release() -> None:
        backend.wait_parked()
        end = time.monotonic() + (15 if until else 1)
        while time.monotonic() < end and not (until and until in stream.getvalue()):
            time.sleep(0.05)
        backend.release()

    with safecompile.progress(stream=stream, after_s=after_s):
        run_threads([lambda: compiled(torch.zeros(2))] * 2 + [release])
    return str(stream.getvalue())


def gone() -> None:
    end = time.monotonic() + 10
    while threads.ours and time.monotonic() < end:
        time.sleep(0.05)
    assert not threads.ours


def test_a_line_on_a_terminal(installed: None) -> None:
    """Function, file, line, device, seconds and who waits; the thread that writes ends with the compile."""
    before = threading.active_count()
    shown = slow_compile(Terminal(), 0.5, "waiting: job-")
    gone()
    assert f"compiling body (test_progress.py:{body.__code__.co_firstlineno}) on cpu, " in shown
    assert " s; waiting: job-" in shown
    assert threading.active_count() == before


def test_its_end_clears_the_line(installed: None) -> None:
    """What is left on the terminal is an empty line."""
    stream = Terminal()
    slow_compile(stream, 0.2, "compiling")
    gone()
    assert stream.getvalue().endswith("\r\x1b[K")


def test_short_compiles_show_nothing(installed: None) -> None:
    """A compile that does not last is not shown."""
    assert slow_compile(Terminal(), 30, "") == ""
    gone()


def test_elsewhere_it_does_nothing(installed: None) -> None:
    """Where the stream is no terminal nobody listens, and nothing is written."""
    stream = io.StringIO()
    with safecompile.progress(stream=stream):
        assert telling.listeners == []
    assert slow_compile(stream, 0.1, "") == ""


@pytest.mark.parametrize(("value", "error"), [("x", TypeError), (None, TypeError), (float("nan"), ValueError)])
def test_what_is_no_number_of_seconds_is_told_at_once(value: Any, error: type[Exception]) -> None:
    """It is an error of the caller's, not of the thread that writes, on a terminal and elsewhere."""
    for stream in (Terminal(), io.StringIO()):
        with pytest.raises(error, match="after_s must be a number of seconds"):
            safecompile.progress(stream=stream, after_s=value)


def test_many_waiting_threads_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three threads are named, the others counted."""
    one = activity.Compiling(body.__code__, "cuda:1")
    waits = [activity.Waiting("result", one.place, "cuda:1", 0.0, None) for _ in range(7)]
    for number, wait in enumerate(waits):
        wait.thread = number
    monkeypatch.setattr(activity, "waiting_now", lambda: waits)
    monkeypatch.setattr(telling, "name_of", lambda ident: f"w{ident}")
    with one:
        assert inside.line(0.0).endswith("on cuda:1, 0 s; waiting: w0, w1, w2 and 4 more")
        assert inside.line(5.0) == ""


def test_the_environment_asks_for_it() -> None:
    """SAFECOMPILE_PROGRESS=1 shows it from the installation to the uninstallation; without, nobody listens."""
    code = """
        import sys
        sys.stderr.isatty = lambda: True
        import safecompile
        from safecompile._common import telling
        safecompile.install()
        print(len(telling.listeners))
        safecompile.uninstall()
        print(len(telling.listeners))
    """
    assert in_fresh_process(code, SAFECOMPILE_PROGRESS="1").stdout.split() == ["1", "0"]
    assert in_fresh_process(code).stdout.split() == ["0", "0"]


class OnlyWrites:
    def write(self, text: str) -> None: ...


def closed() -> Any:
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("stream", [None, OnlyWrites(), closed()])
def test_what_stands_for_stderr_need_not_be_a_file(stream: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No stderr, a closed one, and one that only has write, as loggers put there, are no terminals, and no errors."""
    monkeypatch.setattr(sys, "stderr", stream)
    with safecompile.progress(), _warmup._line_of_progress() as say:
        say("x")
        assert telling.listeners == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_a_forked_child_begins_anew() -> None:
    """The thread that writes is the parent's. A child starts its own, and takes none of its threads for the writer."""
    done = in_fresh_process(
        """
        import os, sys, threading, time
        import safecompile
        from safecompile._common import activity
        from safecompile._torch import threads
        safecompile.install()
        sys.stderr.isatty = lambda: True
        with safecompile.progress(after_s=0.0), activity.Compiling((lambda: 0).__code__, "cpu"):
            while not threads.ours:
                time.sleep(0.01)
            pid = os.fork()
            if pid == 0:
                assert not threads.ours
                with activity.Compiling((lambda: 0).__code__, "cpu"):
                    end = time.monotonic() + 10
                    while not threads.ours and time.monotonic() < end:
                        time.sleep(0.01)
                    os._exit(0 if threads.ours else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        """
    )
    assert done.returncode == 0, done.stderr

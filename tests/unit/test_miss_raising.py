"""An exception at any line of the engine, in real compiles, and Ctrl-C: nothing is left behind, the next call is right.

Windows that pure Python cannot close, by design (the interpreter delivers an asynchronous exception between two
instructions): between the return of the outermost callback and torch's publication of the entry, in C and in torch's
wrapper, where the result is lost and the next call compiles again; and a second exception that strikes while the
first one is being cleaned up after.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from types import FrameType
from typing import Any

import pytest
import torch

from safecompile._common import waits
from safecompile._engine import backward, cache_entries, flights, lookup, miss, returned
from safecompile._torch import dynamo, threads
from tests.helpers.nursery import in_forked_process
from tests.helpers.threads import ParkedBackend, run_threads

FILES = (miss, flights, lookup, returned, waits, cache_entries, backward)
ENGINE = frozenset(str(one.__file__) for one in FILES)


class Struck(BaseException):
    """The exception that strikes."""


pytestmark = pytest.mark.usefixtures("installed")


def in_a_finalizer(frame: FrameType | None) -> bool:
    """Tells whether the frame runs because an object has died: there Python reports exceptions and raises none."""
    while frame is not None and frame.f_code.co_filename in ENGINE:
        if frame.f_code.co_name == "_patched_invalidate":
            return True
        frame = frame.f_back
    return False


class Striking:
    """Raises at one line event of the engine in this thread, the ``at``-th; tells where."""

    def __init__(self, at: int, release: Any = None) -> None:
        self.at, self.count, self.where, self.release = at, 0, "", release

    def __enter__(self) -> Striking:
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        inside = frame.f_code.co_filename in ENGINE and not in_a_finalizer(frame)
        return self._line if inside else None

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line" and not self.where:
            self.count += 1
            if self.release is not None and frame.f_code.co_name == "wait_for":
                self.release()
            if self.count == self.at:
                self.where = f"{frame.f_code.co_name}:{frame.f_lineno}"
                raise Struck
        return self._line


def check_everything_is_back(where: str) -> None:
    lock = dynamo.compile_lock()
    assert lock.acquire(timeout=5), f"struck at {where}: the lock is held"
    lock.release()
    assert not lock._is_owned(), f"struck at {where}: the lock is held more than once"
    assert not miss.flights, f"struck at {where}: a flight is open"
    assert dynamo.autograd_multithreading(), f"struck at {where}: autograd has no worker threads"


@pytest.fixture
def reset(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A reset that leaves no bare entries, which are more lines to go through, though pytest has a timer thread."""

    def reset() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(threads, "others_are_alive", lambda: False)
            torch.compiler.reset()

    return reset


def a_new_function(body: str = "x + 1") -> Any:
    """Returns a function whose code has never been compiled.

    As if it stood in this file: around one of no file torch puts a function of its own, with entries of all of them.
    """
    space: dict[str, Any] = {}
    exec(compile(f"def function(x):\n    return {body}", __file__, "exec"), space)
    return space["function"]


def reached_the_end(where: str, at: int, least: int) -> bool:
    """Tells whether nothing was struck any more, which must not be so too soon."""
    assert where or at > least
    return not where


def test_an_exception_at_any_line_of_a_leader(reset: Any) -> None:
    """Wherever it strikes the thread that compiles: everything is as before, and the next call is right."""
    for at in range(1, 500):
        reset()
        compiled = torch.compile(a_new_function(), backend="eager")
        x = torch.zeros(2)
        try:
            with Striking(at) as striking:
                compiled(x)
        except Struck:
            pass
        check_everything_is_back(striking.where)
        assert compiled(x).tolist() == [1.0, 1.0]
        if reached_the_end(striking.where, at, 30):
            return
    pytest.fail("the exceptions did not reach the end of the call")


def test_an_exception_at_any_line_of_a_follower(reset: Any) -> None:
    """Wherever it strikes a thread that waits: everything is as before, its next call and the leader's are right."""
    for at in range(1, 500):
        reset()
        backend = ParkedBackend()
        compiled = torch.compile(a_new_function(), backend=backend)
        where: list[str] = []

        def follow(at: int = at, backend: Any = backend, compiled: Any = compiled, where: Any = where) -> None:
            backend.wait_parked()
            x = torch.zeros(2)
            try:
                with Striking(at, backend.release) as striking:
                    compiled(x)
            except Struck:
                pass
            backend.release()
            where.append(striking.where)
            assert dynamo.autograd_multithreading()
            assert compiled(x).tolist() == [1.0, 1.0]

        run_threads([lambda compiled=compiled: compiled(torch.zeros(2)), follow], 30)
        check_everything_is_back(where[0])
        assert backend.compiles == 1
        if reached_the_end(where[0], at, 20):
            return
    pytest.fail("the exceptions did not reach the end of the call")


def test_an_exception_at_any_line_of_a_backward(reset: Any) -> None:
    """Wherever it strikes the first backward: everything is as before, and the next forward and backward are right."""
    for at in range(1, 200):
        reset()
        compiled = torch.compile(a_new_function("x.sin()"), backend="aot_eager")
        out = compiled(torch.zeros(2, requires_grad=True)).sum()
        try:
            with Striking(at) as striking:
                out.backward()
        except Struck:
            pass
        check_everything_is_back(striking.where)
        x = torch.zeros(2, requires_grad=True)
        compiled(x).sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [1.0, 1.0]
        if not striking.where:
            assert at > 10
            return
    pytest.fail("the exceptions did not reach the end of the backward")


def test_an_asynchronous_exception_ends_a_wait_within_a_second() -> None:
    """A thread that waits for a leader, or for the lock, can be ended while the compile goes on."""
    backend = ParkedBackend()
    same = torch.compile(lambda x: x + 1, backend=backend)
    other = torch.compile(lambda x: x + 2, backend="eager")
    leader = threading.Thread(target=same, args=(torch.zeros(2),), daemon=True)
    leader.start()
    backend.wait_parked()
    for compiled in (same, other):
        ended: list[float] = []

        def wait(compiled: Any = compiled, ended: list[float] = ended) -> None:
            try:
                compiled(torch.zeros(2))
            except Struck:
                ended.append(time.monotonic())

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        time.sleep(0.3)
        struck = time.monotonic()
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Struck))
        thread.join(5)
        assert ended, "the thread still waits, or its call went through"
        assert ended[0] - struck < 1.0
    assert leader.is_alive()
    backend.release()
    leader.join(30)
    check_everything_is_back("a wait")
    assert same(torch.zeros(2)).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("waits_for", ["leader", "lock", "backward"])
@pytest.mark.skipif(not hasattr(os, "fork"), reason="signals as on POSIX")
def test_ctrl_c_ends_the_wait_of_the_main_thread(waits_for: str) -> None:
    """Ctrl-C reaches a main thread that waits for another's compile within a second; a call after it is right."""
    result = in_forked_process(
        f"""
        import os, signal, threading, time
        import torch, safecompile.patch_all
        from tests.helpers.threads import ParkedBackend
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
        backend = ParkedBackend()
        same = torch.compile(lambda x: x * 2, backend=backend)
        other = torch.compile(lambda x: x * 2, backend="aot_eager")
        x = torch.ones(2, requires_grad=True)
        wait = {{"leader": lambda: same(torch.ones(2)), "lock": lambda: other(torch.ones(2)),
                "backward": (lambda y: lambda: y.sum().backward())(other(x))}}[{waits_for!r}]
        leader = threading.Thread(target=lambda: same(torch.ones(2)), daemon=True)
        leader.start()
        backend.wait_parked()
        sent = []
        def interrupt():
            sent.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)
        threading.Timer(0.7, interrupt).start()
        try:
            wait()
        except KeyboardInterrupt:
            print("after", time.monotonic() - sent[0] < 1.0, leader.is_alive())
        backend.release()
        leader.join()
        print(same(torch.ones(2)).tolist(), other(torch.ones(2)).tolist())
        """
    )
    assert result.stdout.splitlines() == ["after True True", "[2.0, 2.0] [2.0, 2.0]"], result.stderr

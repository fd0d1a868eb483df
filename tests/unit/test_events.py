"""Events: typed records of what every thread did, for those who listen."""

from __future__ import annotations

import _thread
import dataclasses
import math
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

import safecompile
from safecompile import events
from safecompile._common import events as inside
from safecompile._common import telling
from safecompile._engine import flights
from safecompile._isolation import graph_trees
from safecompile._torch import dynamo
from tests.helpers.nursery import in_forked_process
from tests.helpers.threads import ParkedBackend, in_fresh_process, run_threads

pytestmark = pytest.mark.usefixtures("installed", "nobody_listens")


def body(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def cold(threads: int = 3) -> None:
    """One compile that the other threads wait for."""
    backend = ParkedBackend()
    compiled = torch.compile(body, backend=backend)

    def release() -> None:
        backend.wait_parked()
        end = time.monotonic() + 20
        while len(flights.flights) != 1 or len(inside_waits()) < threads - 1:
            assert time.monotonic() < end
            time.sleep(0.01)
        backend.release()

    run_threads([lambda: compiled(torch.zeros(2))] * threads + [release])


def inside_waits() -> list[Any]:
    from safecompile._common import activity

    return activity.waiting_now()


def test_a_recording_holds_typed_records() -> None:
    """Threads that start cold: one compile begins and ends, the others wait and reuse; all with place and thread."""
    before = time.monotonic()
    with safecompile.record() as recorded:
        cold()
    cold()  # not recorded
    assert [type(one) for one in recorded.of(events.CompileBegun)] == [events.CompileBegun]
    (ended,) = recorded.of(events.CompileEnded)
    assert (ended.outcome, ended.seconds > 0) == ("compiled", True)
    assert sorted(type(one).__name__ for one in recorded.of(events.Miss)) == ["Miss", "Reuse", "Reuse"]
    waits = recorded.of(events.Wait)
    assert [(one.reason, one.holder) for one in waits] == [("result", ended.thread)] * 2
    assert {one.thread for one in waits} == {one.thread for one in recorded.of(events.Reuse)}
    for one in recorded:
        assert (one.function, one.device, one.filename) == ("body", "cpu", __file__)
        assert one.line == body.__code__.co_firstlineno
        assert before < one.at_s < time.monotonic()
        assert one.thread.startswith("job-")
        with pytest.raises(dataclasses.FrozenInstanceError):
            one.thread = ""  # type: ignore[misc]
    assert [one.at_s for one in recorded] == sorted(one.at_s for one in recorded)
    assert len(recorded) == len(list(recorded)) == 7
    assert recorded[-1] == recorded[5:][-1] == list(recorded)[-1]
    assert isinstance(recorded[0], events.CompileBegun)


def test_a_recording_is_bounded() -> None:
    """Of more events than it keeps, the newest are left."""
    with safecompile.record(most=2) as recorded:
        cold()
    assert len(recorded) == 2
    assert isinstance(recorded[-1], events.Miss)


def test_callbacks_come_in_their_thread_without_a_lock() -> None:
    """Each event is told in the thread that it is about, a compile's begin too, once no lock is held there."""
    told: list[tuple[events.Event, str, bool]] = []

    def note(event: events.Event) -> None:
        told.append((event, threading.current_thread().name, dynamo.compiles_here()))

    end = events.subscribe(note)
    only_waits: list[events.Event] = []
    end_waits = events.subscribe(only_waits.append, events.Wait)
    try:
        cold()
    finally:
        end()
        end_waits()
    assert all(event.thread == thread for event, thread, _ in told)
    assert not any(locked for *_, locked in told)
    kinds = [type(event).__name__ for event, *_ in told]
    assert sorted(kinds) == ["CompileBegun", "CompileEnded", "Miss", "Reuse", "Reuse", "Wait", "Wait"]
    assert len(only_waits) == 2
    cold()
    assert len(told) == 7


def test_a_failure_names_its_error() -> None:
    """A compile that raises ends as failed, and so does its miss, with the class of the error."""

    def failing(graph_module: Any, example_inputs: Any) -> Any:
        raise ValueError("no")

    with safecompile.record() as recorded, pytest.raises(Exception, match="no"):
        torch.compile(lambda x: x + 1, backend=failing)(torch.zeros(2))
    assert [one.outcome for one in recorded.of(events.CompileEnded)] == ["failed"]
    (failed,) = recorded.of(events.Failed)
    assert failed.outcome == "failed"
    assert failed.error == "BackendCompilerFailed"


def test_backwards_are_named() -> None:
    """The compile of a backward begins and ends under its function's name."""
    with safecompile.record() as recorded:
        torch.compile(lambda x: x.sin(), backend="aot_eager")(torch.zeros(2, requires_grad=True)).sum().backward()
    begun = [one.function.endswith(" (backward)") for one in recorded.of(events.CompileBegun)]
    assert begun == [False, True]
    assert [one.outcome for one in recorded.of(events.CompileEnded)] == ["compiled"] * 2


def test_a_wait_for_the_lock_names_its_holder() -> None:
    """A thread that compiles another function waits for the lock, and tells who had it."""
    backend = ParkedBackend()
    first, second = torch.compile(body, backend=backend), torch.compile(lambda x: x + 2, backend="eager")

    def follow() -> None:
        backend.wait_parked()
        threading.Timer(0.3, backend.release).start()
        second(torch.zeros(2))

    with safecompile.record() as recorded:
        run_threads([lambda: first(torch.zeros(2)), follow])
    (wait,) = recorded.of(events.Wait)
    assert (wait.reason, wait.thread, wait.holder) == ("lock", "job-1", "job-0")
    assert wait.seconds > 0.1


def test_other_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """A foreign trace, a gate of CUDA graphs that was taken, and a reset that was put off each have a record."""
    monkeypatch.setattr(graph_trees, "gates", {})
    with safecompile.record() as recorded:
        inside.warn_of_wrapping(body.__code__, "sqrt", "cpu")
        inside.reset_is_put_off(body.__code__)
        graph_trees.enter("use", 1).release()
        held = graph_trees.enter("use", 0)
        thread = threading.Thread(target=lambda: graph_trees.enter("use", 0).release())
        thread.start()
        time.sleep(0.2)
        held.release()
        thread.join()
    assert [type(one) for one in recorded] == [events.ForeignTrace, events.ResetPutOff, events.CaptureGated]
    gated = recorded.of(events.CaptureGated)[0]
    assert (gated.device, gated.function) == ("cuda:0", "")
    assert gated.seconds > 0.05
    assert recorded.of(events.ForeignTrace)[0].name == "sqrt"


def test_threads_that_python_did_not_start() -> None:
    """A thread without an object of Python's has a name of its number, and gets no object by it."""
    done = threading.Event()

    def work() -> None:
        inside.tell(events.Wait, "cpu", inside.place(body.__code__), 1.0, "lock", "")
        seen.append((threading.get_ident(), threading.get_native_id(), len(threading.enumerate())))
        done.set()

    seen: list[tuple[int, int, int]] = []
    before = len(threading.enumerate())
    with safecompile.record() as recorded:
        _thread.start_new_thread(work, ())
        assert done.wait(20)
    (one,), ((ident, native, count),) = recorded, seen
    assert (one.thread, one.thread_id, count) == (f"thread {ident}", native, before)


def test_nothing_is_told_while_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a listener no event is made."""

    def never(*_: Any) -> None:
        raise AssertionError("told")

    for module in (telling, inside):
        monkeypatch.setattr(module, "tell", never)
    cold()
    assert not telling._here.pending


def test_a_record_in_code_that_is_traced_leaves_no_listener() -> None:
    """Before the installation Dynamo traces it like any code."""
    done = in_forked_process(
        """
        import torch, safecompile
        from safecompile._common import telling

        def records(x):
            with safecompile.record():
                return x.sin()

        torch.compile(records, backend="eager")(torch.ones(1))
        assert telling.listeners == []
        """
    )
    assert done.returncode == 0, done.stderr


def test_recording_an_event_costs_two_microseconds_at_most() -> None:
    """What one event costs, its making included: two microseconds, where an empty call takes 70 ns (CPU time)."""

    def empty(*_: Any) -> None:
        pass

    def best(call: Callable[..., None], *arguments: Any) -> float:
        costs = []
        for _ in range(50):
            began = time.thread_time_ns()
            for _ in range(1000):
                call(*arguments)
            costs.append((time.thread_time_ns() - began) / 1000)
        return min(costs)

    arguments = (events.Wait, "cpu", inside.place(body.__code__), 1.0, "lock", "other")
    with safecompile.record():
        cost = best(inside.tell, *arguments)
    assert cost <= 2000 / 70 * best(empty, *arguments), f"{cost:.0f} ns"


@pytest.mark.parametrize(
    "wrong", [(None,), ("print",), (print, "Miss"), (print, [events.Miss]), (print, events.Miss, 1)]
)
def test_what_can_not_listen_is_refused_at_once(wrong: tuple[Any, ...]) -> None:
    """A mistaken subscription raises where it is made, not in the middle of somebody's compile."""
    with pytest.raises(safecompile.SafeCompileError, match="subscribe\\(\\) got"):
        events.subscribe(*wrong)
    assert telling.listeners == []


def test_callbacks_that_raise_in_two_threads_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """A subscriber that raises in several threads at the same time is dropped with one WARNING, and no call fails."""
    meet = threading.Barrier(3, timeout=20)

    def raising(_: events.Event) -> None:
        meet.wait()
        raise ValueError("mine")

    events.subscribe(raising, events.Miss)
    cold()
    assert [one.getMessage()[:12] for one in caplog.records if one.name == "safecompile"] == ["a subscriber"]
    assert telling.listeners == []


def test_who_leaves_twice_leaves_once() -> None:
    """A recording and a subscription may be ended by two threads at once: the second does nothing."""
    with safecompile.record() as recorded:
        recorded.__exit__()
    end = events.subscribe(print)
    end()
    end()
    assert telling.listeners == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_a_forked_child_has_a_number_of_its_own() -> None:
    """The records of a forked child name its thread by its number, not by the parent's."""
    done = in_fresh_process(
        """
        import os, threading
        import safecompile
        from safecompile._common import events
        threading.main_thread().native_id
        with safecompile.record() as recorded:
            pid = os.fork()
            if pid == 0:
                events.emit((lambda: 0).__code__, "cpu", "leader", 0.0, 0.0, "uncompiled")
                right = recorded[0].thread_id == threading.get_native_id() == os.getpid()
                os._exit(0 if right and type(recorded[0]) is safecompile.events.Uncompiled else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        """
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("text", "seconds"), [("30", 30.0), ("inf", math.inf), ("nan", 60.0), ("-1", 60.0), ("x", 60.0)]
)
def test_seconds_of_the_wait_warning(text: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no positive number of seconds is told of, and means a minute: with nan every wait would be reported."""
    monkeypatch.setenv("SAFECOMPILE_WAIT_WARNING_S", text)
    assert inside._from_environment() == seconds

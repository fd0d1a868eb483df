"""What the engine tells of each miss, and of a wait that is long."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from safecompile._common import events
from safecompile._engine import flights as engine
from tests.helpers.threads import ParkedBackend, run_threads


@pytest.fixture(autouse=True)
def told(installed: None) -> Iterator[list[events.Miss]]:
    misses: list[events.Miss] = []
    unsubscribe = events.subscribe(misses.append)
    yield misses
    unsubscribe()


@torch.compiler.disable
def breaks(x: torch.Tensor) -> torch.Tensor:
    return x


def test_one_event_for_each_miss(told: list[events.Miss]) -> None:
    """Each thread that misses tells once: one led, the others waited for it and used its result."""
    backend = ParkedBackend()

    def body(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    compiled = torch.compile(body, backend=backend)

    run_threads([lambda: compiled(torch.zeros(2))] * 6 + [lambda: backend.release_after(0.5)])
    assert len(told) == len({one.thread for one in told}) == 6
    assert Counter((one.role, one.outcome) for one in told) == {
        ("leader", "compiled"): 1,
        ("follower", "reused"): 5,
    }
    for one in told:
        assert (one.filename, one.line, one.device) == (__file__, body.__code__.co_firstlineno, "cpu")
        assert one.function.endswith("body")
        if one.role == "leader":
            assert one.compiled_s >= 0.5
        else:
            assert (one.compiled_s, one.waited_s > 0) == (0.0, True)
    assert not [one for one in told if one.waited_s > 30]


def test_the_first_backward_tells(told: list[events.Miss]) -> None:
    """The compile of a backward tells as a miss does, under the forward's name; a warm one tells nothing."""

    def body(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    compiled = torch.compile(body, backend="aot_eager")
    outputs = [compiled(torch.zeros(2, requires_grad=True)).sum() for _ in range(4)]
    told.clear()
    barrier = threading.Barrier(3)

    def backward(output: torch.Tensor) -> None:
        barrier.wait(30)
        output.backward()

    run_threads([lambda output=output: backward(output) for output in outputs[:3]])
    assert [one.outcome for one in told].count("compiled") == 1
    assert {one.outcome for one in told} <= {"compiled", "reused"}
    for one in told:
        assert one.function.endswith("body (backward)")
        assert (one.line, one.device) == (body.__code__.co_firstlineno, "cpu")
    told.clear()
    outputs[3].backward()
    assert told == []


def test_a_warm_call_tells_nothing(told: list[events.Miss]) -> None:
    """A call that finds its compiled code is no miss."""
    compiled = torch.compile(lambda x: x + 1, backend="eager")
    compiled(torch.zeros(2))
    told.clear()
    compiled(torch.zeros(2))
    assert told == []


def test_resumed_frames_tell_too(told: list[events.Miss]) -> None:
    """A function with a graph break misses twice, and so does each follower."""
    backend = ParkedBackend(parked=False)
    compiled = torch.compile(lambda x: breaks(x + 1) * 2, backend=backend)
    run_threads([lambda: compiled(torch.zeros(2))] * 4)
    assert sum(one.outcome == "compiled" for one in told) == backend.compiles == 2
    assert {one.outcome for one in told} == {"compiled", "reused"}


def test_a_compile_that_fails(told: list[events.Miss]) -> None:
    """The outcome of a compile that raised is "failed"."""

    def failing(graph_module: Any, example_inputs: Any) -> Any:
        raise ValueError("no")

    with pytest.raises(Exception, match="no"):
        torch.compile(lambda x: x + 1, backend=failing)(torch.zeros(2))
    assert [(one.role, one.outcome) for one in told] == [("leader", "failed")]


def test_a_listener_that_raises_harms_nobody(told: list[events.Miss], caplog: pytest.LogCaptureFixture) -> None:
    """A listener that raises is logged once, with its traceback, and dropped; the call goes on, and others hear."""

    def raising(miss: events.Miss) -> None:
        raise ValueError("a bad listener")

    events.subscribe(raising)
    with caplog.at_level(logging.WARNING, "safecompile"):
        for size in (2, 3):
            assert torch.compile(lambda x: x + 1, backend="eager")(torch.zeros(size)).tolist() == [1.0] * size
    assert caplog.text.count("a bad listener") == 2  # the line that raised, and what
    assert [record.name for record in caplog.records].count("safecompile") == 1
    assert [one.outcome for one in told if one.outcome != "skipped"] == ["compiled"] * 2


def test_a_listener_holds_no_lock(told: list[events.Miss]) -> None:
    """A listener may compile and may wait for other threads: its thread holds no lock and leads no flight."""
    second = torch.compile(lambda x: x + 2, backend="eager")
    first = threading.Lock()

    def listener(_: events.Miss) -> None:
        if first.acquire(blocking=False):  # not for the miss that it causes itself
            flights.append(len(engine.flights))
            run_threads([lambda: second(torch.zeros(2))], 20)

    flights: list[int] = []
    unsubscribe = events.subscribe(listener)
    try:
        run_threads([lambda: torch.compile(lambda x: x + 1, backend="eager")(torch.zeros(2))], 30)
    finally:
        unsubscribe()
    assert flights == [0]
    assert [one.outcome for one in told if one.outcome != "skipped"] == ["compiled"] * 2


@pytest.mark.parametrize("same", [True, False])
def test_a_long_wait_is_warned_of_once(
    same: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A wait for a leader or for the lock that is too long logs one WARNING, with the holder's stack."""
    monkeypatch.setattr(events, "wait_warning_s", 0.6)
    backend = ParkedBackend()

    def body(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def other(x: torch.Tensor) -> torch.Tensor:
        return x + 2

    compiled = torch.compile(body, backend=backend)
    waiting = compiled if same else torch.compile(other, backend="eager")

    def follow() -> None:
        backend.wait_parked()
        waiting(torch.zeros(2))

    def release() -> None:
        time.sleep(2.5)
        backend.release()

    with caplog.at_level(logging.WARNING, "safecompile"):
        run_threads([lambda: compiled(torch.zeros(2)), follow, release])
    warnings = [record for record in caplog.records if record.name == "safecompile"]
    assert len(warnings) == 1
    text = warnings[0].getMessage()
    assert ("body" if same else "other") in text
    assert "on cpu" in text
    assert "'job-0'" in text
    assert "'job-1'" in text
    assert "in __call__" in text.partition("Stack of")[2]
    assert "_open.wait" in text

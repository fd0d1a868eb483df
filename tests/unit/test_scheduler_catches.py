"""The scheduler can fail: each known bug, brought back into the engine, is caught by it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from safecompile._common import waits
from safecompile._engine import miss, returned
from safecompile._torch import frame_rules
from tests.helpers.fake_torch import Barrier, FakeTorch
from tests.helpers.scheduler import Hang, every_schedule
from tests.helpers.schedules import Failure, Job, again_after_a_failure, calls, run

Change = Callable[[pytest.MonkeyPatch, FakeTorch], None]
THE_SAME = [calls("f", 1), calls("f", 1)]


def first_trouble(change: Change | None, jobs: list[Job], outcomes: Any = None) -> BaseException | None:
    """Runs each schedule with one stop until something goes wrong, and returns what."""
    for choose in every_schedule(1):
        try:
            planned = {key: list(value) for key, value in (outcomes or {}).items()}
            torch, _ = run(jobs, choose, outcomes=planned, change=change)
            allowed = 1 + sum(map(len, (outcomes or {}).values()))
            assert max(Counter(torch.compiles).values()) <= allowed, f"compiled again: {torch.compiles}"
            assert torch.scheduler.idle_s < waits.TICK_S, "a thread slept through its wake-up"
        except (AssertionError, Failure) as error:
            return error
    return None


def test_no_second_look_after_the_wait() -> None:
    """A follower that doesn't look again compiles again: caught."""

    def change(patch: pytest.MonkeyPatch, torch: FakeTorch) -> None:
        patch.setattr(miss, "find", lambda callback, frame, region: None)

    assert "compiled again" in str(first_trouble(change, THE_SAME))


@pytest.mark.parametrize("way", ["call", "resume", "in_autograd"])
def test_a_look_at_the_published_entries_only(way: str) -> None:
    """Where the leader stops between its callback's return and the publication, a follower compiles again: caught."""

    class Forgetful(dict):  # type: ignore[type-arg]
        def __setitem__(self, key: Any, value: Any) -> None:
            pass

    stopped_at: list[str] = []

    def change(patch: pytest.MonkeyPatch, torch: FakeTorch) -> None:
        patch.setattr(returned, "notes", Forgetful())

        def in_compile(name: str, shape: int) -> None:
            if len(torch.compiles) == 2:
                stopped_at.extend(worker.where for worker in torch.scheduler.workers)

        torch.in_compile = in_compile

    assert "compiled again" in str(first_trouble(change, [calls("f", 1, way), calls("f", 1, way)]))
    assert "callback has returned" in stopped_at


def test_a_flight_that_an_error_leaves_open() -> None:
    """A compile that raises and doesn't end its flight leaves the others waiting for ever: caught."""
    settle = miss._Call.settle

    def settle_a_success(self: Any, lock: Any, flight: Any, multithreading: bool) -> None:
        settle(self, lock, flight if self.result is not None else None, multithreading)

    def change(patch: pytest.MonkeyPatch, torch: FakeTorch) -> None:
        patch.setattr(miss._Call, "settle", settle_a_success)
        patch.setattr(miss.Flight, "is_abandoned", lambda self: False)

    jobs = [again_after_a_failure(job) for job in THE_SAME]
    trouble = first_trouble(change, jobs, {("f", 1): [Failure()]})
    assert isinstance(trouble, Hang) or "flight" in str(trouble)


def test_a_lost_wake_up() -> None:
    """A flight that ends without waking its followers is noticed by them a tick later, and here: caught."""

    def close(self: Any) -> None:
        miss.flights.pop(self.key, None)

    def change(patch: pytest.MonkeyPatch, torch: FakeTorch) -> None:
        patch.setattr(miss.Flight, "close", close)

    assert "slept through" in str(first_trouble(change, THE_SAME)) or isinstance(first_trouble(change, THE_SAME), Hang)


def test_a_wait_with_the_lock_held() -> None:
    """A follower that waits for its leader with the lock in its hands stops both for ever: caught."""

    def change(patch: pytest.MonkeyPatch, torch: FakeTorch) -> None:
        def wait_with_the_lock(self: Any, flight: Any) -> None:
            torch.lock.acquire()
            try:
                flight.done.wait()
            finally:
                torch.lock.release()

        patch.setattr(miss._Call, "wait_for", wait_with_the_lock)

    assert isinstance(first_trouble(change, THE_SAME), Hang)


def test_the_engine_asserts_that_it_waits_without_the_lock() -> None:
    """The rule is asserted in the engine itself: a wait with the lock held raises."""

    def change(patch: pytest.MonkeyPatch, torch: FakeTorch) -> None:
        wait_for = miss._Call.wait_for

        def wait_with_the_lock(self: Any, flight: Any) -> None:
            torch.lock.acquire()
            try:
                wait_for(self, flight)
            finally:
                torch.lock.release()

        patch.setattr(miss._Call, "wait_for", wait_with_the_lock)

    assert "must not wait" in str(first_trouble(change, THE_SAME))


def meeting(parties: int) -> list[Job]:
    """Returns jobs for threads that meet inside the compiled function, each of its own shape."""
    barriers: dict[int, Barrier] = {}

    def job(shape: int) -> Job:
        def meet(torch: FakeTorch) -> None:
            barrier = barriers.setdefault(id(torch.scheduler), Barrier(torch.scheduler, parties))
            torch.in_run = lambda name, shape: barrier.wait()
            calls("f", shape)(torch)

        return meet

    return [job(shape) for shape in range(parties)]


def test_a_lock_that_is_held_over_the_run() -> None:
    """A leader that keeps the lock while its compiled code runs never meets the others in there: caught."""
    settle, compile_ = miss._Call.settle, miss._Call.compile

    def change(patch: pytest.MonkeyPatch, torch: FakeTorch) -> None:
        def holding(self: Any, lock: Any, flight: Any) -> None:
            compile_(self, lock, flight)
            torch.lock.acquire()

        def without_releasing(self: Any, lock: Any, flight: Any, multithreading: bool) -> None:
            patch.setattr(torch.lock, "release", lambda: None)
            settle(self, lock, flight, multithreading)
            patch.setattr(torch.lock, "release", type(torch.lock).release.__get__(torch.lock))

        patch.setattr(miss._Call, "compile", holding)
        patch.setattr(miss._Call, "settle", without_releasing)
        torch.checks_the_run = False

    trouble = first_trouble(change, meeting(2))
    assert isinstance(trouble, Hang)
    assert "at the lock" in str(trouble)
    assert "at a barrier" in str(trouble)
    assert first_trouble(None, meeting(2)) is None


def test_a_frame_that_has_run_is_called_again() -> None:
    """A follower whose frame is resumed must not be called again, or its side effects happen twice: caught."""

    def change(patch: pytest.MonkeyPatch, torch: FakeTorch) -> None:
        patch.setattr(frame_rules, "is_frame_around_a_call", lambda frame: True)

    jobs = [calls("f", 1, "resume"), calls("f", 1, "resume")]
    assert "was to be run again" in str(first_trouble(change, jobs))
    assert first_trouble(None, jobs) is None


def test_nothing_is_caught_in_the_engine_as_it_is() -> None:
    """The same schedules find nothing wrong with the engine as it is."""
    assert first_trouble(None, THE_SAME) is None
    assert first_trouble(None, [again_after_a_failure(j) for j in THE_SAME], {("f", 1): [Failure()]}) is None

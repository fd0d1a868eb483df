"""The engine under a deterministic scheduler: every interleaving of two threads, and seeded random ones of many."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from safecompile._common import waits
from safecompile._engine import limits
from tests.helpers.fake_torch import Barrier, FakeTorch
from tests.helpers.scheduler import Worker, every_schedule, random_schedule
from tests.helpers.schedules import PAIRS, Failure, Job, again_after_a_failure, calls, run

SEEDS = range(1000)


def check_each_schedule(jobs: list[Job], preemptions: int) -> int:
    """Runs every schedule; returns how many there were."""
    count = 0
    for choose in every_schedule(preemptions):
        torch, told = run(jobs, choose)
        assert max(Counter(torch.compiles).values()) == 1, f"compiled again: {torch.compiles}"
        assert torch.scheduler.idle_s < waits.TICK_S, "a thread slept through its wake-up"
        assert sum(one.role == "leader" for one in told) == sum(one.outcome == "compiled" for one in told)
        count += 1
    return count


@pytest.mark.parametrize("pair", PAIRS)
def test_every_schedule_of_two_threads_compiles_each_specialisation_once(pair: str) -> None:
    """One compile for each specialisation, no sleep and no wrong result, wherever one thread stops for the other."""
    assert check_each_schedule(PAIRS[pair], 1) > 100


def test_every_schedule_of_three_threads() -> None:
    """The same with a third thread, which wants another shape."""
    assert check_each_schedule([*PAIRS["the same"], calls("f", 2)], 1) > 300


@pytest.mark.stress
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("pair", PAIRS)
def test_every_schedule_with_two_stops(pair: str) -> None:
    """The same, where a thread may be stopped twice."""
    assert check_each_schedule(PAIRS[pair], 2) > 5_000


@pytest.mark.parametrize("seed", range(200))
def test_threads_may_meet_inside_the_compiled_function(seed: int) -> None:
    """Threads wait for each other's compile, never for each other's run: one or several for each device."""
    parties = 2 + seed % 3
    barriers: list[Barrier] = []

    def job(index: int) -> Job:
        def meeting(torch: FakeTorch) -> None:
            if not barriers:
                barriers.append(Barrier(torch.scheduler, parties))
            torch.in_run = lambda name, shape: barriers[0].wait()
            calls("f", 1 + index % 2, device=f"cuda:{index // (1 + seed % 2)}")(torch)

        return meeting

    run([job(index) for index in range(parties)], random_schedule(seed))


def a_random_run(seed: int, *, opcodes: bool = False, change: Any = None) -> tuple[FakeTorch, int]:
    """Runs many threads with failing compiles and exceptions from outside; returns how many exceptions struck."""
    dice = random.Random(seed)
    struck: set[int] = set()
    planned = {index: dice.randrange(150 * (4 if opcodes else 1)) for index in range(32) if dice.random() < 0.3}

    def inject(worker: Worker) -> None:
        if worker.index in planned and worker.index not in struck and worker.steps >= planned[worker.index]:
            struck.add(worker.index)
            raise Failure

    def job() -> Job:
        ways = ["call", "resume", "in_autograd"]
        todo = [
            calls(dice.choice("fgh"), dice.randrange(3), dice.choice(ways), dice.choice("ab"))
            for _ in range(dice.randint(1, 3))
        ]

        def one_after_the_other(torch: FakeTorch) -> None:
            for one in todo:
                again_after_a_failure(again_after_a_failure(one))(torch)

        return one_after_the_other

    outcomes = {(name, shape): [Failure()] for name in "fgh" for shape in range(3) if dice.random() < 0.3}
    failures = len(outcomes)
    jobs = [job() for _ in range(dice.choice([2, 3, 4, 8, 16]))]
    torch, _ = run(jobs, random_schedule(seed, 0.05), outcomes=outcomes, inject=inject, opcodes=opcodes, change=change)
    again = sum(Counter(torch.compiles).values()) - len(set(torch.compiles))
    assert again <= failures + len(struck), f"compiled again, with {failures} failures: {torch.compiles}"
    return torch, len(struck)


def test_a_thousand_random_schedules_with_failures() -> None:
    """No hang, no wrong result and nothing left behind, whatever fails and whomever an exception strikes."""
    struck = 0
    for seed in SEEDS:
        try:
            struck += a_random_run(seed)[1]
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    assert struck > len(SEEDS)


@pytest.mark.stress
@pytest.mark.timeout(1200)
def test_random_schedules_by_instruction() -> None:
    """The same, where a thread may stop between any two instructions."""
    for seed in SEEDS:
        try:
            a_random_run(seed, opcodes=True)
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("victim", [0, 1])
def test_an_exception_at_any_point_leaves_nothing_behind(pair: str, victim: int) -> None:
    """The lock is free, no flight is open, autograd is as before, and the next call is right, wherever one strikes."""
    troubles = []
    for seed in range(4):
        for step in range(1, 400):
            where: list[str] = []

            def inject(worker: Worker, step: int = step, where: list[str] = where) -> None:
                if worker.index == victim and worker.steps >= step and not where:
                    where.append(worker.where)
                    raise Failure

            try:
                run(
                    [again_after_a_failure(job) for job in PAIRS[pair]],
                    random_schedule(seed * 400 + step, 0.1 * (seed > 0)),
                    inject=inject,
                )
            except BaseException as error:
                troubles.append(f"struck at {where}: {error!r}")
            if not where:
                break
        else:
            pytest.fail("the exceptions did not reach the end of the call")
    assert not troubles, "\n".join(troubles)


@pytest.mark.parametrize("seed", range(0, 200, 7))
def test_a_function_that_torch_leaves_alone_is_left_alone_by_each_thread(seed: int) -> None:
    """A follower takes the leader's decision to skip, for any shape, and doesn't trace again."""

    def eager(torch: FakeTorch) -> None:
        assert torch.call("f", 1) == ("eager", "f", 1)

    torch, told = run([eager] * 4, random_schedule(seed, 0.02), outcomes={("f", 1): ["skip"] * 4})
    assert {one.outcome for one in told} == {"skipped"}
    assert len(torch.compiles) == sum(one.role == "leader" for one in told)


@pytest.mark.parametrize("other", [[], [calls("f", 1)], [calls("f", 2)]])
def test_a_call_from_a_signal_handler_or_finalizer_at_any_point(other: list[Job]) -> None:
    """A thread may be interrupted by a call of the function that it is compiling or waiting for; it never hangs."""
    for step in range(1, 400):
        where: list[str] = []

        def inject(worker: Worker, step: int = step, where: list[str] = where) -> None:
            if worker.index == 0 and worker.steps >= step and not where:
                where.append(worker.where)
                calls("f", 1)(running[0])

        running: list[FakeTorch] = []

        def first(torch: FakeTorch, running: list[FakeTorch] = running) -> None:
            running.append(torch)
            torch.checks_the_run = False  # an interruption under the lock runs under the lock
            calls("f", 1)(torch)

        try:
            torch, _ = run([first, *other], random_schedule(step, 0.1), inject=inject)
            assert max(Counter(torch.compiles).values()) <= 2, f"compiled again: {torch.compiles}"
        except AssertionError as error:
            raise AssertionError(f"interrupted at {where}: {error}") from error
        if not where:
            return
    pytest.fail("the interruptions did not reach the end of the call")


def limited(limit_s: float) -> Callable[[pytest.MonkeyPatch, FakeTorch], None]:
    """Returns what gives all functions of a run a limit; below a tick, the end of each wait is a step that may come."""
    return lambda patch, torch: patch.setattr(limits, "of_process", limit_s)


def check_a_limited_run(jobs: list[Job], choose: Any, limit_s: float) -> int:
    """Runs one schedule with a limit; returns how many calls ran uncompiled. ``run`` looks for what is left behind."""
    torch, told = run(jobs, choose, change=limited(limit_s))
    assert max(Counter(torch.compiles).values()) == 1, f"compiled again: {torch.compiles}"
    outcomes = Counter(one.outcome for one in told)
    assert outcomes["uncompiled"] == len(torch.uncompiled)
    assert outcomes["compiled"] == sum(one.role == "leader" for one in told)
    assert torch.scheduler.idle_s < waits.TICK_S, "a thread slept through its wake-up"
    return len(torch.uncompiled)


@pytest.mark.parametrize("limit_s", [0.0, 0.1])
@pytest.mark.parametrize("pair", PAIRS)
def test_every_schedule_of_two_threads_with_waits_that_end(pair: str, limit_s: float) -> None:
    """A wait may end at any step: no flight is lost, nothing is compiled twice, and nobody waits for nothing."""
    uncompiled = [check_a_limited_run(PAIRS[pair], choose, limit_s) for choose in every_schedule(1)]
    assert len(uncompiled) > 100
    assert any(uncompiled)


@pytest.mark.parametrize("limit_s", [0.0, 0.1])
def test_every_schedule_of_three_threads_with_waits_that_end(limit_s: float) -> None:
    """The same with a third thread, which wants another shape."""
    jobs = [*PAIRS["the same"], calls("f", 2)]
    assert sum(check_a_limited_run(jobs, choose, limit_s) for choose in every_schedule(1)) > 0


def test_a_thousand_random_schedules_with_waits_that_end() -> None:
    """Many threads with failing compiles and exceptions from outside, and waits that end: nothing is left behind."""
    uncompiled = 0
    for seed in SEEDS:
        try:
            torch, _ = a_random_run(seed, change=limited(0.1 if seed % 3 else 0.0))
            uncompiled += len(torch.uncompiled)
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    assert uncompiled > len(SEEDS)

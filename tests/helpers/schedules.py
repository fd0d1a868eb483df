"""One run of the engine under the deterministic scheduler, and what must hold after each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from safecompile._common import events, waits
from safecompile._engine import flights as flights_module
from safecompile._engine import lookup, miss, returned

from .fake_torch import FakeTorch
from .scheduler import Scheduler, Worker

Job = Callable[[FakeTorch], Any]


class Failure(BaseException):
    """What a compile raises, and what strikes a thread from outside."""


def run(
    jobs: list[Job],
    choose: Any,
    *,
    outcomes: Any = None,
    inject: Any = None,
    opcodes: bool = False,
    change: Callable[[pytest.MonkeyPatch, FakeTorch], None] | None = None,
) -> tuple[FakeTorch, list[events.Miss]]:
    """Runs one schedule; raises what a job raised, and when something is left behind.

    Args:
        outcomes: see :class:`FakeTorch`.
        inject: see :class:`Scheduler`.
        change: brings a bug into the engine for this run.
    """
    scheduler = Scheduler(
        choose,
        [one.__file__ for one in (miss, flights_module, lookup, returned, waits)],
        opcodes=opcodes,
        inject=inject,
    )
    told: list[events.Miss] = []
    with pytest.MonkeyPatch.context() as patch:
        flights: dict[Any, Any] = {}
        for module in (miss, flights_module):
            patch.setattr(module, "flights", flights)
        patch.setattr(returned, "notes", {})
        patch.setattr(events, "wait_warning_s", 1e9)
        torch = FakeTorch(scheduler, patch, outcomes)
        if change is not None:
            change(patch, torch)
        unsubscribe = events.subscribe(told.append)
        try:
            workers: list[Worker] = scheduler.run([lambda job=job: job(torch) for job in jobs])
        finally:
            unsubscribe()
        for worker in workers:
            if worker.error is not None:
                raise worker.error
        left = torch.traces_left()
        assert not left, f"left behind: {left}"
    return torch, told


def calls(name: str, shape: int, way: str = "call", device: str = "cpu") -> Job:
    """Returns a job that calls a compiled function and checks what comes back."""

    def job(torch: FakeTorch) -> None:
        assert getattr(torch, way)(name, shape, device) == ("compiled", name, shape)

    return job


def again_after_a_failure(job: Job) -> Job:
    """Returns a job that does ``job``, and once more if that raised :class:`Failure`."""

    def twice(torch: FakeTorch) -> None:
        try:
            job(torch)
        except Failure:
            torch.scheduler.trace_again()
            job(torch)

    return twice


def nested(torch: FakeTorch) -> None:
    """Calls f, in whose compile the backend calls g."""

    def in_compile(name: str, shape: int) -> None:
        if name == "f":
            assert torch.call("g", shape) == ("compiled", "g", shape)

    torch.in_compile = in_compile
    calls("f", 1)(torch)


#: What two threads do at once.
PAIRS: dict[str, list[Job]] = {
    "the same": [calls("f", 1), calls("f", 1)],
    "two shapes": [calls("f", 1), calls("f", 2)],
    "two devices": [calls("f", 1, device="a"), calls("f", 1, device="b")],
    "a resume function": [calls("f", 1, "resume"), calls("f", 1, "resume")],
    "a resume function and a top frame": [calls("f", 1, "resume"), calls("f", 1)],
    "a backward": [calls("f", 1, "in_autograd"), calls("f", 1)],
    "a compile in a compile": [nested, calls("g", 1)],
}

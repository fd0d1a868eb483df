"""The entries that followers leave: no limit counts them, and they die with the first."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from types import CodeType
from typing import Any

import pytest
import torch

from safecompile._engine import cache_entries
from safecompile._torch import cache
from tests.helpers.compiles import Counting, plain_torch
from tests.helpers.threads import run_threads

EAGER = 1000.0
THREADS = 32


pytestmark = pytest.mark.usefixtures("installed")


def resume_codes(function: Any) -> list[CodeType]:
    """Returns the code object of the function that Dynamo has made, the latest, to go on after a graph break."""
    made = [value.__code__ for name, value in function.__globals__.items() if name.startswith("__resume_at")]
    return [code for code in made if f"_in_{function.__name__}_" in code.co_name][-1:]


def live_entries(codes: list[CodeType]) -> list[Any]:
    entries = [entry for code in codes for entry in cache.cache_entries(code)]
    managers = [entry.guard_manager for entry in entries]
    return [one for one in managers if cache.is_live(one) and not cache_entries.is_outdated(one)]


@torch.compiler.disable
def breaks(x: torch.Tensor) -> torch.Tensor:
    return x


def a_function_with_a_break() -> Any:
    def body(x: torch.Tensor) -> torch.Tensor:
        x = x + 1 if torch.compiler.is_compiling() else x + EAGER
        x = breaks(x)
        return x * 2 if torch.compiler.is_compiling() else x + EAGER

    return body


def seven_more_shapes(backend: Any) -> None:
    """Compiles for one shape with many cold threads, then for seven more with one; every result must be right."""
    compiled = torch.compile(a_function_with_a_break(), backend=backend, dynamic=False)
    run_threads([lambda: compiled(torch.zeros(1))] * THREADS)
    for shape in range(2, 9):
        assert (compiled(torch.zeros(shape)) == 2).all(), f"shape {shape} ran eagerly"


def test_cold_threads_leave_the_recompile_limit_alone() -> None:
    """32 cold threads use one of the eight recompiles of a function and of its resume function, as one thread does."""
    backend = Counting(before=lambda: time.sleep(0.02))
    seven_more_shapes(backend)
    assert backend.forward == 16


def test_plain_torch_passes_its_limit() -> None:
    """Red twin: in plain torch, cold threads use the limit up, in most runs."""
    compiles = []
    with plain_torch():
        for _ in range(5):
            backend = Counting(before=lambda: time.sleep(0.05))
            try:
                seven_more_shapes(backend)
            except AssertionError as error:
                assert "ran eagerly" in str(error)
                return
            compiles.append(backend.forward)
    pytest.fail(f"{compiles} compiles, with a limit of {torch._dynamo.config.recompile_limit}")


def test_copies_are_in_no_limit() -> None:
    """Neither recompile_limit nor accumulated_recompile_limit counts what a follower of a resume function leaves."""
    body = a_function_with_a_break()
    compiled = torch.compile(body, backend=Counting(before=lambda: time.sleep(0.05)), dynamic=False)
    run_threads([lambda: compiled(torch.zeros(1))] * THREADS)
    assert len(live_entries(resume_codes(body))) > 9, "the followers left nothing that could be counted"
    with torch._dynamo.config.patch(accumulated_recompile_limit=9):
        for shape in range(2, 9):
            assert (compiled(torch.zeros(shape)) == 2).all(), f"shape {shape} ran eagerly"


def test_a_first_call_leaves_one_entry() -> None:
    """At the top of a call, where a follower can call again, cold threads leave one entry, as one thread does."""
    body = a_function_with_a_break()
    compiled = torch.compile(body, backend=Counting(before=lambda: time.sleep(0.02)), dynamic=False)
    run_threads([lambda: compiled(torch.zeros(1))] * THREADS)
    assert len(live_entries([body.__code__])) == 1


@pytest.mark.parametrize("plain", [False, True])
def test_another_device_does_not_fill_the_limit(plain: bool) -> None:
    """Of each other device one entry does not count, so a function may be compiled for any number of devices."""
    with plain_torch() if plain else contextlib.nullcontext():
        torch.compiler.reset()
        body, backend = a_function_with_a_break(), Counting()
        compiled = torch.compile(body, backend=backend, dynamic=False)
        with torch._dynamo.config.patch(recompile_limit=1):
            for device in ("cpu", "meta"):
                compiled(torch.zeros(1, device=device))
            before = backend.forward
            compiled(torch.zeros(2, device="meta"))  # the second of its own device is over the limit
        assert before == (2 if plain else 4)
        assert backend.forward == before


def a_class() -> type:
    return type("Factor", (), {"value": 2})


def test_copies_die_with_the_first_entry() -> None:
    """When an object that the guards know by id dies, no entry of any follower outlives it."""

    def body(x: torch.Tensor, factor: Any) -> torch.Tensor:
        x = breaks(x + 1)
        return x * factor.value

    backend = Counting(before=lambda: time.sleep(0.1))
    compiled = torch.compile(body, backend=backend, dynamic=False)
    factor = a_class()()

    def job() -> None:
        assert compiled(torch.zeros(2), factor).tolist() == [2.0, 2.0]  # noqa: F821 - deleted below

    run_threads([job] * 8)
    codes = resume_codes(body)
    assert len(codes) == 1
    assert len(live_entries(codes)) > 1, "the followers left no copy: the test shows nothing"
    del factor
    run_threads([gc.collect])
    assert live_entries(codes) == []


def test_copies_outlive_the_first_without_the_patch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red twin: torch invalidates one entry for each guard manager, and the copies stay."""
    monkeypatch.setattr(cache_entries, "mark_copies", lambda *_: None)
    with pytest.raises(AssertionError, match=r"== \[\]"):
        test_copies_die_with_the_first_entry()


def test_threads_do_not_share_entries_across_backends() -> None:
    """Two backends of one function are two specialisations, also for threads that wait for the other one."""
    first, second = Counting(), Counting()
    arrived = threading.Barrier(8)

    def body(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    compiled = [torch.compile(body, backend=backend) for backend in (first, second)]

    def job(index: int) -> None:
        arrived.wait(30)
        assert compiled[index % 2](torch.zeros(2)).tolist() == [1.0, 1.0]

    run_threads([lambda i=i: job(i) for i in range(8)])
    assert (first.forward, second.forward) == (1, 1)

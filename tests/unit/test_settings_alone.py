"""Settings in one thread: as in plain torch, whatever is assigned and patched in whatever order, task or context."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
import unittest
from collections.abc import Iterator
from typing import Any, cast
from unittest import mock

import pytest
import torch
import torch._dynamo
from torch._dynamo import config

from safecompile import install, uninstall
from tests.helpers.threads import run_threads

NAMES = ("recompile_limit", "verbose", "cache_size_limit", "reorderable_logging_functions")
OF_EACH: dict[str, tuple[Any, ...]] = {
    "recompile_limit": (3, 5, 7),
    "verbose": (True, False),
    "cache_size_limit": (11, 13),  # another name of the first
    "reorderable_logging_functions": (set(), {print}),
}


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Puts the settings back, in the context in which the test ran."""
    before = {name: getattr(config, name) for name in NAMES}
    yield
    for name, value in before.items():
        setattr(config, name, value)


def both(scene: Any) -> tuple[Any, Any]:
    """Returns what a scene returns in plain torch and with the library, each in a context of its own."""
    results = []
    for put in (uninstall, install):
        put()
        before = {name: getattr(config, name) for name in NAMES}
        results.append(contextvars.copy_context().run(scene))
        for name, value in before.items():
            if getattr(config, name) != value:
                setattr(config, name, value)
    return results[0], results[1]


def read() -> tuple[Any, ...]:
    return tuple(repr(getattr(config, name)) for name in NAMES)


def in_a_compile() -> tuple[Any, ...]:
    """Returns what a compile sees."""
    told: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        told.append(read())
        return graph.forward

    torch._dynamo.reset()
    torch.compile(lambda x: x + 1, backend=backend)(torch.ones(1))
    return cast("tuple[Any, ...]", told[0])


def walk(seed: int, steps: int = 30) -> list[Any]:
    """Does what a seed says."""
    choose, told = random.Random(seed), [read()]
    entered: list[Any] = []

    def changes() -> dict[str, Any]:
        return {name: choose.choice(OF_EACH[name]) for name in choose.sample(NAMES, choose.randrange(1, 3))}

    def suspended() -> Iterator[None]:
        with config.patch(**changes()):
            yield

    for _ in range(steps):
        step = choose.randrange(9)
        if step <= 1:
            for name, value in changes().items():
                setattr(config, name, value)
        elif step == 2:
            entered.append(config.patch(changes()))
            entered[-1].__enter__()
        elif step == 3:
            entered.append(contextlib.contextmanager(suspended)())
            entered[-1].__enter__()
        elif step in (4, 5) and entered:
            entered.pop(choose.choice((-1, choose.randrange(len(entered))))).__exit__(None, None, None)
        elif step == 6:
            config.patch(changes())(lambda: told.append(read()))()
        elif step == 7:
            with contextlib.suppress(ZeroDivisionError), config.patch(**changes()):
                setattr(config, *choose.choice(list(changes().items())))
                raise ZeroDivisionError
        else:
            with mock.patch.object(config, "recompile_limit", choose.choice((17, 19))):
                told.append(read())
        told.append(read())
    while entered:
        entered.pop().__exit__(None, None, None)
    return [*told, read(), config.get_config_copy()["recompile_limit"], config.codegen_config()]


def test_one_thread_reads_what_it_reads_in_plain_torch() -> None:
    """Twenty random walks read the same, step by step, with the library and without."""
    for seed in range(20):
        plain, safe = both(lambda seed=seed: walk(seed))
        assert safe == plain, seed


def test_an_assignment_inside_a_patch_is_read_and_ends_with_it() -> None:
    """It is not lost, and does not leak: neither into reads nor into a compile."""

    def scene() -> list[Any]:
        told = []
        with config.patch(recompile_limit=3):
            config.recompile_limit = 5
            told += [read(), in_a_compile()]
        return [*told, read(), in_a_compile()]

    plain, safe = both(scene)
    assert safe == plain


def test_what_a_task_assigns_reaches_no_compile_outside() -> None:
    """Nor another task's; a compile of the task itself sees it."""

    async def assigns(told: list[Any]) -> None:
        config.recompile_limit = 77
        told.append(in_a_compile())
        await asyncio.sleep(0)
        told.append(in_a_compile())

    async def compiles(told: list[Any]) -> None:
        told.append(in_a_compile())
        with config.patch(recompile_limit=78):
            await asyncio.sleep(0)
            told.append(in_a_compile())

    async def together(told: list[Any]) -> None:
        await asyncio.gather(assigns(told), compiles(told))
        told.append(in_a_compile())

    def scene() -> list[Any]:
        told: list[Any] = []
        asyncio.run(together(told))
        contextvars.copy_context().run(setattr, config, "recompile_limit", 79)
        return [*told, read(), in_a_compile()]

    plain, safe = both(scene)
    assert safe == plain


def test_what_an_ended_task_has_assigned_reaches_no_worker() -> None:
    """While the task is there, a compile of another thread sees it; afterwards what was there before."""
    if not hasattr(torch.utils._config_module, "ContextVar"):
        pytest.skip("settings belong to the process in this torch")
    install()

    def worker() -> Any:
        return run_threads([in_a_compile])[0][0]

    async def task() -> Any:
        config.recompile_limit = 77
        return worker()

    def scene() -> tuple[Any, Any]:
        config.recompile_limit = 66
        return asyncio.run(task()), worker()

    assert contextvars.copy_context().run(scene) == ("77", "66")


def test_a_patch_left_in_another_thread_leaves_nothing_behind(side: str) -> None:
    """Up to torch 2.11; since then a patch can be left in its own context alone, and says so."""
    if hasattr(torch.utils._config_module, "ContextVar"):
        pytest.skip("a patch can't be left elsewhere in this torch")
    before = config.recompile_limit
    patch = config.patch(recompile_limit=77)
    limits = torch._dynamo.utils.disable_cache_limit()
    for one in (patch, limits):
        run_threads([one.__enter__])
        run_threads([lambda one=one: one.__exit__(None, None, None)])
        assert run_threads([lambda: config.recompile_limit] * 3) == [before] * 3, side
        assert in_a_compile()[0] == repr(before)
    config.recompile_limit = before + 1
    assert (config.recompile_limit, in_a_compile()[0]) == (before + 1, repr(before + 1))


def test_the_thread_that_used_an_identity_before_is_another_thread(side: str) -> None:
    """A value of a thread that has ended is not taken for the own one of a thread with the same identity."""
    if not hasattr(torch.utils._config_module, "ContextVar"):
        pytest.skip("settings belong to the process in this torch")
    made: list[Any] = []
    seen: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        seen.append(config.accumulated_recompile_limit)  # which nobody has assigned
        return graph.forward

    def makes() -> None:
        with config.patch(accumulated_recompile_limit=77):
            made.append(torch.compile(lambda x: x + 1, backend=backend))

    before = config.accumulated_recompile_limit
    run_threads([makes])
    run_threads([lambda: made[0](torch.ones(1))])  # nearly always with the identity of the first
    assert seen == [77 if side == "safe" else before]


def test_a_class_of_tests_is_decorated_as_in_plain_torch(side: str) -> None:
    """``@config.patch(…)`` over a TestCase gives a TestCase."""

    @config.patch(recompile_limit=77)
    class Test(unittest.TestCase):
        def test(self) -> None:
            assert config.recompile_limit == 77, side

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(Test).run(result)
    assert (result.testsRun, result.wasSuccessful()) == (1, True)

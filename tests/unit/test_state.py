"""Switches of the process that a compile or a user flips in one thread: the other threads do not see them."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo

from tests.helpers.nursery import in_forked_process
from tests.helpers.threads import ParkedBackend, run_threads


def while_compiling(seen: Callable[[], Any]) -> Any:
    """Returns what ``seen`` returns in a thread while another is in the middle of a compile."""
    backend = ParkedBackend()
    compiled = torch.compile(lambda x: x + 1, backend=backend)

    def look() -> Any:
        backend.wait_parked()
        try:
            return seen()
        finally:
            backend.release()

    return run_threads([lambda: compiled(torch.zeros(2)), look])[1]


def dynamo_sets_the_compiling_flag() -> bool:
    """Since torch 2.13."""
    return hasattr(torch.compiler, "_compile_session_context")


def test_is_compiling_is_true_in_the_compiling_thread_alone(side):
    """Eager code beside a compile is told that it does not compile."""
    seen = while_compiling(torch.compiler.is_compiling)
    if side == "safe":
        assert seen is False
    elif dynamo_sets_the_compiling_flag():
        assert seen, "plain torch has it right by now: the patch can go"


def test_numbers_drawn_beside_a_compile_are_not_drawn_again(side):
    """What a thread draws while another compiles is not handed out a second time."""
    torch.manual_seed(1)
    random.seed(1)
    during = while_compiling(lambda: (torch.rand(4), [random.random() for _ in range(4)]))
    again = torch.equal(torch.rand(4), during[0]), [random.random() for _ in range(4)] == during[1]
    assert again == ((False, False) if side == "safe" else (True, True))


def test_alone_a_compile_draws_nothing_that_the_user_sees():
    """With one live thread the states are put back, as in plain torch (in a process without pytest's own threads)."""
    done = in_forked_process(
        """
        import random, threading, torch, safecompile.patch_all
        torch.manual_seed(3)
        random.seed(3)
        states = torch.get_rng_state(), random.getstate()
        torch.compile(lambda x: x + random.random(), backend="aot_eager")(torch.zeros(2))
        random.setstate(states[1])
        if threading.active_count() > 1:
            raise SystemExit(0)  # a thread of torch's own (2.7)
        first = random.random(), torch.rand(1)
        random.setstate(states[1])
        torch.compile(lambda x: x - 1, backend="aot_eager")(torch.zeros(2))
        assert random.random() == first[0]
        torch.set_rng_state(states[0])
        torch.compile(lambda x: x - 2, backend="aot_eager")(torch.zeros(2))
        assert torch.equal(torch.rand(1), first[1])
        """
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("installed")
def test_a_setting_of_another_thread_outlives_a_compile():
    """A default dtype that a thread sets while another compiles stays set, and the compile ends well."""
    torch._dynamo.reset()
    try:
        while_compiling(lambda: torch.set_default_dtype(torch.float64))
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_stance_as_context_is_its_threads_own(side):
    """Inside ``with set_stance("force_eager")`` of one thread, another one compiles."""
    inside, done = threading.Event(), threading.Event()
    backend = ParkedBackend(parked=False)
    compiled = torch.compile(lambda x: x - 1, backend=backend)

    def with_stance() -> None:
        with torch.compiler.set_stance("force_eager"):
            inside.set()
            done.wait(20)

    def other() -> None:
        inside.wait(20)
        try:
            compiled(torch.zeros(2))
        finally:
            done.set()

    run_threads([with_stance, other])
    assert backend.compiles == (1 if side == "safe" else 0)


@pytest.mark.usefixtures("installed")
def test_a_stance_as_plain_call_is_the_process():
    """``set_stance("force_eager")`` as a call holds in every thread until the next one."""
    torch._dynamo.reset()
    backend = ParkedBackend(parked=False)
    compiled = torch.compile(lambda x: x * 3, backend=backend)
    torch.compiler.set_stance("force_eager")
    try:
        run_threads([lambda: compiled(torch.zeros(2))])
        assert backend.compiles == 0
    finally:
        torch.compiler.set_stance("default")


def settings_are_per_context() -> bool:
    """Since torch 2.12."""
    import torch.utils._config_module as module

    return hasattr(module, "ContextVar")


def test_a_worker_compiles_with_the_newest_plain_assignment(side):
    """A setting that the main thread assigns after the wrap is there when a worker compiles; its own value wins."""
    if not settings_are_per_context():
        pytest.skip("settings belong to the process in this torch")
    config, seen = torch._dynamo.config, []

    def backend(graph: Any, _: Any) -> Any:
        seen.append(config.recompile_limit)
        return graph.forward

    first, second = (torch.compile(f, backend=backend) for f in (lambda x: x + 1, lambda x: x + 2))
    before = config.recompile_limit
    config.recompile_limit = 77

    def worker() -> None:
        first(torch.zeros(2))
        with config.patch(recompile_limit=11):
            second(torch.zeros(2))

    try:
        run_threads([worker])
    finally:
        config.recompile_limit = before
    assert seen == ([77, 11] if side == "safe" else [before, 11])

"""Anomaly mode beside compiles: it is what users have set, in every thread but that of the trace.

Each scene is the same with the library and in plain torch. A trace turns the mode on, and its NaN check off.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo

from tests.helpers.threads import in_fresh_process

from .test_switches import Pause, beside

waits: list[Pause] = []


@torch.library.custom_op("safecompile_anomaly::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    # In the trace of the joint graph the mode is on, and its check is off.
    if waits and torch.is_anomaly_enabled() and not torch.is_anomaly_check_nan_enabled():
        waits.pop()()
    return torch.empty_like(x)


twice.register_autograd(lambda _, gradient: gradient * 2)


@pytest.fixture(autouse=True)
def quiet_and_off() -> Iterator[None]:
    """Without the warning of each use; the mode is off afterwards."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    waits.clear()
    torch._C.set_anomaly_enabled(False, True)


def compiles(pause: Pause) -> list[float]:
    """Compiles forward and backward, and stands in the trace of the joint graph."""
    torch._dynamo.reset()
    waits.append(pause)
    x = torch.ones(3, requires_grad=True)
    torch.compile(lambda x: twice(x).sum(), backend="aot_eager")(x).backward()
    assert not waits
    assert x.grad is not None
    return x.grad.tolist()


def while_compiling(function: Callable[[], Any]) -> Any:
    gradient, seen = beside(compiles, lambda _: function())
    assert gradient == [2.0] * 3
    return seen


def finds_a_nan() -> bool:
    x = torch.zeros(2, requires_grad=True)
    try:
        (x.sqrt() * 0).sum().backward()
    except RuntimeError as error:
        return "nan" in str(error).lower()
    return False


def mode() -> tuple[bool, bool]:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


def test_a_thread_that_never_asked_for_it(side):
    """Beside a compile the mode is off, for threads that ask torch."""
    assert while_compiling(mode) == ((False, True) if side == "safe" else (True, False))
    assert mode() == (False, True)


def test_it_is_turned_on_beside_a_compile(side):
    """The mode that is turned on beside a compile is on at once, and stays on."""

    def turn_on() -> tuple[Any, ...]:
        torch.autograd.set_detect_anomaly(True)
        return mode(), finds_a_nan()

    # In plain torch the compile itself may fail: its own backward looks for NaNs.
    assert while_compiling(turn_on) == ((True, True), True) if side == "safe" else True
    if side == "safe":
        assert mode() == (True, True)
        assert finds_a_nan()


def test_it_is_turned_off_beside_a_compile(side):
    """The mode that is turned off beside a compile stays off."""
    torch.autograd.set_detect_anomaly(True)
    while_compiling(lambda: torch.autograd.set_detect_anomaly(False) and None)
    assert torch.is_anomaly_enabled() == (side == "plain")
    assert torch._C.is_anomaly_enabled() == (side == "plain")


def test_a_block_that_begins_beside_a_compile(side):
    """A block that is entered beside a compile, and left after it, leaves the mode as it was before."""
    block: list[Any] = []

    def enter() -> None:
        block.append(torch.autograd.detect_anomaly())
        block[0].__enter__()

    if side == "plain":  # there the compile may fail
        return
    while_compiling(enter)
    assert mode() == (True, True)
    block[0].__exit__(None, None, None)
    assert mode() == (False, True)


def test_a_nan_beside_a_compile_is_found(side):
    """A thread with anomaly mode on finds its NaN, also beside another thread's compile, and disturbs no trace."""
    with torch.autograd.detect_anomaly():
        assert while_compiling(finds_a_nan) == (side == "safe")
        assert finds_a_nan()
        gradient = compiles(lambda: None)  # alone: the backward in the trace has no values to look at
    assert gradient == [2.0] * 3
    assert type(torch.autograd.Variable._execution_engine).__name__ != "Engine"


def test_a_trace_sees_what_it_has_set(installed):
    """Inside of the trace the mode is as in plain torch, and what traced code sets there ends with it."""
    seen = []

    def sets() -> None:
        seen.append(mode())
        torch.set_anomaly_enabled(False, True)
        seen.append(mode())

    compiles(sets)
    assert seen == [(True, False), (False, True)]
    assert mode() == (torch._C.is_anomaly_enabled(), torch._C.is_anomaly_check_nan_enabled()) == (False, True)


def test_dynamo_takes_what_tells_it_for_torchs_own(side):
    """A compiled function that asks breaks its graph for the reason that it has in plain torch."""
    reasons = torch._dynamo.utils.counters["graph_break"]
    reasons.clear()

    def asks(x):
        return x + 1, mode()

    torch.compile(asks, backend="eager")(torch.ones(2))
    assert any("non-Tensor" in reason for reason in reasons), dict(reasons)
    assert not any("skipped" in reason for reason in reasons), dict(reasons)


def test_rules_that_others_have_added_stay():
    """Dynamo's table of rules holds what torch and users add while they run: an installation takes none of it away."""
    found = in_fresh_process(
        """
        import torch, torch._dynamo
        from torch._dynamo import trace_rules

        def polyfills():
            table = trace_rules.get_torch_obj_rule_map()
            return sum(rule.__name__ == "PolyfilledFunctionVariable" for rule in table.values())

        print(polyfills())
        import safecompile
        safecompile.install()
        print(polyfills())
        safecompile.uninstall()
        print(polyfills())
        """
    )
    before, with_the_library, after = map(int, found.stdout.split())
    assert before > 20
    assert before == with_the_library == after

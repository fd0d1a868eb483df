"""A backward draws the random numbers of its own forward once more, however many threads share the graph."""

from __future__ import annotations

import random
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._functorch._aot_autograd import runtime_wrappers

from tests.helpers.threads import run_threads

pytestmark = pytest.mark.skipif(
    not hasattr(runtime_wrappers, "_AutogradRngStateTracker"), reason="torch 2.13+ keeps the generators in a class"
)


class Generator(random.Random):
    """Stands for a CUDA generator; torch's states are tensors, here they are Python's."""

    def get_state(self) -> Any:
        return self.getstate()

    def set_state(self, state: Any) -> None:
        self.setstate(state)


def initialize(num_rng: int, index: int, forward: list[Any], backward: list[Any], *, device: Any) -> None:
    for states in (forward, backward):
        states += [Generator(7) for _ in range(num_rng)]


def test_forwards_of_two_threads_overlap(side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two draws in each forward, in turns with the other thread's; the backwards run on a third thread."""
    monkeypatch.setattr(runtime_wrappers, "initialize_rng_states", initialize)
    monkeypatch.setattr(torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: False)
    tracker = runtime_wrappers._AutogradRngStateTracker(num_rng=1, graphsafe_idx=0, device=torch.device("cuda", 0))
    meet = threading.Barrier(2, timeout=30)

    def forward() -> tuple[Any, list[float]]:
        ctx, drawn = SimpleNamespace(), []
        (generator,) = tracker.add_forward_args(ctx, ())
        for _ in range(2):
            meet.wait()
            drawn.append(generator.random())
        meet.wait()
        return ctx, drawn

    def backward(ctx: Any) -> list[float]:
        arguments: list[Any] = []
        tracker.add_backward_args(ctx, arguments)
        return [arguments[0].random(), arguments[0].random()]

    forwards = run_threads([forward] * 2)
    (again,) = run_threads([lambda: [backward(ctx) for ctx, _ in forwards]])
    assert (again == [drawn for _, drawn in forwards]) == (side == "safe")


def test_the_first_thread_has_torchs_generators(side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one thread nothing is other than in plain torch."""
    monkeypatch.setattr(runtime_wrappers, "initialize_rng_states", initialize)
    tracker = runtime_wrappers._AutogradRngStateTracker(num_rng=1, graphsafe_idx=0, device=torch.device("cuda", 0))
    (generator,) = tracker.add_forward_args(SimpleNamespace(), ())
    assert generator is tracker.fwd_rng_states[0]

"""A GraphModule whose code several threads ask for at once: its first call, recompile(), its text."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.fx
from torch.fx._lazy_graph_module import _make_graph_module, _use_lazy_graph_module

from tests.helpers.nursery import in_forked_process
from tests.helpers.threads import run_threads


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).sin() + 1


@pytest.fixture(autouse=True)
def often(installed: None) -> Iterator[None]:
    """Threads take turns a thousand times as often."""
    old = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    yield
    sys.setswitchinterval(old)


def rounds(count: int) -> None:
    """Eight threads, each round: every call is right, whoever writes the code."""
    model, x = Model(), torch.ones(1, 2)
    want = model(x)
    for _ in range(count):
        plain = torch.fx.symbolic_trace(model)
        with _use_lazy_graph_module(True):
            lazy = _make_graph_module(model, plain.graph)
        barrier = threading.Barrier(8)

        def use(plain: Any = plain, lazy: Any = lazy, barrier: Any = barrier) -> None:
            barrier.wait(30)
            assert torch.equal(lazy(x), want)
            plain.recompile()
            assert torch.equal(plain(x), want)
            assert "sin" in lazy.code
            lazy.recompile()
            assert torch.equal(lazy(x), want)

        run_threads([use] * 8, 60)
        assert [repr(node) for node in plain.graph.nodes] == [node.name for node in plain.graph.nodes]


def test_eight_threads_write_the_code_of_one_graph() -> None:
    """First calls and recompile() of plain and lazy GraphModules, from eight threads at once."""
    rounds(20)


def test_red_twin() -> None:
    """Plain torch writes code with another's names."""
    done = in_forked_process(
        """
        import sys
        sys.setswitchinterval(5e-6)
        from tests.unit.test_graph_module import rounds
        try:
            rounds(200)
        except BaseException as error:
            print("fails", type(error).__name__)
        """
    )
    assert done.stdout.startswith("fails"), done.stdout + done.stderr

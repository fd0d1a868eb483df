"""Replicas of a compiled module, as nn.DataParallel makes them for each step: here on one device, in threads."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
import torch._dynamo
from torch._dynamo.testing import CompileCounter

from tests.helpers.nursery import in_forked_process
from tests.helpers.threads import run_threads

COUNT = 4


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.rest = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rest(self.first(x)).sin()


def replicas(module: torch.nn.Module, scale: float) -> list[torch.nn.Module]:
    """Returns what ``torch.nn.parallel.replicate`` does, each with parameters ``scale`` times the module's own."""
    modules = list(module.modules())
    index = {one: i for i, one in enumerate(modules)}
    found = []
    for copies in [[one._replicate_for_data_parallel() for one in modules] for _ in range(COUNT)]:
        for one, copy in zip(modules, copies, strict=True):
            for key, child in one._modules.items():
                setattr(copy, key, copies[index[child]])
        for one, copy in zip(modules, copies, strict=True):
            for key, parameter in one._parameters.items():
                setattr(copy, key, parameter * scale)
        found.append(copies[0])
    return found


def around(net: Net, counter: Any) -> Any:
    return torch.compile(net, backend=counter)


def inside(net: Net, counter: Any) -> Any:
    net.rest = torch.compile(net.rest, backend=counter)
    return net


def in_place(net: Net, counter: Any) -> Any:
    net.compile(backend=counter)
    return net


def in_place_disabled(net: Net, counter: Any) -> Any:
    net.compile(disable=True)
    return net


def by_function(net: Net, counter: Any) -> Any:
    class Decorated(Net):
        @torch.compile(backend=counter)
        def scaled(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x)

        forward = scaled

    decorated = Decorated()
    decorated.load_state_dict(net.state_dict())
    return decorated


KINDS = {one.__name__: one for one in (around, inside, in_place, in_place_disabled, by_function)}


def steps(kind: str) -> None:
    """Three steps with new replicas: values and gradients are those of the replicas' own parameters; one compile."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    net, counter, x = Net(), CompileCounter(), torch.randn(8, 4)
    eager = Net()
    eager.load_state_dict(net.state_dict())
    model = KINDS[kind](net, counter)
    for step in range(3):
        scale = 2.0 + step
        want = torch.func.functional_call(eager, {name: p * scale for name, p in eager.named_parameters()}, (x,))
        barrier = threading.Barrier(COUNT)

        def run(replica: Any, barrier: Any = barrier) -> Any:
            barrier.wait(30)
            return replica(x)

        outputs = run_threads([lambda r=r: run(r) for r in replicas(model, scale)], 60)
        for output in outputs:
            torch.testing.assert_close(output, want)
        model.zero_grad()
        eager.zero_grad()
        sum(output.sum() for output in outputs).backward()
        want.sum().backward()
        grads = [p.grad for p in model.parameters()]
        for grad, other in zip(grads, eager.parameters(), strict=True):
            torch.testing.assert_close(grad, other.grad * COUNT)
    assert counter.frame_count == (kind != "in_place_disabled"), f"{counter.frame_count} compiles"
    torch.testing.assert_close(model(x), eager(x))  # the module itself is as it was


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo reads it
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("installed")
def test_replicas(kind: str) -> None:
    """Each replica computes with its own parameters, gradients reach the module's, and all share one compile."""
    steps(kind)


@pytest.mark.parametrize("kind", ["around", "inside", "in_place", "in_place_disabled"])
def test_red_twin(kind: str) -> None:
    """Plain torch: RecursionError, or silently the original's parameters."""
    done = in_forked_process(
        f"""
        from tests.unit.test_data_parallel import steps
        try:
            steps({kind!r})
            print("right")
        except BaseException as error:
            print("wrong", type(error).__name__)
        """
    )
    assert done.stdout.startswith("wrong"), done.stdout + done.stderr

"""The chaos of tests/stress tells what failed, and makes a long failure short."""

from __future__ import annotations

import argparse
import random

import pytest

from tests.stress import chaos, chaos_operations


def test_a_failure_is_shrunk_to_what_it_needs():
    """Of sixteen threads with twelve operations each, the two operations in two threads that fail together are left."""
    plan = chaos.make_plan(1, 1, 16, ["call", "trace", "reset"], {"call": 3, "trace": 1, "reset": 1})
    plan[3][5], plan[11][2] = ("fork", 1), ("export", 2)

    def fails(candidate):
        kinds = [{name for name, _ in steps} for steps in candidate]
        return any("fork" in a for a in kinds) and any("export" in a and "fork" not in a for a in kinds)

    assert sorted(chaos.shrink(plan, fails)) == [[("export", 2)], [("fork", 1)]]


def test_a_plan_is_made_again_from_its_seed():
    """The same seed and round give the same plan, another round another."""
    names, weights = list(chaos_operations.operations), chaos_operations.weights
    assert chaos.make_plan(7, 3, 16, names, weights) == chaos.make_plan(7, 3, 16, names, weights)
    assert chaos.make_plan(7, 3, 16, names, weights) != chaos.make_plan(7, 4, 16, names, weights)


def test_a_wrong_result_is_a_failure(monkeypatch, installed):
    """What an operation raises is kept with its name and seed, and the round goes on."""

    def wrong(rng: random.Random):
        raise AssertionError("not as in eager")

    monkeypatch.setitem(chaos_operations.operations, "call", wrong)
    ran = chaos.Chaos()
    ran.run([[("call", 5), ("flags", 1)], [("flags", 2)]])
    assert len(ran.errors) == 1
    assert ran.errors[0].startswith("call, 5: ")
    assert ran.done.total() == 3


def test_what_is_left_behind_is_named(monkeypatch, installed):
    """A switch that is not as it was is a failure, by its name."""
    import torch

    before = chaos.state()
    torch.set_default_dtype(torch.float64)
    try:
        assert [one.partition(":")[0] for one in chaos.changed(before, chaos.state())] == ["default dtype"]
    finally:
        torch.set_default_dtype(torch.float32)
    assert chaos.changed(before, chaos.state()) == []


def test_the_script_of_a_failure_can_be_run():
    """It holds the plan, and is Python."""
    text = chaos.SCRIPT.format(how="", plan=[[("call", 1)]], options=', "--plain"')
    assert "PLAN = [[('call', 1)]]" in text
    compile(text, "script", "exec")
    assert isinstance(chaos.parser().parse_args(["--repeat", "20", "--plain"]), argparse.Namespace)


@pytest.mark.parametrize("name", sorted(chaos_operations.operations))
def test_each_operation_is_right_alone(name, installed):
    """With one thread, twice."""
    for seed in (1, 2):
        chaos_operations.operations[name](random.Random(seed))

"""What other code does to the places that FX patches: a trace is as in plain torch, and leaves them as they were."""

from __future__ import annotations

import functools
import math
import pickle

import pytest
import torch
import torch.fx
from torch.utils.flop_counter import FlopCounterMode

import safecompile
from safecompile import install

from . import test_fx_scenes
from .test_fx_scenes import beside_a_trace

pytestmark = pytest.mark.usefixtures("installed")


def test_two_wrapped_builtins_stay_apart() -> None:
    """torch.fx.wrap of two builtins, which the file's dictionary does not hold: each is recorded as itself."""
    table = torch.fx._symbolic_trace._wrapped_fns_to_patch
    keys = [(id(globals()), name) for name in ("len", "sum")]
    table.update(dict.fromkeys(keys, globals()))
    try:
        graph = torch.fx.symbolic_trace(lambda x: len(x) + sum(x)).graph
    finally:
        for key in keys:
            del table[key]
    assert [node.target for node in graph.nodes if node.op == "call_function"][:2] == [len, sum]
    assert "len" not in globals()


def test_a_replaced_call_of_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody has wrapped nn.Module.__call__ by a closure: traces work, and other threads' calls are theirs."""
    original, calls = torch.nn.Module.__call__, []

    @functools.wraps(original)
    def counting(self, *args, **kwargs):
        calls.append(self)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(torch.nn.Module, "__call__", counting)
    monkeypatch.setattr(test_fx_scenes, "check_modules", lambda: None)  # it expects torch's own
    model, x = torch.nn.Sequential(torch.nn.Linear(2, 2)), torch.ones(1, 2)
    want = model(x)
    nodes = [node.op for node in torch.fx.symbolic_trace(model).graph.nodes]
    assert nodes == ["placeholder", "call_module", "output"]
    with beside_a_trace():
        calls.clear()
        assert torch.equal(model(x), want)
        assert len(calls) == 2
    assert torch.nn.Module.__call__ is counting


def test_an_assignment_to_math_inside_a_trace() -> None:
    """Traced code that replaces a function of math for a while gets its own, and math is as it was afterwards."""
    original = math.sqrt

    def body(x):
        old = math.sqrt
        math.sqrt = lambda y: y + 5
        try:
            return math.sqrt(x)
        finally:
            math.sqrt = old

    assert torch.fx.symbolic_trace(body)(torch.ones(1)).tolist() == [6.0]
    assert math.sqrt is original


def test_the_module_while_another_thread_traces() -> None:
    """It can be pickled by reference, and assigned to by a thread that traces nothing."""
    with beside_a_trace():
        function, arguments = math.__reduce__()[:2]
        assert function(*arguments) is math
        assert pickle.loads(pickle.dumps(math.sqrt)) is math.sqrt
        math.something = 1
    assert math.something == 1
    del math.something


def test_a_mode_that_is_on_at_the_installation() -> None:
    """Installed inside a dispatch mode: the flag is off after it, with the patches and without."""
    safecompile.uninstall()
    with FlopCounterMode(display=False):
        install()
    flag = torch.utils._python_dispatch.is_in_torch_dispatch_mode
    assert not flag()
    safecompile.uninstall()
    assert not flag()

"""Two ways to keep FX's wrappers out of a file's dictionary, and why neither will do (docs/known-issues.md)."""

from __future__ import annotations

import math
from math import sqrt
from types import FunctionType

import torch
import torch._dynamo
import torch.fx
from torch._dynamo.testing import CompileCounter


def helper(x):
    return x * 2


def test_another_code_in_the_same_function_fails_the_guards():
    """Way 1: the function stays, and its code dispatches by thread. Dynamo guards on ``__code__``."""
    torch._dynamo.reset()
    counter, x = CompileCounter(), torch.ones(2)
    compiled = torch.compile(lambda y: helper(y) + 1, backend=counter, fullgraph=True)
    compiled(x)
    original = helper.__code__
    helper.__code__ = original.replace()
    try:
        compiled(x)
    finally:
        helper.__code__ = original
    assert counter.frame_count == 2
    assert not hasattr(sqrt, "__code__")  # and what comes from ``math`` has no code


def test_a_copy_of_the_globals_misses_what_other_code_reads():
    """Way 2: the trace runs ``forward`` with globals of its own. A method reads the file's: no node."""

    class Model(torch.nn.Module):
        def scaled(self, x):
            return sqrt(x)

        def forward(self, x):
            return self.scaled(x)

    calls = [node.target for node in torch.fx.symbolic_trace(Model()).graph.nodes if node.op == "call_function"]
    assert calls == [math.sqrt]
    seen = []
    own = {**globals(), "sqrt": seen.append}
    FunctionType(Model.scaled.__code__, own)(None, "direct")
    try:
        FunctionType(Model.forward.__code__, own)(Model(), "through a method")
    except TypeError:  # from the real sqrt
        seen.append("not wrapped")
    assert seen == ["direct", "not wrapped"]

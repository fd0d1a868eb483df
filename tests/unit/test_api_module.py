"""safe_compile of a module, and torch's tools for explaining and exporting, beside it."""

from __future__ import annotations

import copy
import pickle

import torch
import torch._dynamo
from torch._dynamo.testing import CompileCounter

from safecompile import safe_compile

from .test_api import BOTH, Model, X, function, graph_break, outcome


def test_module_is_an_optimized_module():
    """isinstance, attributes, state_dict, deepcopy and pickle are those of torch's OptimizedModule."""
    model = Model()
    ours, theirs = safe_compile(model, backend="eager"), torch.compile(model, backend="eager")
    assert type(ours) is type(theirs) is torch._dynamo.OptimizedModule
    assert isinstance(ours, torch.nn.Module)
    assert ours.name == "a model"
    assert ours.linear is model.linear
    assert ours._orig_mod is model
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert [name for name, _ in ours.named_parameters()] == [name for name, _ in theirs.named_parameters()]
    ours.extra = 3
    assert model.extra == 3
    want = ours(X)
    assert torch.equal(ours.other(X), model.other(X))
    again = copy.deepcopy(ours)
    assert type(again) is type(ours)
    assert again.linear is not model.linear
    assert torch.equal(again(X), want)
    loaded = pickle.loads(pickle.dumps(ours))
    assert type(loaded) is type(ours)
    assert torch.equal(loaded(X), want)
    ours.load_state_dict(copy.deepcopy(theirs.state_dict()))
    ours.eval()
    assert not model.training
    assert repr(ours) == repr(theirs)


def test_module_compile_in_place():
    """``nn.Module.compile`` works beside it, and its result is a module like before."""
    model, counter = Model(), CompileCounter()
    model.compile(backend=counter)
    assert torch.equal(safe_compile(model, backend="eager")(X), Model.forward(model, X))


def test_explain_export_and_aot_compile():
    """explain, export, torch.export and aot_compile give what they give in plain torch."""
    explained = torch._dynamo.explain(safe_compile(graph_break, backend="eager"))(X)
    assert (explained.graph_count, explained.graph_break_count) == (1, 0) or explained.graph_break_count >= 0
    assert torch._dynamo.explain(graph_break)(X).graph_break_count == explained.graph_break_count
    program = torch.export.export(Model(), (X,))
    assert torch.is_tensor(program.module()(X))
    if hasattr(safe_compile(function), "aot_compile"):
        calls = [compile_(function, fullgraph=True, backend="eager") for compile_ in BOTH.values()]
        results = [outcome(lambda call=call: call.aot_compile(((X,), {}))(X)) for call in calls]
        assert results[0] == results[1]

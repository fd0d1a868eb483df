"""Functions that FX wraps under a name of this very file: by ``torch.fx.wrap``, and from ``math``."""

from __future__ import annotations

import contextlib
import logging
import threading
from math import sqrt

import pytest
import torch
import torch._dynamo
import torch.fx
from torch._dynamo.testing import CompileCounter
from torch.fx.experimental.proxy_tensor import make_fx

from safecompile._common import events
from tests.helpers.nursery import in_forked_process

from .test_fx_scenes import Parked, beside_a_trace


def doubled(x):
    return x * 2


@contextlib.contextmanager
def wrapping():
    """What torch.fx.wrap("doubled") at the top of this file does; for the time of a test."""
    table, key = torch.fx._symbolic_trace._wrapped_fns_to_patch, (id(globals()), "doubled")
    table[key] = globals()
    try:
        yield
    finally:
        del table[key]


@pytest.fixture(autouse=True)
def _wrapping(installed):
    torch._dynamo.reset()
    with wrapping():
        yield
    assert globals()["doubled"].__code__.co_name == "doubled"


class ParkedHere(Parked):
    """Its forward has this file's dictionary for its globals."""

    def forward(self, x):
        return super().forward(x) * sqrt(4.0)


def beside_a_trace_of_this_file():
    beside = beside_a_trace()
    beside.module = ParkedHere()
    return beside


def test_make_fx_wraps_nothing():
    """make_fx, and so the compile of another function, leaves the dictionaries alone: a warm call goes on warm."""
    counter, x, seen = CompileCounter(), torch.ones(2), []
    compiled = torch.compile(lambda y: doubled(y) + 1, backend=counter, fullgraph=True)
    compiled(x)

    def inside(y):
        seen.append(not hasattr(doubled, "__wrapped__"))
        thread = threading.Thread(target=lambda: seen.append(compiled(x)), daemon=True)
        thread.start()
        thread.join(20.0)
        assert not thread.is_alive(), "the warm call waits"
        return doubled(y)

    assert len(list(make_fx(inside)(x).graph.nodes)) == 3
    assert seen[0] is True
    assert torch.equal(seen[1], x * 2 + 1)
    assert counter.frame_count == 1


def test_a_symbolic_trace_wraps():
    """A symbolic trace records calls of both as nodes."""

    class Uses(torch.nn.Module):
        def forward(self, x):
            return doubled(x) + sqrt(x)

    calls = [node.target for node in torch.fx.symbolic_trace(Uses()).graph.nodes if node.op == "call_function"]
    assert doubled in calls
    assert sqrt in calls


def test_a_dictionary_that_grows():
    """A trace stands it that a compile of another thread adds a name to the dictionary that it goes through."""

    class Name(str):
        __slots__ = ()

        def startswith(self, *args):
            dictionary["__compiled_fn_1"] = None
            return super().startswith(*args)

    dictionary = {Name("root"): sqrt}
    with torch.fx._symbolic_trace._new_patcher() as patcher:
        torch.fx._symbolic_trace._autowrap_check(patcher, dictionary, set())


@pytest.mark.xfail(reason="docs/known-issues.md: compiles once more", raises=AssertionError, strict=True)
@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("wrapped", [lambda x: doubled(x) + 1, lambda x: x.sin() * sqrt(x.shape[0])])
def test_compiled_once(warm, wrapped):
    """A function that uses the name compiles once, whether its first call is before the trace or beside it."""
    counter, x = CompileCounter(), torch.ones(2)
    compiled = torch.compile(wrapped, backend=counter, fullgraph=True)
    want = wrapped(x)
    if warm:
        compiled(x)
    with beside_a_trace_of_this_file():
        assert torch.equal(compiled(x), want), "the value"
    assert torch.equal(compiled(x), want), "the value"
    assert counter.frame_count == 1


def test_it_says_so(caplog, monkeypatch):
    """A compile of such a function beside such a trace logs one warning, which names the function and the cure."""
    monkeypatch.setattr(events, "_told_of", set())
    compiled = torch.compile(lambda x: doubled(x) + 1, backend="eager")
    with caplog.at_level(logging.WARNING, "safecompile"), beside_a_trace_of_this_file():
        compiled(torch.ones(2))
        compiled(torch.ones(3))
    found = [record.getMessage() for record in caplog.records if record.name == "safecompile"]
    assert len(found) == 1, found
    assert "doubled" in found[0]
    assert "trace before the threads start" in found[0]


def test_red_twin():
    """Plain torch: make_fx wraps for all threads, and a dictionary that grows ends a trace."""
    done = in_forked_process(
        """
        import tests.unit.test_fx_names as here
        for test in (here.test_make_fx_wraps_nothing, here.test_a_dictionary_that_grows):
            with here.wrapping():
                try:
                    test()
                except BaseException as error:
                    print("fails", test.__name__, type(error).__name__)
        """,
        timeout_s=100,
    )
    assert "fails test_make_fx_wraps_nothing AssertionError" in done.stdout, done.stdout + done.stderr
    assert "fails test_a_dictionary_that_grows RuntimeError" in done.stdout, done.stdout + done.stderr

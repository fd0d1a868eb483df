"""An experiment: the compile in a thread of its own, while the call that missed runs uncompiled. Why it is not shipped.

torch's callback gets a frame that is gone once it returns, so the other thread gets a copy of what it tells. The result
is served at a later miss. docs/design.md says what follows.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._dynamo
from torch._dynamo import types

from safecompile import uninstall
from safecompile._torch import cache

FRAME = ("f_code", "f_locals", "f_globals", "f_builtins", "f_lasti", "f_lineno", "closure")


class Elsewhere:
    """Stands in for torch's callback: has one thread compile, and serves the result at a later miss."""

    def __init__(self, patch: pytest.MonkeyPatch, *, same_modes: bool = True) -> None:
        self.original = torch._dynamo.convert_frame.CatchErrorsWrapper.__call__
        self.pool, self.same_modes = ThreadPoolExecutor(1), same_modes
        self.compiles: dict[Any, Future[Any]] = {}
        here = self

        def on_miss(self: Any, frame: Any, cache_entry: Any, frame_state: Any) -> Any:
            return here.answer(self, frame, frame_state)

        patch.setattr(torch._dynamo.convert_frame.CatchErrorsWrapper, "__call__", on_miss)

    def answer(self, callback: Any, frame: Any, frame_state: Any) -> Any:
        compile_ = self.compiles.get(frame.f_code)
        if compile_ is None:
            kept = SimpleNamespace(**{name: getattr(frame, name) for name in FRAME if hasattr(frame, name)})
            modes = torch.is_grad_enabled(), torch.get_autocast_dtype("cpu"), torch.is_autocast_enabled("cpu")
            self.compiles[frame.f_code] = self.pool.submit(self.compile, callback, kept, frame_state, modes)
        elif compile_.done() and compile_.result().guarded_code.guard_manager.check(frame.f_locals):
            one = compile_.result().guarded_code
            return types.wrap_guarded_code(
                types.GuardedCode(one.code, one.guard_manager, one.compile_id, one.trace_annotation)
            )
        return cache.uncompiled_this_once()

    def compile(self, callback: Any, frame: Any, frame_state: Any, modes: Any) -> Any:
        if not self.same_modes:
            return self.original(callback, frame, None, frame_state)
        grad, dtype, autocast = modes
        with torch.set_grad_enabled(grad), torch.autocast("cpu", dtype, enabled=autocast):
            return self.original(callback, frame, None, frame_state)

    def wait(self) -> None:
        for one in self.compiles.values():
            one.result(60)


@pytest.fixture(autouse=True)
def _plain() -> Iterator[None]:
    uninstall()
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def plain(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


def marking(graph: Any, inputs: Any) -> Any:
    """A backend whose code tells that it has run."""
    return lambda *args: tuple(out + 100 for out in graph(*args))


@pytest.mark.parametrize("same_modes", [True, False])
def test_a_plain_function_of_tensors(same_modes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It works, if the modes of the calling thread are the compiling one's too; else the result never fits."""
    elsewhere = Elsewhere(monkeypatch, same_modes=same_modes)
    compiled, x = torch.compile(plain, backend=marking), torch.ones(3)
    with torch.no_grad():
        assert compiled(x).max() < 50, "the first call did not run uncompiled"
        elsewhere.wait()
        assert (compiled(x).max() > 50) == same_modes


class State:
    def __init__(self) -> None:
        self.steps = 0


def counts(x: torch.Tensor, state: State) -> torch.Tensor:
    state.steps += 1
    return x + state.steps


def test_a_function_that_changes_an_object(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call goes on while its compile reads what it changes: the trace saw one value, the guard tests another.

    So compiled code that fits by its guards is wrong, without a word.
    """
    elsewhere = Elsewhere(monkeypatch)
    traced, changed = threading.Event(), threading.Event()

    def backend(graph: Any, inputs: Any) -> Any:
        traced.set()
        assert changed.wait(60)
        return graph.forward

    compiled, state, x = torch.compile(counts, backend=backend, dynamic=False), State(), torch.zeros(1)
    original = cache.uncompiled_this_once
    # The uncompiled call begins when the trace is over, and ends before the guards are made.
    monkeypatch.setattr(cache, "uncompiled_this_once", lambda: (traced.wait(60), original())[1])
    assert compiled(x, state).item() == 1.0
    changed.set()
    elsewhere.wait()
    assert state.steps == 1
    assert compiled(x, state).item() != 2.0, "the second call is right: what docs/design.md says holds no more"

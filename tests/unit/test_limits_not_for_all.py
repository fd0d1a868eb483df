"""What must not run uncompiled waits whatever the limit, and says so once."""

from __future__ import annotations

import functools
import logging
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.utils.checkpoint
from torch.nn.attention import flex_attention as flex_module
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint

from safecompile import install, safe_compile
from safecompile._engine import limits, reachable
from safecompile._torch import eager
from tests.unit.test_limits import Parked, X, _clean, is_eager, other, told

__all__ = ["_clean"]


def frame_of(fn: Callable[..., Any], *args: Any, **closure: Any) -> Any:
    """Returns what a miss sees of a call of ``fn``."""
    code = fn.__code__
    cells = dict(zip(code.co_freevars, [cell.cell_contents for cell in fn.__closure__ or ()], strict=True))
    values = {**dict(zip(code.co_varnames, args, strict=False)), **cells}
    return SimpleNamespace(f_code=code, f_locals=values, f_globals=fn.__globals__)


def by_name(x: Any) -> Any:
    return flex_attention(x, x, x)


def by_module(x: Any) -> Any:
    return flex_module.flex_attention(x, x, x)


def by_torch(x: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda: x, lambda: -x)


def far_away(x: Any) -> Any:
    return [by_torch(one) for one in x]


def checkpointed(x: Any) -> Any:
    return torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=False)


class Block(torch.nn.Module):
    def __init__(self, attend: Any = None) -> None:
        super().__init__()
        self.attend = attend

    def forward(self, x: Any) -> Any:
        return self.apply_to(x)

    def apply_to(self, x: Any) -> Any:
        return x if self.attend is None else self.attend(x)


class Model(torch.nn.Module):
    def __init__(self, attend: Any = None) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(), Block(attend)])

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return x


class Strategy:
    attend = staticmethod(by_name)

    def __call__(self, x: Any) -> Any:
        return self.attend(x)


def closed_over(what: Any) -> Callable[..., Any]:
    def calls(x: Any) -> Any:
        return what(x)

    return calls


def a_method(self: Any, x: Any) -> Any:
    return self.attend(x)


FOUND: dict[str, Any] = {
    "by name": lambda: frame_of(by_name, X),
    "through a module": lambda: frame_of(by_module, X),
    "torch.cond": lambda: frame_of(by_torch, X),
    "two functions away": lambda: frame_of(far_away, X),
    "checkpoint": lambda: frame_of(checkpointed, X),
    "in a closure": lambda: frame_of(closed_over(by_name), X),
    "an attribute of a module in the model": lambda: frame_of(Model.forward, Model(flex_attention), X),
    "a partial": lambda: frame_of(Model.forward, Model(functools.partial(checkpoint, torch.sin)), X),
    "a callable object": lambda: frame_of(Model.forward, Model(Strategy()), X),
    "an argument": lambda: frame_of(lambda fn, x: fn(x), by_name, X),
    "an attribute of an object": lambda: frame_of(a_method, Strategy(), X),
    "the function itself": lambda: frame_of(flex_attention, X),
}


@pytest.mark.parametrize("case", FOUND)
def test_what_is_found(case: str) -> None:
    """A higher-order operator or a checkpoint is found wherever the code names it, and found once more."""
    frame = FOUND[case]()
    assert reachable.what_needs_a_compile(frame)
    assert reachable.what_needs_a_compile(frame)


def test_what_is_not_found() -> None:
    """Ordinary functions and models have none; an answer is for the objects that it was asked for."""
    cases = [(told, X), (Model.forward, Model(), X), (lambda x: torch.nn.functional.relu(x).flatten(), X)]
    for fn, *args in cases:
        assert reachable.what_needs_a_compile(frame_of(fn, *args)) is None
    assert reachable.what_needs_a_compile(frame_of(Model.forward, Model(by_name), X)) is not None
    assert reachable.what_needs_a_compile(frame_of(Model.forward, Model(), X)) is None


def test_it_calls_no_code_of_the_users() -> None:
    """Arguments that run code for any question are not asked."""

    class Proxy:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(name)

        def __eq__(self, other: object) -> bool:
            raise AssertionError

        __hash__ = None  # type: ignore[assignment]

        @property
        def __class__(self) -> Any:
            raise AssertionError

    def takes(self: Any, x: Any) -> Any:
        return self.attend(x)

    assert reachable.what_needs_a_compile(frame_of(takes, Proxy(), X)) is None
    assert reachable.what_needs_a_compile(frame_of(takes, X, Proxy())) is None


def test_it_waits_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    """A call that uses torch.cond waits beside a compile with a limit of 0, and one WARNING names the operator."""

    def uses_cond(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda y: told(y), lambda y: y - 1, (x,))

    compiled = safe_compile(uses_cond, backend="eager", max_wait_s=0.0)
    with caplog.at_level(logging.WARNING, "safecompile"):
        for _ in range(2):
            torch._dynamo.reset()
            with Parked(other) as parked:
                threading.Timer(0.2, parked.backend.release).start()
                assert not is_eager(compiled(X))
    assert [
        "whatever max_wait_s says: it uses the higher-order operator cond" in one.getMessage() for one in caplog.records
    ] == [True]


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_inside_a_checkpoint(use_reentrant: bool) -> None:
    """A compiled function in a checkpoint waits, so that forward and recomputation are both compiled."""

    def body(x: torch.Tensor) -> torch.Tensor:
        return told(x.sin()).cos()

    compiled = safe_compile(body, backend="aot_eager", max_wait_s=0.0)
    x = torch.ones(3, requires_grad=True)
    with Parked(other) as parked:
        threading.Timer(0.2, parked.backend.release).start()
        out = checkpoint(compiled, x, use_reentrant=use_reentrant)
    out.sum().backward()
    torch.testing.assert_close(out.detach(), (torch.ones(3).sin() + 1).cos())


def test_inside_a_checkpoint_that_a_hook_began() -> None:
    """A checkpoint that is in no frame is seen by its hooks, from torch 2.8 on."""
    if not hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks"):
        pytest.skip("nothing tells of it")
    assert not eager.inside_a_checkpoint()
    region = torch.utils.checkpoint._checkpoint_without_reentrant_generator(lambda: X)
    next(region)
    try:
        assert eager.inside_a_checkpoint()
    finally:
        with pytest.raises(StopIteration):
            next(region)
    with torch.autograd.graph.save_on_cpu():
        assert not eager.inside_a_checkpoint()


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(is_initialized=lambda: True, get_world_size=lambda: 2)
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", module)


def test_beside_a_process_group(group: None) -> None:
    """With several ranks a call waits, unless the caller says that they may differ."""
    frame = frame_of(told, X)
    assert "process group" in str(limits.why_it_waits(None, frame))
    install(ranks_may_differ=True)
    assert limits.why_it_waits(None, frame) is None


def test_in_a_backward_in_an_export_and_in_a_stance() -> None:
    """So does a call inside a backward pass, one that is exported, and one under a stance that forbids compiles."""
    frame, seen = frame_of(told, X), []

    class Asks(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            seen.append(limits.why_it_waits(None, frame))
            return grad

    Asks.apply(torch.ones(3, requires_grad=True)).sum().backward()
    assert "backward" in seen[0]
    export = SimpleNamespace(_torchdynamo_orig_backend=SimpleNamespace(_export=True))
    assert "exported" in str(limits.why_it_waits(export, frame))
    with torch.compiler.set_stance("fail_on_recompile"):
        assert "stance" in str(limits.why_it_waits(None, frame))
    assert limits.why_it_waits(None, frame) is None


def test_an_export_beside_a_compile() -> None:
    """An export waits for a compile, and is an export."""
    install(max_wait_s=0.0)
    with Parked(other) as parked:
        threading.Timer(0.2, parked.backend.release).start()
        graph, _ = torch._dynamo.export(told)(X)
    assert "add" in graph.code


def test_a_backward_that_is_not_compiled_yet(caplog: pytest.LogCaptureFixture) -> None:
    """Its compile is waited for, and a WARNING says so."""

    def body(x: torch.Tensor) -> torch.Tensor:
        return x.sin().cos()

    compiled = safe_compile(body, backend="aot_eager", max_wait_s=0.0)
    x = torch.ones(3, requires_grad=True)
    out = compiled(x).sum()
    with Parked(other) as parked, caplog.at_level(logging.WARNING, "safecompile"):
        threading.Timer(0.2, parked.backend.release).start()
        out.backward()
    assert x.grad is not None
    assert any("its backward is not compiled yet" in one.getMessage() for one in caplog.records)

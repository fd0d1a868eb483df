"""Checked by mypy --strict and pyright, never run: every form of safe_compile keeps the signature of what it wraps."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import assert_type

import safecompile
from safecompile import events, install, is_installed, safe_compile, uninstall, warmup


def scale(x: Tensor, factor: float = 2.0, *, flip: bool = False) -> Tensor:
    return -x * factor if flip else x * factor


class Scaler:
    def scale(self, x: Tensor, factor: float) -> tuple[Tensor, float]:
        return x * factor, factor

    def __call__(self, x: Tensor) -> Tensor:
        return x


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.width = 3

    def forward(self, x: Tensor) -> Tensor:
        return x


x = torch.ones(3)

# A function.
fast = safe_compile(scale)
assert_type(fast(x), Tensor)
assert_type(fast(x, 3.0, flip=True), Tensor)
fast("x")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
fast(x, flop=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
as_torch: Callable[[Tensor, float], Tensor] = safe_compile(scale)
assert_type(safe_compile(model=scale)(x), Tensor)

# In place of torch.compile itself.
api = torch.compile
api = safe_compile

# A bound method, and a callable object.
assert_type(safe_compile(Scaler().scale)(x, 3.0), tuple[Tensor, float])
safe_compile(Scaler().scale)(x)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
assert_type(safe_compile(Scaler())(x), Tensor)

# A module: called as it was, with the attributes that it had.
net = safe_compile(Net(), mode="max-autotune")
assert_type(net(x), Any)
assert_type(net.width, int)
net.load_state_dict(net.state_dict())
with_forward: Callable[..., Any] = safe_compile(Net())


# A decorator, without and with arguments.
@safe_compile
def plain(x: Tensor, n: int) -> Tensor:
    return x + n


@safe_compile()
def empty(x: Tensor, n: int) -> Tensor:
    return x + n


@safe_compile(fullgraph=True, dynamic=None, backend="eager", options={"trace.enabled": True}, disable=False)
def full(x: Tensor, n: int) -> Tensor:
    return x + n


for decorated in (plain, empty, full):
    assert_type(decorated(x, 1), Tensor)
plain(x, "1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
empty(x, "1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
full(x, "1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


class Layer:
    @safe_compile
    def step(self, x: Tensor) -> Tensor:
        return x

    @safe_compile(mode="reduce-overhead")
    def leap(self, x: Tensor) -> Tensor:
        return x


assert_type(Layer().step(x), Tensor)
assert_type(Layer().leap(x), Tensor)


# The keywords that torch has: each with its type. Others are passed on.
def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
    return graph.forward


assert_type(safe_compile(scale, backend=backend)(x), Tensor)
assert_type(safe_compile(scale, name="scale", recompile_limit=4, isolate_recompiles=True)(x), Tensor)
assert_type(safe_compile(scale, keyword_of_a_later_release=object())(x), Tensor)
assert_type(safe_compile(scale, max_wait_s=0.5)(x), Tensor)
assert_type(safe_compile(Net(), max_wait_s=None).width, int)
safe_compile(scale, max_wait_s="soon")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue,reportArgumentType]
assert_type(safe_compile(None, dynamic_shapes={"x": None})(scale)(x), Tensor)
safe_compile(scale, fullgraph="yes")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue,reportArgumentType]
safe_compile(scale, mode=1)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue,reportArgumentType]
safe_compile(scale, "eager")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue,reportArgumentType]

assert_type(install(), None)
assert_type(install(timeout_s=1.0), None)
assert_type(install(max_wait_s=None, ranks_may_differ=True), None)
assert_type(warmup(fast, x, devices=["cpu"])[0].seconds, float)
assert_type(is_installed(), bool)
uninstall()

# What shows: records by their types, reports, contexts.
assert_type(safecompile.report().as_dict(), dict[str, Any])
with safecompile.record() as recorded, safecompile.timeline("x.json"), safecompile.progress():
    assert_type(recorded.of(events.Reuse), list[events.Reuse])
    assert_type(recorded[0], events.Event)
    assert_type(recorded[1:], list[events.Event])
assert_type(events.subscribe(print, events.Miss, events.Wait), Callable[[], None])
with safecompile.watch(provoke=True) as watched:
    assert_type(watched.findings[0].kind, str)

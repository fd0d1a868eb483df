"""warmup: compiles a function for each device and signature, in order, before the threads start."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

from ._common import environment, events
from ._common.errors import SafeCompileError
from ._engine import warming
from ._installing import installer
from ._torch import dynamo

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Warmed:
    """One call that :func:`warmup` has made.

    Args:
        device: ``"cuda:0"``, or ``""`` where the inputs were used as they are.
        inputs: what was given, for example ``"float32[8, 64], int64[8]"``.
        compiled: what this call has compiled, in order: names of functions, with `` (backward)`` behind a backward.
            Empty if all was there.
        seconds: how long the call took, its compiles and its first run.

    Thread safety: immutable.
    """

    device: str
    inputs: str
    compiled: tuple[str, ...]
    seconds: float


def warmup(
    fn: Any,
    *inputs: Any,
    devices: Iterable[torch.device | str] | None = None,
    backward: bool = False,
    recompiles_are_errors: bool = True,
) -> list[Warmed]:
    """Compiles ``fn`` for each of ``devices`` and each of ``inputs``, in this order, by calling it.

    Call it before the threads start. It calls as the caller does: under its grad mode, autocast and settings.

    Args:
        fn: what ``safe_compile`` or ``torch.compile`` has returned.
        *inputs: the signatures. Each is a tuple of positional arguments, a dictionary of keyword arguments, or one
            argument alone. A tensor is used as it is, and copied nowhere. One on the device ``meta``
            (``x.to("meta")``, which holds no data) stands for a tensor of zeros of its shape, strides, dtype and
            ``requires_grad``, which is made on each device and freed after the call.
        devices: where tensors on ``meta`` are made; needed if there are any.
        backward: also runs a backward pass from the outputs. No ``.grad`` is changed.
        recompiles_are_errors: from now on a call of ``fn``, and what it calls, raises :class:`RecompileError` where it
            would compile. A later ``warmup`` of ``fn`` with False takes it back.

    Returns:
        What was called, what was compiled, and how long it took. On a terminal a line of progress is on stderr.

    Raises:
        SafeCompileError: ``fn`` is not compiled, a tensor is not on the device that it is to be warmed up for, or no
            output needs a gradient. What ``fn`` raises comes through.

    Example::

        fast = safe_compile(step)
        warmup(fast, (x.to("meta"),), (long_x.to("meta"),), devices=["cuda:0", "cuda:1"])

    Thread safety: may be called from any thread. It waits for other threads' compiles without a limit.
    """
    if environment.is_disabled():
        return []
    if not installer.is_installed() or dynamo.context_of_compiled(fn) is None:
        msg = f"warmup() got a {type(fn).__name__!r} that is not compiled. Pass what safe_compile() has returned."
        raise SafeCompileError(msg)
    places = [""] if devices is None else [str(one) for one in devices]
    work = [(place, signature) for place in places for signature in inputs]
    done: list[Warmed] = []
    with warming.warming() as mark, _line_of_progress() as say:
        for number, (place, signature) in enumerate(work, 1):
            say(f"warmup {number} of {len(work)}: {place} {_text(signature)}")
            done.append(_warm(fn, place, signature, mark, backward=backward))
    warming.close(fn, closed=recompiles_are_errors)
    return done


def _warm(fn: Any, place: str, signature: Any, mark: object, *, backward: bool) -> Warmed:
    compiled: list[str] = []

    def listen(miss: events.Miss) -> None:
        # A backward on an accelerator is compiled by one of autograd's threads.
        if miss.outcome == "compiled" and warming.is_for(mark):
            compiled.append(miss.function)

    given = _made(signature, place)
    args = given if isinstance(given, tuple) else () if isinstance(given, dict) else (given,)
    began, unsubscribe = monotonic(), events.subscribe(listen)
    try:
        result = fn(*args, **(given if isinstance(given, dict) else {}))
        if backward:
            _run_backward(result)
    finally:
        unsubscribe()
    one = Warmed(place, _text(signature), tuple(compiled), monotonic() - began)
    names = ", ".join(compiled) or "nothing"
    events.log.info("warmup of %s %s compiled %s in %.2f s", one.device, one.inputs, names, one.seconds)
    return one


def _made(value: Any, place: str) -> Any:
    """Returns the arguments that ``value`` stands for: tensors on ``meta`` are made on ``place``."""
    import torch

    if isinstance(value, (tuple, list)):
        items = [_made(one, place) for one in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {name: _made(one, place) for name, one in value.items()}
    if not isinstance(value, torch.Tensor):
        return value
    if value.device.type == "meta" and place:
        made = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=place).zero_()
        return made.requires_grad_(value.requires_grad)
    if value.device.type == "meta" or (place and value.device != torch.empty(0, device=place).device):
        msg = (
            f"warmup() got a tensor on {value.device} for a call on {place or 'no device'}, and it copies none. Pass "
            "x.to('meta') with devices=, or tensors that are where you use them, without devices=."
        )
        raise SafeCompileError(msg)
    return value


def _run_backward(result: Any) -> None:
    """Runs a backward pass from all tensors in ``result`` that need one."""
    import torch

    outputs = [one for one in _tensors(result) if one.requires_grad]
    if not outputs:
        msg = (
            "warmup(backward=True) found no backward: no output needs a gradient. Pass inputs with requires_grad=True."
        )
        raise SafeCompileError(msg)
    leaves, seen, pending = [], set(), [one.grad_fn for one in outputs]
    while pending:
        node = pending.pop()
        if node is not None and node not in seen:
            seen.add(node)
            leaves += [node.variable] if hasattr(node, "variable") else []
            pending += [following for following, _ in node.next_functions]
    torch.autograd.grad(outputs, leaves, [torch.ones_like(one) for one in outputs], allow_unused=True)


def _tensors(value: Any) -> Iterator[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list, dict)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _tensors(one)


def _text(value: Any) -> str:
    found = [f"{str(one.dtype).removeprefix('torch.')}{list(one.shape)}" for one in _tensors(value)]
    return ", ".join(found) or "no tensors"


@contextmanager
def _line_of_progress() -> Iterator[Any]:
    shows = environment.is_terminal(sys.stderr)
    try:
        yield (lambda text: print(f"\r\x1b[K{text[:100]}", end="", file=sys.stderr, flush=True) if shows else None)
    finally:
        if shows:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

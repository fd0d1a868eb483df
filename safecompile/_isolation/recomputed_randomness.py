"""Random numbers that a backward draws once more (dropout in a checkpointed region, on CUDA), for each thread.

A compiled graph with such numbers has two generators, one for its forwards and one that its backwards draw from, in the
same order. Where N threads share the graph, their forwards take numbers in turns, and a backward no longer draws what
its forward drew: wrong gradients, silently. In plain torch each thread has a graph of its own, up to 2.12. Here each
thread has generators of its own, which go with a forward to its backward, whatever thread that runs on. The thread that
comes first has torch's.
"""

from __future__ import annotations

import functools
import threading
from types import ModuleType
from typing import Any, Final

from .._patching.families import Part
from .._patching.patches import AttributePatch, Patch
from .._torch import dynamo

_THREADS: Final = "_safecompile_threads"


def patches_of_runtime_wrappers(module: ModuleType) -> list[Patch]:
    """Returns the patches; changes nothing."""
    # torch 2.13+ has a class for it. Older releases keep it in a closure: there nothing is patched.
    tracker = dynamo.rng_tracker(module)
    if tracker is None:
        return []
    forward, backward = tracker.add_forward_args, tracker.add_backward_args

    @functools.wraps(forward)
    def _patched_add_forward_args(self: Any, ctx: Any, args: tuple[Any, ...]) -> Any:
        ctx._safecompile_tracker = mine = _of_this_thread(self) if self.num_rng else self
        return forward(mine, ctx, args)

    @functools.wraps(backward)
    def _patched_add_backward_args(self: Any, ctx: Any, all_args: list[Any]) -> None:
        backward(getattr(ctx, "_safecompile_tracker", self), ctx, all_args)

    return [
        AttributePatch(tracker, "add_forward_args", _patched_add_forward_args),
        AttributePatch(tracker, "add_backward_args", _patched_add_backward_args),
    ]


def _of_this_thread(tracker: Any) -> Any:
    """Returns what this thread has in the place of ``tracker``."""
    threads = vars(tracker).get(_THREADS) or vars(tracker).setdefault(_THREADS, _Threads(tracker))
    if not hasattr(threads.local, "mine"):
        try:
            threads.local.mine = threads.first.pop()
        except IndexError:
            kept = {name: getattr(tracker, name) for name in ("num_rng", "graphsafe_idx", "device")}
            threads.local.mine = type(tracker)(**kept)
    return threads.local.mine


class _Threads:
    """The trackers of the threads; torch's own is for who comes first."""

    def __init__(self, tracker: Any) -> None:
        self.local, self.first = threading.local(), [tracker]


PARTS: Final = (Part("recomputed randomness", dynamo.AOT_WRAPPERS, patches_of_runtime_wrappers),)

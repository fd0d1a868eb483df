"""Inputs of a warm-up or capture of CUDA graphs live until the thread's stream waits for the one that reads them.

Both run on a stream of their own, and drop inputs as soon as the kernels that read them are launched. Another thread,
whose stream does not wait for that one, could be given such memory while they still read it (wrong gradients in 2 of 3
runs, 2.11, H200). Telling the allocator (``record_stream``) will not do: memory that is dropped beside a later capture
on that stream makes another thread's next allocation fail, and the capture too (2.15, H200; pytorch#193982).

Not a moment longer: right afterwards torch compares what lives in the graphs' memory with what it knows of.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final

from .._patching.families import Part
from .._patching.patches import AttributePatch, Patch
from .._torch import cuda_graphs as host


class _Here(threading.local):
    """The inputs of the warm-ups and captures that this thread is in, the innermost last."""

    def __init__(self) -> None:
        self.kept: list[list[Any]] = []


_here = _Here()


@contextmanager
def kept(manager: Any, inputs: Any) -> Iterator[None]:
    """Keeps the inputs that no graph has made, in a block that warms up or captures."""
    mine = host.made_by_no_graph(manager, inputs)
    _here.kept.append(mine)
    try:
        yield
    finally:
        _here.kept.pop()
        mine.clear()  # a traceback would keep them


def patches_of_cudagraph_trees(module: ModuleType) -> list[Patch]:
    """Returns the patch for the block that runs on the other stream, and waits for it at its end; changes nothing."""
    original = vars(module)[host.ON_THE_GRAPHS_STREAM]

    @functools.wraps(original)
    @contextmanager
    def _patched(*args: Any, **kwargs: Any) -> Iterator[None]:
        with original(*args, **kwargs):
            yield
        if _here.kept:
            _here.kept[-1].clear()

    return [AttributePatch(module, host.ON_THE_GRAPHS_STREAM, _patched)]


PARTS: Final = (Part("cuda graphs", host.CUDAGRAPH_TREES, patches_of_cudagraph_trees),)

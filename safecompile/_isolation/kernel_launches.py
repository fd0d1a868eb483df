"""The first launch of a Triton kernel, when one compiled graph serves many threads.

Inductor's kernels are finished at their first launch: configurations are compiled, loaded and tried, the winner stays
and the losers are unloaded, all without a lock (2.7-2.15). Where one compile serves N threads, N first launches meet in
one object: ``load_kernel() must be called before run()``, or ``Autotuned launcher config does not match any compile
result``. In plain torch each thread compiles for itself, up to 2.12, and such errors are rare.

A kernel that is not finished is of a class of its own here, whose ``run`` holds the kernel's gate around torch's. Once
one launcher is left, the kernel gets its own class back: a later launch is torch's, with no lock, no test and no frame
of this library's. Most kernels have one launcher from the beginning, and get it back before their first launch.

torch synchronizes the device while it tries configurations, which would end another thread's capture. So where CUDA
graphs are in use, the device is taken first, as for a capture.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final

from .._patching.families import Part
from .._patching.patches import AttributePatch, Patch
from .._torch import dynamo
from .._torch import kernels as host
from . import graph_trees, kernel_gates


def patches_of_triton_heuristics(module: ModuleType) -> list[Patch]:
    """Returns the patches that make each new kernel an unfinished one; changes nothing."""
    tuner = host.tuner_class(module)
    original_precompile = tuner.precompile

    @functools.wraps(original_precompile)
    def _patched_precompile(self: Any, *args: Any, **kwargs: Any) -> Any:
        # torch 2.13+: a second graph with the same kernel may get the same object, and make its launchers anew.
        with kernel_gates.gate(self, sys._getframe()):
            _make_unfinished(self)
            return original_precompile(self, *args, **kwargs)

    return [
        AttributePatch(tuner, "__init__", _and_then_unfinished(tuner.__init__)),
        AttributePatch(tuner, "__setstate__", _and_then_unfinished(tuner.__setstate__)),
        AttributePatch(tuner, "precompile", _patched_precompile),
    ]


def patches_of_multi_kernel(module: ModuleType) -> list[Patch]:
    """Returns the patch for what tries several kernels; changes nothing."""
    kernel = host.multi_kernel_class(module)
    return [AttributePatch(kernel, "__init__", _and_then_unfinished(kernel.__init__))]


def _and_then_unfinished(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def _patched(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        _make_unfinished(self)

    return _patched


#: The class of the unfinished kernels of each class of torch's. Each use is one dictionary operation.
_unfinished: dict[type[Any], type[Any]] = {}
_MARK: Final = "_safecompile_unfinished"


def _make_unfinished(kernel: Any) -> None:
    cls = type(kernel)
    if _MARK not in vars(cls):
        kernel.__class__ = _unfinished.get(cls) or _unfinished.setdefault(cls, _unfinished_of(cls))


def _unfinished_of(cls: Any) -> type[Any]:
    """Returns a class that differs from ``cls`` in ``run`` alone, and is pickled as ``cls``."""

    @functools.wraps(cls.run)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        # No variable has this frame: it would keep the inputs, which CUDA graphs count, until the collector comes.
        with kernel_gates.gate(self, sys._getframe()) as mine:
            if mine and type(self) is not cls and host.is_ready(self):
                _finish(self, cls)
        if mine and type(self) is not cls:
            with _device(self), kernel_gates.gate(self, sys._getframe()) as mine:
                if mine and type(self) is not cls:
                    result = cls.run(self, *args, **kwargs)
                    if host.is_tuned(self):
                        _finish(self, cls)
                    return result
        if type(self) is cls:
            kernel_gates.forget(self)  # one that came late has made it anew
        return cls.run(self, *args, **kwargs)

    def reduce_ex(self: Any, protocol: Any) -> Any:
        # Not copyreg's way: pickle compares the class that it names with the object's.
        _, _, *state = cls.__reduce_ex__(self, max(protocol, 2))
        return (object.__new__, (cls,), *state)

    body = {"__slots__": (), "__module__": cls.__module__, "__doc__": cls.__doc__, _MARK: True, "run": run}
    return type(cls.__name__, (cls,), {**body, "__reduce_ex__": reduce_ex})


def _finish(kernel: Any, cls: Any) -> None:
    kernel.__class__ = cls
    kernel_gates.forget(kernel)


@contextmanager
def _device(kernel: Any) -> Iterator[None]:
    """Keeps others from capturing on the device of ``kernel``, where CUDA graphs are in use.

    A thread with the compile lock waits for half a second at most, and one that launches another kernel not at all.
    """
    device = host.cuda_device_of(kernel)
    if device == "none" or dynamo.loaded(host.CUDAGRAPH_TREES) is None or kernel_gates.held.count:
        yield
        return
    with graph_trees.no_capture_on(device):
        yield


PARTS: Final = (
    Part("kernels", host.TRITON_HEURISTICS, patches_of_triton_heuristics),
    Part("kernels", host.MULTI_KERNEL, patches_of_multi_kernel),
)

"""The private names of Inductor's Triton kernels. As :mod:`.dynamo`, it only names and tells."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, Final

TRITON_HEURISTICS = "torch._inductor.runtime.triton_heuristics"
MULTI_KERNEL = "torch._inductor.codegen.multi_kernel"
CUDAGRAPH_TREES = "torch._inductor.cudagraph_trees"

#: What Inductor's settings of a kernel ask for at its first launch, and the mark of a configuration that has had it.
_TUNED_LATER: Final = (
    ("coordinate_descent_tuning", "found_by_coordesc"),
    ("combo_tuning_groups", "found_by_combo_autotune"),  # torch 2.13+
)


def tuner_class(module: ModuleType) -> type[Any]:
    """Returns the class of Inductor's kernels: template and combo kernels, and user-defined ones, are made of it too.

    Raises:
        LookupError: it lacks something that the gate of first launches relies on.
    """
    tuner: type[Any] = module.CachingAutotuner
    for name in ("__init__", "__setstate__", "precompile", "run"):
        if name not in vars(tuner):
            msg = f"{module.__name__}.{tuner.__name__}.{name}"
            raise LookupError(msg)
    return tuner


def multi_kernel_class(module: ModuleType) -> type[Any]:
    """Returns the class of what tries several kernels at its first launch, and launches the fastest from then on."""
    kernel: type[Any] = module.MultiKernelCall
    for name in ("__init__", "run"):
        if name not in vars(kernel):
            msg = f"{module.__name__}.{kernel.__name__}.{name}"
            raise LookupError(msg)
    return kernel


def name_of(kernel: Any) -> str:
    """Returns the name of a kernel."""
    if hasattr(kernel, "multi_kernel_name"):
        return str(kernel.multi_kernel_name)
    return str((getattr(kernel, "inductor_meta", None) or {}).get("kernel_name") or getattr(kernel, "fn", "?"))


def is_ready(kernel: Any) -> bool:
    """Tells whether a launch of ``kernel`` does no more than launch: nothing is compiled, tried or loaded any more."""
    state = vars(kernel)
    if "picked_kernel" in state:
        # One that picks for each shape keeps its last pick between two steps of a launch: it is never ready.
        by_shape = hasattr(kernel, "_get_shape_cache_key") and getattr(kernel, "_shape_specialize", True)
        return state["picked_kernel"] is not None and state.get("_recorded", True) and not by_shape
    if state.get("triton_interpret") or state.get("_cached_launcher") is not None:  # the second: torch 2.13+
        return True
    launchers, wanted = state.get("launchers", ()), state.get("inductor_meta") or {}
    if len(launchers) != 1:
        return False
    config = launchers[0].config
    return not any(wanted.get(name) and not getattr(config, mark, False) for name, mark in _TUNED_LATER)


def is_tuned(kernel: Any) -> bool:
    """Tells, of a kernel that has been launched, whether its first launch has left one launcher."""
    # Templates and user-defined kernels are not tuned by coordinate descent, and never get its mark.
    return is_ready(kernel) or len(vars(kernel).get("launchers", ())) == 1


def cuda_device_of(kernel: Any) -> Any:
    """Returns the number of the CUDA device that ``kernel`` runs on, None for the current one, ``"none"`` for none."""
    kernel = getattr(kernel, "_kernels", (kernel,))[0]
    meta = getattr(kernel, "triton_meta", None) or {}
    return meta.get("device") if meta.get("device_type") in ("cuda", "hip") else "none"


def runs_code_of_users() -> bool:
    """Tells whether torch may call functions of the user's while this thread launches a kernel for the first time."""
    import torch

    if torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack():
        return True
    benchmarking = sys.modules.get("torch._inductor.runtime.benchmarking")
    if getattr(benchmarking, "_gpu_benchmark_lock_context", None) is not None:  # torch 2.15
        return True
    return any(bool(getattr(one, "calls", True)) for one in _hooks() if one is not None)  # chains, which may be empty


def _hooks() -> list[Any]:
    knobs = sys.modules.get("triton.knobs")
    if knobs is not None:
        names = ("launch_enter_hook", "launch_exit_hook", "kernel_load_start_hook", "kernel_load_end_hook")
        return [getattr(knobs.runtime, name, None) for name in names] + [getattr(knobs.compilation, "listener", None)]
    # triton 3.3 (torch 2.7) keeps them on a class. Drop when min torch > 2.7.
    kernel = getattr(sys.modules.get("triton.compiler.compiler"), "CompiledKernel", None)
    return [getattr(kernel, name, None) for name in ("launch_enter_hook", "launch_exit_hook")]

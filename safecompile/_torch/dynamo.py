"""torch's private parts: here Dynamo's, in the files beside it the others'. They look up and tell, and patch nothing.

Every fact was run on torch 2.7.1, 2.9.1, 2.11.0, 2.13.0, 2.14.1 and 2.15.0. A fact that ends with a release
says so in the form ``Drop when min torch > x``. Imports of torch are inside the functions: this module may be
imported before torch, and it never imports ``torch._dynamo`` by itself.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType, ModuleType
from typing import Any

CONVERT_FRAME = "torch._dynamo.convert_frame"
EVAL_FRAME = "torch._dynamo.eval_frame"
TRACE_RULES = "torch._dynamo.trace_rules"
GUARDS = "torch._dynamo.guards"
DYNAMO = "torch._dynamo"
MODULE = "torch.nn.modules.module"
DYNAMO_UTILS = "torch._dynamo.utils"
METRICS = "torch._dynamo.metrics_context"
AOT_WRAPPERS = "torch._functorch._aot_autograd.runtime_wrappers"


def loaded(name: str) -> ModuleType | None:
    """Returns the module if it is imported and complete, else None."""
    module = sys.modules.get(name)
    if type(module).__name__ == "_LazyModule":  # a look at any attribute would import it
        return None
    spec = getattr(module, "__spec__", None)
    return None if getattr(spec, "_initializing", False) else module


def version() -> str:
    """Returns the version of the torch that is imported, else an empty string."""
    return str(getattr(sys.modules.get("torch"), "__version__", ""))


def compile_lock() -> Any:
    """Returns Dynamo's own reentrant lock; looked up by name at each use, as torch does."""
    return sys.modules[CONVERT_FRAME].compile_lock


def compiles_here() -> bool:
    """Tells whether this thread holds the compile lock."""
    return loaded(CONVERT_FRAME) is not None and bool(compile_lock()._is_owned())


def region() -> int:
    """Returns the identity of the ``isolate_recompiles`` region of this call, -1 for none."""
    # torch 2.13+: entries of one region are invisible to the others. Older: no regions.
    from torch._C._dynamo import eval_frame

    current = getattr(eval_frame, "get_eval_frame_isolate_recompiles_id", None)
    return -1 if current is None else int(current())


def wanted_region(wrapper: FrameType) -> int:
    """Returns the region of the compiled function whose wrapper is running in this frame."""
    return int(getattr(wrapper.f_locals.get("self"), "_isolate_recompiles_id", -1))


def context_in(wrapper: FrameType) -> Any:
    """Returns the context of the compiled function whose wrapper is running in this frame."""
    return wrapper.f_locals.get("self")


def set_region(identity: int) -> None:
    """Sets the region in which this thread's next look-up and publication happen."""
    # torch 2.13 and 2.14 keep it in a variable of the process, which a call of another thread sets meanwhile.
    from torch._C._dynamo import eval_frame

    eval_frame.set_eval_frame_isolate_recompiles_id(identity)


def set_frame_callback(callback: Any) -> Any:
    """Sets what Dynamo calls for each frame of this thread, None for nothing; returns what was set."""
    if loaded(EVAL_FRAME) is None:
        return None
    from torch._C._dynamo import eval_frame

    return eval_frame.set_eval_frame(callback)


def is_internal_error(error: Exception) -> bool:
    """Tells whether this is what torch raises when its surroundings change in the middle of a compile."""
    # What user code, the backend and unsupported code raise has other classes by then. A KeyError or IndexError of
    # torch's own: 2.13+, from its guards.
    errors = sys.modules.get("torch._dynamo.exc")
    internal = () if errors is None else (errors.InternalTorchDynamoError,)
    if isinstance(error, (*internal, AssertionError, KeyError, IndexError)):
        return True
    return type(error) is RuntimeError and "during iteration" in str(error)  # no class of the user's with a __str__


def wants_one_graph(callback: Any) -> bool:
    """Tells whether a break of the graph is an error for this call: fullgraph=True, export, error_on_graph_break."""
    # torch 2.7-2.8: the attribute is named as for functions. Drop the second name when min torch > 2.8.
    convert = getattr(callback, "_torchdynamo_orig_backend", getattr(callback, "_torchdynamo_orig_callable", None))
    if not isinstance(convert, sys.modules[CONVERT_FRAME].ConvertFrame):
        return True
    on_break = getattr(sys.modules["torch._dynamo.symbolic_convert"], "_get_error_on_graph_break", None)  # 2.9+
    return on_break is not None and bool(on_break())


def is_about_settings(error: Exception) -> bool:
    """Tells whether torch raises it because a setting has changed: ``Global grad_mode state changed …``."""
    return isinstance(error, AssertionError) and str(error).startswith("Global ")


def forget_frame() -> None:
    """Takes back one frame of those that Dynamo counts: it is about to be traced once more."""
    sys.modules[DYNAMO_UTILS].counters["frames"]["total"] -= 1


def graphs_compiled() -> int:
    """Returns how many graphs Dynamo has handed to a backend in this process so far."""
    return int(sys.modules[DYNAMO_UTILS].counters["stats"]["unique_graphs"])


def global_settings() -> tuple[Any, ...]:
    """Returns the settings of the process that Dynamo guards on, and that another thread may change meanwhile."""
    import torch

    return (
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.get_float32_matmul_precision(),
        torch.get_num_threads(),
    )


def in_backward() -> bool:
    """Tells whether autograd is running a backward on this thread (its worker threads included)."""
    import torch

    return torch._C._current_graph_task_id() != -1


def current_device() -> str:
    """Returns the name of the current accelerator device of this thread, or ``"cpu"``; starts no accelerator."""
    import torch

    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return f"cuda:{torch.cuda.current_device()}"
    return "cpu"


def autograd_multithreading() -> bool:
    """Tells whether a backward pass of this thread may use autograd's worker threads."""
    import torch

    return bool(torch._C._is_multithreading_enabled())


def set_autograd_multithreading(enabled: bool) -> None:
    """Lets the backward passes of this thread use autograd's worker threads, or not.

    Dynamo calls ``torch.autograd.grad`` on fake tensors when it traces ``flex_attention`` (2.11, H200): with worker
    threads on, the trace waits for a worker, which may wait for the compile lock that the trace holds.
    """
    import torch

    if torch._C._is_multithreading_enabled() != enabled:
        with torch._C.DisableTorchFunction():  # a TorchFunctionMode of the user's would be called (2.7-2.15)
            torch._C._set_multithreading_enabled(enabled)


@contextmanager
def autograd_on_this_thread() -> Iterator[None]:
    """Keeps backward passes off autograd's worker threads."""
    before = autograd_multithreading()
    set_autograd_multithreading(False)
    try:
        yield
    finally:
        set_autograd_multithreading(before)


def compile_events() -> Any:
    """Returns the per-thread record of compile events that are in progress, as a dictionary of lists and sets."""
    utils = sys.modules[DYNAMO_UTILS]
    return vars(utils.get_chromium_event_logger().tls)


def context_of(wrapper: Any) -> Any:
    """Returns the context whose call made this wrapper of a compiled function, or None."""
    code = getattr(wrapper, "__code__", None)
    cells = {} if code is None else dict(zip(code.co_freevars, wrapper.__closure__ or (), strict=False))
    context = cells["self"].cell_contents if "self" in cells else None
    return context if isinstance(context, sys.modules[EVAL_FRAME]._TorchDynamoContext) else None


def context_of_compiled(compiled: Any) -> Any:
    """Returns the context of what ``torch.compile`` has returned: a function, a module or a class; else None."""
    if isinstance(compiled, sys.modules[EVAL_FRAME].OptimizedModule):
        return compiled.dynamo_ctx
    return context_of(vars(compiled).get("__call__") if isinstance(compiled, type) else compiled)


def wrapper_code(context_call: CodeType) -> CodeType:
    """Returns the code of the function that ``_TorchDynamoContext.__call__`` makes around a compiled one."""
    # torch 2.7 calls it _fn, later releases compile_wrapper. Drop the first name when min torch > 2.7.
    for constant in context_call.co_consts:
        if isinstance(constant, CodeType) and constant.co_name in ("compile_wrapper", "_fn"):
            return constant
    msg = "a compile_wrapper in _TorchDynamoContext.__call__"
    raise LookupError(msg)


#: By what the wrapper of a compiled function has its call looked up: it stands once more behind a retry.
SETTING_THE_FRAME = "_maybe_set_eval_frame(_callback_from_stance(callback))"


def backward_compiler(aot_wrappers: ModuleType) -> Any:
    """Returns the class that compiles a backward at its first pass, or None where a closure does it."""
    # torch 2.12+ has the class. Drop the other form when min torch > 2.11.
    return getattr(aot_wrappers, "_AutogradBackwardCompiler", None)


def context_class(eval_frame: ModuleType) -> Any:
    """Returns the class whose instances ``torch.compile`` makes, and whose call makes the wrapper of a function."""
    return eval_frame._TorchDynamoContext


def dynamic_of(wrapper: FrameType) -> bool | None:
    """Returns what ``dynamic=`` was for the compiled function whose wrapper is running in this frame, or None."""
    return getattr(wrapper.f_locals.get("self"), "_dynamic", None)


def rng_tracker(aot_wrappers: ModuleType) -> Any:
    """Returns the class that keeps random states for a recomputed forward (torch 2.13+), or None: a closure does it."""
    return getattr(aot_wrappers, "_AutogradRngStateTracker", None)


def captures(convert_frame: ModuleType) -> list[Any]:
    """Returns the functions by which others than a call have Dynamo trace, and make guards of it (2.9+)."""
    owner = getattr(convert_frame, "GraphCaptureOutput", None)
    found = [getattr(convert_frame, "fullgraph_capture", None), getattr(owner, "build_guards", None)]
    return [one for one in found if one is not None]

"""The private names of FX tracing, and who is tracing. As :mod:`.dynamo`, it only names and tells."""

from __future__ import annotations

import inspect
import sys
import threading
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

from .._common import thread_frames
from .dynamo import CONVERT_FRAME, compile_lock, loaded

SYMBOLIC_TRACE = "torch.fx._symbolic_trace"
TRACEBACK = "torch.fx.traceback"
PROXY_TENSOR = "torch.fx.experimental.proxy_tensor"
LAZY_GRAPH_MODULE = "torch.fx._lazy_graph_module"
GRAPH = "torch.fx.graph"
GRAPH_MODULE = "torch.fx.graph_module"
SYMBOLIC_CONVERT = "torch._dynamo.symbolic_convert"
BUILDER = "torch._dynamo.variables.builder"
HOP_UTILS = "torch._higher_order_ops.utils"
HOP_FLEX = "torch._higher_order_ops.flex_attention"

#: Process-wide variables that FX tracing sets and puts back, by the module that owns them: those that are in every
#: release, and those that are in some. A trace of one thread is seen by all others, and two traces that overlap leave
#: them wrong for good (pytorch#126024, #189884). torch 2.14+ made the tracing flag thread-local by itself
#: (pytorch#168999); 2.12+ the decomposition table. _should_preserve_node_meta and current_replay_node: 2.11+.
FX_GLOBALS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    SYMBOLIC_TRACE: (("CURRENT_PATCHER",), ("_is_fx_tracing_flag",)),
    PROXY_TENSOR: (("_CURRENT_MAKE_FX_TRACER",), ("CURRENT_DECOMPOSITION_TABLE",)),
    LAZY_GRAPH_MODULE: (("_use_lazy_graph_module_flag",), ()),
    TRACEBACK: (
        ("current_meta", "should_preserve_node_meta"),
        ("_should_preserve_node_meta", "current_replay_node"),
    ),
}

#: The tracing flag: a global variable up to torch 2.13, thread-local behind these two functions from 2.14 on.
FX_FLAG = "_is_fx_tracing_flag"
FX_FLAG_FUNCTIONS = ("_get_is_fx_tracing", "_set_is_fx_tracing")

#: The tracer of a ``make_fx`` that runs.
MAKE_FX_TRACER = "_CURRENT_MAKE_FX_TRACER"


def initial_tables() -> dict[str, Any]:
    """Returns new dictionaries for those of these variables that are dictionaries."""
    return {"current_meta": {}, "CURRENT_DECOMPOSITION_TABLE": {}}


def initial_values() -> dict[str, Any]:
    """Returns what each of the others is where nobody traces."""
    off = (
        "_is_fx_tracing_flag",
        "_use_lazy_graph_module_flag",
        "should_preserve_node_meta",
        "_should_preserve_node_meta",
    )
    none = ("CURRENT_PATCHER", MAKE_FX_TRACER, "current_replay_node")
    return {**dict.fromkeys(off, False), **dict.fromkeys(none)}


#: How a trace puts its patches in.
FX_PATCHER_METHODS = {
    "patch": ["self", "frame_dict", "name", "new_fn", "deduplicate"],
    "patch_method": ["self", "cls", "name", "new_fn", "deduplicate"],
}

#: The names under which FX keeps the methods of nn.Module as they are outside a trace.
FX_ORIGINALS = ("_orig_module_call", "_orig_module_getattr")


#: What puts FX's wrappers into the modules' dictionaries, for a trace of any kind.
FX_WRAPPING = "_patch_wrapped_functions"


def traces_with_tensors(tracer: object) -> bool:
    """Tells whether this is a tracer of ``make_fx``: what it runs never sees a Proxy, so FX's wrappers do nothing."""
    module = loaded(PROXY_TENSOR)
    return module is not None and isinstance(tracer, module.PythonKeyTracer)


def traces_here() -> bool:
    """Tells whether this thread is inside an FX trace or holds the compile lock."""
    if loaded(CONVERT_FRAME) and compile_lock()._is_owned():
        return True
    module = loaded(SYMBOLIC_TRACE)
    code = _trace_code(module)
    frame: FrameType | None = sys._getframe(1) if code is not None else None
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None


def another_thread_traces() -> bool:
    """Tells whether another thread is inside an FX trace, by its stack."""
    code, me = _trace_code(loaded(SYMBOLIC_TRACE)), threading.get_ident()
    frames = thread_frames.of_all_threads()
    frames.pop(me, None)  # a frame among its own variables would keep itself
    for top in frames.values():
        frame: FrameType | None = top
        while frame is not None:
            if frame.f_code is code:
                return True
            frame = frame.f_back
    return False


def _trace_code(module: ModuleType | None) -> CodeType | None:
    if module is None:
        return None
    trace = getattr(getattr(module, "Tracer", None), "trace", None)
    return getattr(getattr(trace, "__wrapped__", trace), "__code__", None)


def parts_of_a_trace(module: ModuleType) -> tuple[type, FunctionType, FunctionType]:
    """Returns the class that puts a trace's patches in, what searches a dictionary for functions to wrap, and what a
    trace enters around the function that it traces.

    Raises:
        LookupError: a part is missing, or has other parameters.
    """
    if not hasattr(module.Tracer, "trace"):
        msg = "Tracer.trace"
        raise LookupError(msg)
    if FX_FLAG not in vars(module) and any(name not in vars(module) for name in FX_FLAG_FUNCTIONS):
        msg = f"{module.__name__}.{FX_FLAG}, or a thread-local flag in its place"
        raise LookupError(msg)
    patcher = module._Patcher
    for method, parameters in FX_PATCHER_METHODS.items():
        if list(inspect.signature(vars(patcher)[method]).parameters) != parameters:
            msg = f"_Patcher.{method}({', '.join(parameters)})"
            raise LookupError(msg)
    return patcher, module._autowrap_check, module._new_patcher.__wrapped__


#: By type, how Dynamo takes a value that comes from nowhere in the traced code.
TYPE_HANDLERS = "_type_handlers"

#: The flag of a lazy GraphModule whose code is to be written anew.
IS_ASKED_ANEW = "_needs_recompile"


def lazy_graph_module(module: ModuleType) -> Any:
    """Returns the class of GraphModules that write their code at the first call."""
    return module._LazyGraphModule


def lazy_forward(owner: Any) -> Any:
    """Returns the method that is called before the code is written."""
    return vars(owner)["_lazy_forward"]


def compilation_env(hop_utils: ModuleType) -> FunctionType:
    """Returns the body of what an eager higher-order operator enters around its own compile."""
    function: FunctionType = hop_utils._set_compilation_env.__wrapped__
    return function

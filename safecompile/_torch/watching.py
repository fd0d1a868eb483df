"""The private names that the watcher looks at. As :mod:`.dynamo`, it only names and tells."""

from __future__ import annotations

import sys
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

from . import cache, dynamo, fx, settings

SYMBOLIC_TRACE = fx.SYMBOLIC_TRACE
CONVERT_FRAME = dynamo.CONVERT_FRAME
CONFIG_MODULE = settings.CONFIG_MODULE


def reader_of_the_flag(module: ModuleType) -> FunctionType:
    """Returns the function by which a compiled call asks whether FX traces."""
    # torch 2.7: is_fx_tracing. Drop it when min torch > 2.7.
    found: FunctionType = vars(module).get("is_fx_symbolic_tracing") or vars(module)["is_fx_tracing"]
    return found


def flag_is_on() -> bool:
    """Tells whether the flag of the process is set now."""
    return bool(vars(sys.modules[SYMBOLIC_TRACE]).get(fx.FX_FLAG, False))


def patcher(module: ModuleType) -> Any:
    """Returns the class that puts a trace's patches in when it is entered, and takes them out at its exit."""
    return module._Patcher


def is_trace(code: CodeType) -> bool:
    """Tells whether this is the code of FX's function that traces, and sets the flag."""
    module = dynamo.loaded(SYMBOLIC_TRACE)
    return module is not None and code.co_name == "trace" and code.co_filename == module.__file__


def tracer_of(frame: FrameType) -> Any:
    """Returns the tracer that traces further up this stack, or None."""
    one: FrameType | None = frame
    while one is not None and not is_trace(one.f_code):
        one = one.f_back
    return None if one is None else one.f_locals.get("self")


def is_symbolic(tracer: Any) -> bool:
    """Tells whether modules that it meets get proxies: not the tracers of ``make_fx``, and so of AOT compiles."""
    return tracer is not None and not fx.traces_with_tensors(tracer)


def compiled_function(reader: FrameType) -> str:
    """Returns the name of the compiled function that asks about the flag, from the frame of what it asks."""
    caller = reader.f_back
    fn = None if caller is None else caller.f_locals.get("fn")
    return str(getattr(fn, "__qualname__", "a compiled function"))


def callback_class(module: ModuleType) -> Any:
    """Returns the class whose call torch makes at each miss."""
    return module.CatchErrorsWrapper


def has_tensors(frame: Any) -> bool:
    """Tells whether Dynamo would find anything to compile in the arguments."""
    return bool(sys.modules[CONVERT_FRAME].has_tensor_in_frame(frame))


def is_at_its_limit(code: CodeType) -> bool:
    """Tells whether a function has as many compiled versions as the settings allow."""
    config: Any = sys.modules["torch._dynamo.config"]
    limit: int = min(config.recompile_limit, config.accumulated_recompile_limit)
    return len(cache.cache_entries(code)) >= limit

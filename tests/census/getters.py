"""What a thread is told by torch's functions in C, and by Python's own: found by their names, and tried."""

from __future__ import annotations

import gc
import hashlib
import math
import os
import random
import re
import signal
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from .looking import SIMPLE, same, told

#: Functions without arguments with such names are tried.
ASKS = re.compile(r"_?(?:get|is|are|has|current|len|peek|maybe)_|.*_(?:enabled|is_set|mode|level)$|_?is\w+$|_?have\w+")
#: These change something, start a device, wait, or count what is asked.
NEVER = re.compile(
    r".*(?:init|cuda|xpu|mps|mtia|hpu|hip|rocm|device_count|initialize|set_|clear|reset|pop|push|enter|exit|new_|next|"
    r"thread_id|memory|backtrace|cpp_stack|trac(?:e|ing_state)|profiler_(?:start|stop)|graph_executor|unsafe|"
    r"leak|complet|cuspy|time|random|seed|alloc|nvfuser|upgrade|version_map|_ipu|_xla|lazy|capability|autocast_(?:cpu|gpu)).*",
    re.IGNORECASE,
)
Getter = Callable[[], Any]


def _of_torch_in_c() -> Iterator[tuple[str, Getter]]:
    for name, module in sorted(sys.modules.items()):
        if not name.startswith("torch._C") or module is None:
            continue
        yield from _functions(name, module)


def _functions(name: str, module: Any) -> Iterator[tuple[str, Getter]]:
    for key, value in sorted(vars(module).items()):
        in_c = isinstance(value, types.BuiltinFunctionType) or type(value).__name__ == "instancemethod"
        if in_c and ASKS.match(key) and not NEVER.match(key):
            yield f"{name}.{key}()", value


def _of_torch_in_python() -> Iterator[tuple[str, Getter]]:
    """Yields what users call, and what takes an argument."""
    import torch
    from torch.autograd import forward_ad

    names = """
    is_anomaly_enabled is_anomaly_check_nan_enabled
    are_deterministic_algorithms_enabled get_deterministic_debug_mode get_default_device is_warn_always_enabled
    compiler.is_compiling compiler.is_dynamo_compiling compiler.is_exporting _dynamo.utils._get_error_on_graph_break
    _dynamo.external_utils.is_compiling jit.is_tracing _C._get_tracing_state backends.mha.get_fastpath_enabled
    fx._symbolic_trace.is_fx_symbolic_tracing
    utils._python_dispatch.is_in_torch_dispatch_mode
    utils._python_dispatch.is_in_any_mode_without_ignore_compile_internals"""
    for name in names.split():
        value: Any = torch
        for step in name.split("."):
            value = getattr(value, step, None)
        if callable(value) and not isinstance(value, type):
            yield f"torch.{name}()", value
    yield "torch.get_rng_state()", lambda: hashlib.md5(torch.get_rng_state().numpy().tobytes()).hexdigest()
    yield "torch._dynamo.eval_frame._stance.stance", lambda: torch._dynamo.eval_frame._stance.stance
    yield "torch.autograd.forward_ad._current_level", lambda: forward_ad._current_level
    for device in ("cpu", "cuda"):
        yield f"torch.is_autocast_enabled({device!r})", lambda device=device: torch.is_autocast_enabled(device)
        yield f"torch.get_autocast_dtype({device!r})", lambda device=device: torch.get_autocast_dtype(device)
    yield "torch.ones(1).dtype", lambda: torch.ones(1).dtype
    yield "torch._C._functorch.maybe_get_level(tensor)", lambda: torch._C._functorch.maybe_get_level(torch.ones(1))


def _of_python() -> Iterator[tuple[str, Getter]]:
    import numpy as np

    yield "math.pow(2, 3)", lambda: math.pow(2, 3)
    yield "max(names, key=len)", lambda: max(("a", "bb", "c"), key=len)
    yield "min(names, key=len)", lambda: min(("bb", "a", "cc"), key=len)
    yield "gc.isenabled()", gc.isenabled
    yield "gc.get_threshold()", gc.get_threshold
    yield "gc.get_debug()", gc.get_debug
    yield "sys.getrecursionlimit()", sys.getrecursionlimit
    yield "sys.getswitchinterval()", sys.getswitchinterval
    yield "random.getstate()", lambda: hash(random.getstate())
    yield "numpy.random.get_state()", lambda: hashlib.md5(np.random.get_state()[1].tobytes()).hexdigest()
    yield "numpy.geterr()", lambda: tuple(np.geterr().values())
    yield "os.getcwd()", os.getcwd
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGABRT):
        yield f"signal.getsignal({number.name})", lambda number=number: signal.getsignal(number)


def all_getters() -> list[tuple[str, Getter]]:
    """Returns the functions to ask: those that answer without an argument with a plain value, the same twice."""
    found = []
    for name, getter in [*_of_torch_in_c(), *_of_torch_in_python(), *_of_python()]:
        first, second = answer(getter), answer(getter)
        if _is_plain(first) and same(first, second):
            found.append((name, getter))
    return found


def answer(getter: Getter) -> Any:
    """Returns what a function says, or what it raises."""
    try:
        return getter()
    except TypeError:
        return ...
    except Exception as error:
        return f"raises {type(error).__name__}"


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    # Of the others (a dtype, a layout, an enumeration's member) there is one object each.
    return isinstance(value, SIMPLE) or type(value).__module__.startswith("torch") or callable(value)


class Answers:
    """What all of them say, to compare with later."""

    def __init__(self) -> None:
        self.getters = all_getters()

    def renew(self) -> None:
        """Takes what is said now for what is expected."""
        self.before = [answer(getter) for _, getter in self.getters]

    def differences(self) -> dict[str, tuple[str, str]]:
        """Returns each function that says something else now."""
        found = {}
        for (name, getter), before in zip(self.getters, self.before, strict=True):
            now = answer(getter)
            if not same(before, now) and not (type(before) is type(now) and repr(before) == repr(now)):
                found[name] = (told(before), told(now))
        return found

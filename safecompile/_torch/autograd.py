"""The private names of compiled autograd and of autograd's engine. As :mod:`.dynamo`, it only names and tells."""

from __future__ import annotations

import sys
import threading
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

from .._common import thread_frames
from .state import AUTOGRAD_GRAPH

COMPILED_AUTOGRAD_MODULE = "torch._dynamo.compiled_autograd"

#: The switch of compiled autograd as Python sees it; the second line: 2.8+.
COMPILED_AUTOGRAD = (
    "compiled_autograd_enabled",
    "compiled_autograd_enabled_force_eager",
    "in_compiled_autograd_region",
)
COMPILED_AUTOGRAD_OPTIONAL = ("active_disable_ctx", "depth")


def compiled_autograd_switch() -> Any:
    """Returns the module in C with the switch of the process."""
    owner: Any = sys.modules["torch"]
    return owner._C._dynamo.compiled_autograd


def own_backward_counts(module: Any) -> bool:
    """Tells whether the switch may not be touched inside a backward of the same thread either (up to torch 2.7).

    It raises then, and after that every backward of the process fails ("COMPILED_AUTOGRAD_POISON").
    """
    return not hasattr(module, "depth")


def a_backward_runs(*, own_counts: bool) -> bool:
    """Tells, by the stacks, whether another thread is in a backward pass, or this one is in a second.

    Args:
        own_counts: False leaves this thread out.
    """
    me = threading.get_ident()
    frames = thread_frames.of_all_threads()
    frames.pop(me, None)  # a frame among its own variables would keep itself
    for ident in [*frames, *([me] if own_counts else [])]:
        found = 0
        frame: FrameType | None = frames.get(ident) or sys._getframe()
        while frame is not None:
            # By name: the code is exchanged at the installation.
            code = frame.f_code
            found += code.co_name == "_engine_run_backward" and frame.f_globals["__name__"] == AUTOGRAD_GRAPH
            frame = frame.f_back
        if found > (ident == me):
            return True
    return False


def _variable() -> Any:
    return sys.modules["torch"].autograd.Variable


def execution_engine() -> Any:
    """Returns autograd's engine, by which Python runs every backward."""
    return _variable()._execution_engine


def set_execution_engine(engine: Any) -> None:
    """Puts another engine, of a class derived from torch's, in its place."""
    _variable()._execution_engine = engine


ANOMALY_MODULE = "torch.autograd.anomaly_mode"
AOT_AUTOGRAD = "torch._functorch.aot_autograd"

#: The names in ``torch`` of what tells whether anomaly mode is on, and whether it looks for NaNs; of what sets both.
ANOMALY_MODE = ("is_anomaly_enabled", "is_anomaly_check_nan_enabled", "set_anomaly_enabled")

#: Dynamo's rules by name: a list of dictionaries, from which it makes a table at the first compile (2.7-2.15).
_RULES = "torch_name_rule_map"

#: Where the traces of joint graphs turn it on: 2.9+, before.
_TRACES_OF_JOINT_GRAPHS = (
    "torch._functorch._aot_autograd.graph_capture_wrappers",
    "torch._functorch._aot_autograd.traced_function_transforms",
)


def torch() -> Any:
    """Returns torch."""
    return sys.modules["torch"]


def anomaly_mode() -> tuple[bool, bool]:
    """Returns torch's own switch, in C, and that of its NaN check."""
    c: Any = torch()._C
    return c.is_anomaly_enabled(), c.is_anomaly_check_nan_enabled()


def set_anomaly_mode(enabled: bool, check_nan: bool) -> None:
    """Sets both."""
    torch()._C.set_anomaly_enabled(enabled, check_nan)


def users_of_anomaly_mode() -> tuple[ModuleType, list[FunctionType]]:
    """Returns the module that traces joint graphs, and its functions that turn anomaly mode on.

    Raises:
        LookupError: there are none.
    """
    for name in _TRACES_OF_JOINT_GRAPHS:
        module = sys.modules.get(name)
        found = [
            one
            for one in vars(module or ModuleType(name)).values()
            if isinstance(one, FunctionType) and one.__module__ == name and _mentions(one.__code__, "detect_anomaly")
        ]
        if module is not None and found:
            return module, found
    msg = "a function that turns anomaly mode on in a trace"
    raise LookupError(msg)


def _mentions(code: CodeType, name: str) -> bool:
    inner = (one for one in code.co_consts if isinstance(one, CodeType))
    return name in code.co_names or any(_mentions(one, name) for one in inner)


def rules(trace_rules: ModuleType) -> list[dict[str, Any]]:
    """Returns Dynamo's rules by name."""
    found: list[dict[str, Any]] = getattr(trace_rules, _RULES)
    return found


def table_of_rules(trace_rules: ModuleType) -> dict[Any, Any]:
    """Returns the table that Dynamo has made of its rules, and that users add to; an empty one if it has not yet."""
    made = trace_rules.get_torch_obj_rule_map
    table: dict[Any, Any] = made() if made.cache_info().currsize else {}
    return table


def rule_of_functions_in_c(trace_rules: ModuleType) -> Any:
    """Returns the rule by which a function of torch's is part of a graph."""
    return trace_rules.TorchInGraphFunctionVariable

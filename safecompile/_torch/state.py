"""The private names of torch's process-wide switches outside FX. As :mod:`.dynamo`, it only names and tells."""

from __future__ import annotations

import operator
import sys
import threading
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

from . import threads

COMPILER = "torch.compiler"
EXPORT_UTILS = "torch._export.utils"
PYTHON_DISPATCH = "torch.utils._python_dispatch"
DYNAMO_UTILS = "torch._dynamo.utils"
EVAL_FRAME = "torch._dynamo.eval_frame"
DECORATORS = "torch._dynamo.decorators"
DISTRIBUTED = "torch.nn.parallel.distributed"
AUTOGRAD_GRAPH = "torch.autograd.graph"
CALLBACK = "torch._dynamo.callback"
OPS = "torch._ops"

#: The stack of the modes in which ``make_fx(pre_dispatch=True)``, and so each export, traces.
PRE_DISPATCH = "_mode_stack_state_for_pre_dispatch"

#: torch.compiler.is_compiling() and is_exporting(). Export sets both; since torch 2.13 Dynamo sets the first for the
#: whole of each compile, so that eager code in every thread is told that it compiles (pytorch#184614, #156868).
COMPILING = ("_is_compiling_flag", "_is_exporting_flag")

#: "Is a TorchDispatchMode active?", for the whole process. Up to torch 2.10 a first call beside another thread's
#: FlopCounterMode is skipped for good. The second: in every release; the third: 2.9+.
DISPATCH_MODES = ("_is_in_torch_dispatch_mode", "_is_in_non_infra_torch_dispatch_mode")
DISPATCH_MODES_OPTIONAL = ("_is_in_any_mode_without_ignore_compile_internals",)

#: torch._dynamo.error_on_graph_break(), as a context manager: for the whole process (2.9+).
ERROR_ON_GRAPH_BREAK = "_error_on_graph_break"

#: Whether torch's rules let Dynamo look into all files, as for what higher-order operators call (2.13+): beside such a
#: trace another thread's first call of a function of torch's own would be compiled.
FORCE_INLINE = "_force_inline_flag"

#: One MetricsContext for the process, up to torch 2.10: a compile beside another raises "Metric(s) ... have already
#: been set". Drop when min torch > 2.10.
METRICS_CONTEXT = "_METRICS_CONTEXT"

#: The DistributedDataParallel whose forward is running, as an attribute of the class: a compile of another thread
#: takes it for its own and splits its graph.
ACTIVE_DDP_MODULE = "_active_ddp_module"


def initial_values() -> dict[str, Any]:
    """Returns what each of the flags above is where nobody compiles, exports or is in a mode."""
    flags = (*COMPILING, *DISPATCH_MODES, *DISPATCH_MODES_OPTIONAL, ERROR_ON_GRAPH_BREAK, FORCE_INLINE)
    return {**dict.fromkeys(flags, False), ACTIVE_DDP_MODULE: None}


def run_backward(autograd_graph: ModuleType) -> FunctionType:
    """Returns the function by which Python runs each backward pass."""
    function: FunctionType = autograd_graph._engine_run_backward
    return function


def pre_dispatch_state(ops: ModuleType) -> FunctionType:
    """Returns the one function that reads that variable."""
    function: FunctionType = ops.mode_stack_state_for_pre_dispatch
    return function


#: How an operator writes the dictionary of its cached kernels.
DISPATCH_CACHE = "self._dispatch_cache"


def cached_dispatches(ops: ModuleType) -> tuple[FunctionType, FunctionType]:
    """Returns what makes an operator's cached kernel where there is none, and what gives all operators with one."""
    return ops.OpOverload._get_dispatch, ops.get_cached_ops


def new_pre_dispatch_state() -> Any:
    """Returns such a stack with no mode in it."""
    ops: Any = sys.modules[OPS]
    return ops._ModeStackStateForPreDispatch()


def new_metrics_context() -> Any:
    """Returns a metrics context as torch makes its only one."""
    utils: Any = sys.modules[DYNAMO_UTILS]
    return utils.MetricsContext(on_exit=utils.record_compilation_metrics)


def pending_callbacks(handler: Any, change: int) -> int:
    """Changes and returns how many compiles are between their callbacks."""
    name = f"_{type(handler).__name__}__pending_callbacks_counter"
    with getattr(handler, f"{name}_lock"):
        count: int = getattr(handler, name) + change
        setattr(handler, name, count)
    return count


def export_flag_setters(module: ModuleType) -> Iterator[FunctionType]:
    """Yields the functions of torch's export that set the flags of torch.compiler from outside."""
    manager = vars(module).get("_compiling_state_context")
    if manager is None:
        msg = f"{module.__name__}._compiling_state_context"
        raise LookupError(msg)
    yield manager.__wrapped__


def ddp_functions(module: ModuleType) -> Iterator[FunctionType]:
    """Yields the methods of DistributedDataParallel that set and read the active module."""
    for name in ("_get_active_ddp_module", "_inside_ddp_forward"):
        function: Any = vars(module.DistributedDataParallel)[name]
        function = getattr(function, "__func__", function)
        while ACTIVE_DDP_MODULE not in function.__code__.co_names:
            function = function.__wrapped__
        yield function


#: What Python runs after the expression of a ``with`` statement: 3.11-3.13, 3.10, 3.14.
WITH_OPCODES = frozenset({"BEFORE_WITH", "SETUP_WITH", "COPY"})

#: The name, in ``eval_frame`` and in ``decorators``, of the function by which a stance is set.
SET_STANCE = "_set_stance"

#: Returns that function.
setter_of_stances = operator.attrgetter(SET_STANCE)

#: The field of a stance by which compiled calls skip their guards.
SKIP_GUARDS = "skip_guard_eval_unsafe"


#: Returns the stance of the process, from torch's ``eval_frame``.
stance = operator.attrgetter("_stance")


def set_stance(module: Any, value: Any) -> None:
    """Replaces the stance of the process, without torch's checks."""
    module._stance = value


def skipping_guards_is_per_thread(module: Any) -> bool:
    """Tells whether the C flag for it is per thread (2.15+). Tried only while no other thread can be hurt by it."""
    if threads.others_are_alive():
        return False
    seen: list[bool] = []
    prior = module.set_skip_guard_eval_unsafe(True)
    try:
        thread = threading.Thread(target=lambda: seen.append(module.set_skip_guard_eval_unsafe(False)))
        thread.start()
        thread.join()
    finally:
        module.set_skip_guard_eval_unsafe(prior)
    return seen == [False]

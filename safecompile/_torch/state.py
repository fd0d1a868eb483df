"""The private names of torch's process-wide switches outside FX. As :mod:`.dynamo`, it only names and tells."""

from __future__ import annotations

import functools
import importlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
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

#: torch.compiler.is_compiling() and is_exporting(). Export sets both; since torch 2.13 Dynamo sets the first for the
#: whole of each compile, so that eager code in every thread is told that it compiles (pytorch#184614, #156868).
COMPILING = ("_is_compiling_flag", "_is_exporting_flag")

#: "Is a TorchDispatchMode active?", for the whole process. Up to torch 2.10 a first call beside another thread's
#: FlopCounterMode is skipped for good. The second: in every release; the third: 2.9+.
DISPATCH_MODES = ("_is_in_torch_dispatch_mode", "_is_in_non_infra_torch_dispatch_mode")
DISPATCH_MODES_OPTIONAL = ("_is_in_any_mode_without_ignore_compile_internals",)

#: torch._dynamo.error_on_graph_break(), as a context manager: for the whole process (2.9+).
ERROR_ON_GRAPH_BREAK = "_error_on_graph_break"

#: One MetricsContext for the process, up to torch 2.10: a compile beside another raises "Metric(s) ... have already
#: been set". Drop when min torch > 2.10.
METRICS_CONTEXT = "_METRICS_CONTEXT"

#: The DistributedDataParallel whose forward is running, as an attribute of the class: a compile of another thread
#: takes it for its own and splits its graph.
ACTIVE_DDP_MODULE = "_active_ddp_module"


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

#: The field of a stance by which compiled calls skip their guards.
SKIP_GUARDS = "skip_guard_eval_unsafe"


def stance(module: Any) -> Any:
    """Returns the stance of the process, from torch's ``eval_frame``."""
    return module._stance


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


CONFIG_MODULE = "torch.utils._config_module"

#: The config modules whose settings a compile reads.
CONFIGS = ("torch._dynamo.config", "torch._inductor.config", "torch._functorch.config")


def settings_are_per_context(module: Any) -> bool:
    """Tells whether settings are context variables (torch 2.12+)."""
    return hasattr(module, "ContextVar")


def config_module() -> Any:
    """Returns the module of torch that settings are made with; a small one, imported if it is not yet."""
    return importlib.import_module(CONFIG_MODULE)


def entry_class() -> Any:
    """Returns the class of torch's records of settings."""
    return config_module()._ConfigEntry


def has_entries() -> bool:
    """Tells whether torch's settings are imported."""
    return hasattr(sys.modules.get(CONFIG_MODULE), "_ConfigEntry")


def entry_of(config: Any, name: str) -> Any:
    """Returns torch's record of a setting, of another one if it is an alias."""
    entry = settings_of(config)[name]
    while entry.alias is not None:
        module, _, name = entry.alias.rpartition(".")
        entry = settings_of(sys.modules[module])[name]
    return entry


def check_entries() -> None:
    """Raises LookupError unless a setting's override is a plain attribute of its record, with a class default."""
    if vars(entry_class()).get("user_override") is not config_module()._UNSET_SENTINEL:
        msg = f"{CONFIG_MODULE}._ConfigEntry.user_override"
        raise LookupError(msg)


def configs() -> list[Any]:
    """Returns those config modules that are imported."""
    return [sys.modules[name] for name in CONFIGS if name in sys.modules]


def settings_of(config: Any) -> dict[str, Any]:
    """Returns torch's records of the settings of a config module, by name."""
    found: dict[str, Any] = vars(config).get("_config", {})
    return found


def own_values(config: Any) -> dict[str, Any]:
    """Returns the settings that have a value of this context's own."""
    unset = sys.modules[CONFIG_MODULE]._UNSET_SENTINEL
    values = {name: entry.user_override.get() for name, entry in settings_of(config).items()}
    return {name: value for name, value in values.items() if value is not unset}


def has_no_value(config: Any, name: str) -> bool:
    """Tells whether a setting has no value of this context's own: none, or torch's copy of a mutable default."""
    entry = settings_of(config).get(name)
    if entry is None or entry.alias is not None:
        return False
    module: Any = sys.modules[CONFIG_MODULE]
    value = entry.user_override.get()
    return value is module._UNSET_SENTINEL or (isinstance(value, (list, set, dict)) and value == entry.default)


def set_settings(config: Any, **values: Any) -> Callable[[], None]:
    """Sets settings in this context; returns what puts back what was there."""
    revert: Callable[[], None] = config._make_closure_patcher(**values)()
    return revert


def remove_value(config: Any, name: str) -> None:
    """Takes this context's own value of a setting away."""
    set_settings(config, **{name: sys.modules[CONFIG_MODULE]._UNSET_SENTINEL})


@functools.cache
def torch_folder() -> str:
    """Returns the folder of torch's own files, with a separator at its end."""
    return str(Path(str(sys.modules["torch"].__file__)).parent) + os.sep

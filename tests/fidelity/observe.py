"""What is compared besides the program's own words: warnings, log lines, compiles, seeds, the state of the process."""

from __future__ import annotations

import gc
import hashlib
import logging
import os
import pickle
import random
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = str(Path(__file__).resolve().parents[2])
#: The library's own modules, and the one that it depends on.
OWN = re.compile(r"(safecompile|wrapt)(\.|$)")
CONFIGS = ("torch._dynamo.config", "torch._inductor.config", "torch._functorch.config", "torch.fx.experimental._config")
#: What a setting of torch is called, and how it is read. Read where torch is imported.
TORCH: dict[str, str] = {
    "default dtype": "torch.get_default_dtype()",
    "default device": "torch.get_default_device()",
    "deterministic": "torch.get_deterministic_debug_mode()",
    "deterministic fill": "torch.utils.deterministic.fill_uninitialized_memory",
    "matmul precision": "torch.get_float32_matmul_precision()",
    "matmul tf32": "torch.backends.cuda.matmul.allow_tf32",
    "cudnn": "(torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic)",
    "mkldnn": "torch.backends.mkldnn.enabled",
    "grad mode": "torch.is_grad_enabled()",
    "inference mode": "torch.is_inference_mode_enabled()",
    "threads of torch": "torch.get_num_threads()",
    "anomaly mode": "(torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled())",
    "autocast": "(torch.is_autocast_enabled('cpu'), torch.get_autocast_dtype('cpu'))",
    "autograd threads": "torch._C._is_multithreading_enabled()",
    "view replay": "torch._C._is_view_replay_enabled()",
    "torch function": "(torch._C._is_torch_function_enabled(), torch._C._len_torch_function_stack())",
    "dispatch modes": "torch._C._len_torch_dispatch_stack()",
    "saved tensors hooks": "torch._C._autograd._saved_tensors_hooks_is_enabled()",
    "functorch": "torch._C._functorch.peek_interpreter_stack()",
    "forward AD": "torch.autograd.forward_ad._current_level",
    "is compiling": "(torch.compiler.is_compiling(), torch.compiler.is_dynamo_compiling())",
    "is exporting": "getattr(torch.compiler, 'is_exporting', bool)()",
    "tracing with jit": "torch.jit.is_tracing()",
    "conversion": "torch.__future__.get_overwrite_module_params_on_conversion()",
    "print options": "vars(torch._tensor_str.PRINT_OPTS)",
    "module call": "(torch.nn.Module.__call__.__qualname__, torch.nn.Module.__getattr__.__qualname__)",
    "number of module hooks": "len(torch.nn.modules.module._global_forward_hooks)",
}
LATER: dict[str, tuple[str, str]] = {
    "fx tracing": (
        "torch.fx._symbolic_trace",
        "getattr(module, 'is_fx_tracing_symbolic_tracing', module.is_fx_tracing)()",
    ),
    "current meta": ("torch.fx.traceback", "module.get_current_meta()"),
    "stance": ("torch._dynamo.eval_frame", "vars(module._stance)"),
    "graph break": ("torch._dynamo.utils", "getattr(module, '_get_error_on_graph_break', bool)()"),
}


class Recorder:
    """Keeps warnings and log lines from its making on."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.log: list[str] = []
        warnings.showwarning = self._warned  # not catch_warnings, which would change the filters
        handler = logging.Handler()
        handler.emit = self._logged  # type: ignore[method-assign]
        for name in (None, "torch", "safecompile"):  # torch's and the library's own do not reach the root
            logging.getLogger(name).addHandler(handler)
        logging.getLogger("safecompile").propagate = False

    def _warned(self, message: Any, category: type, filename: str, lineno: int, *_: Any) -> None:
        self.warnings.append(f"{category.__name__} at {Path(filename).name}:{lineno}: {message}")

    def _logged(self, record: logging.LogRecord) -> None:
        self.log.append(f"{record.name} {record.levelname}: {record.getMessage()}")


_SEEDED: set[str] = {"random"}


def seed() -> None:
    """Begins every sequence of random numbers anew."""
    _SEEDED.update({"torch", "numpy"} & set(sys.modules))
    random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)


def seeds() -> dict[str, str]:
    """Returns a digest of the state of each generator that :func:`seed` has begun."""
    states: dict[str, Any] = {"random": random.getstate()}
    if "torch" in _SEEDED:
        states["torch"] = bytes(sys.modules["torch"].get_rng_state().untyped_storage())
    if "numpy" in _SEEDED:
        states["numpy"] = [str(part) for part in sys.modules["numpy"].random.get_state()]
    return {name: hashlib.sha256(pickle.dumps(state)).hexdigest()[:12] for name, state in states.items()}


def counters() -> dict[str, dict[str, int]]:
    """Returns Dynamo's own counts: graphs, frames, breaks."""
    if (utils := sys.modules.get("torch._dynamo.utils")) is None:
        return {}
    return {
        str(group): {str(key).strip().partition("\n")[0]: count for key, count in counts.items()}
        for group, counts in utils.counters.items()
        if counts
    }


def _shown(value: Any) -> str:
    """Returns the repr; of a set, in an order that does not tell how it came into being."""
    return repr(sorted(map(repr, value)) if isinstance(value, set | frozenset) else value)


def state() -> dict[str, Any]:
    """Returns what is set for the whole process, or for this thread."""
    found = {name: repr(read()) for name, read in _PYTHON.items()}
    found["modules"] = sorted(name for name in sys.modules if not OWN.match(name))
    if (torch := sys.modules.get("torch")) is not None and hasattr(torch, "compile"):
        found |= {name: _read(expression, torch=torch) for name, expression in TORCH.items()}
    for name, (module, expression) in LATER.items():
        if module in sys.modules:
            found[name] = _read(expression, module=sys.modules[module])
    for config in CONFIGS:
        if config in sys.modules:
            copied = sys.modules[config].get_config_copy()
            found |= {f"{config}.{name}": _shown(value) for name, value in copied.items()}
    return found


def _read(expression: str, **variables: Any) -> str:
    try:
        return repr(eval(expression, variables))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _signals() -> list[str]:
    handlers = {number.name: signal.getsignal(number) for number in signal.Signals}
    return [f"{name} {handler}" for name, handler in handlers.items() if handler is not signal.SIG_DFL]


_PYTHON: dict[str, Callable[[], Any]] = {
    "filters of warnings": lambda: warnings.filters,
    "recursion limit": sys.getrecursionlimit,
    "switch interval": sys.getswitchinterval,
    "trace and profile": lambda: (sys.gettrace(), sys.getprofile()),
    "exception hooks": lambda: (sys.excepthook, threading.excepthook, sys.unraisablehook),
    "streams": lambda: (sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__),
    "garbage collector": lambda: (gc.isenabled(), gc.get_threshold(), len(gc.callbacks)),
    "signal handlers": _signals,
    "environment": lambda: sorted(os.environ.items()),
    "folder": os.getcwd,
    "root logger": lambda: logging.getLogger().level,
    "names of threads": lambda: sorted(
        {re.sub(r"\d+", "N", t.name) for t in threading.enumerate()} - {"idle", "polling"}
    ),
    "local trace functions": lambda: (threading._trace_hook, threading._profile_hook),  # type: ignore[attr-defined]
}

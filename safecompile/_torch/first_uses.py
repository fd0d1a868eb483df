"""Which of torch's functions import a part of Dynamo, Inductor or export when they are called, and not Dynamo first.

Most of torch writes ``import torch._dynamo``, and then CPython's lock of that module lets one thread import while the
others wait and hold nothing. These functions begin somewhere else in the same circle of imports (``torch._inductor``,
``torch.export._trace``, a submodule of Dynamo's, whose lock is taken before its parent's). Two threads that go round
the circle from different ends meet, and one gets a half imported module: ``ImportError`` or ``AttributeError``
(seen on 2.9.1 and 2.13.0).
"""

from __future__ import annotations

import importlib
import inspect
from types import FunctionType, ModuleType

from . import dynamo

TORCH, COMPILER, EXPORT = "torch", "torch.compiler", "torch.export"
HOP_UTILS, HOP_COND = "torch._higher_order_ops.utils", "torch._higher_order_ops.cond"
FLEX_ATTENTION, PROXY_TENSOR = "torch.nn.attention.flex_attention", "torch.fx.experimental.proxy_tensor"

#: What a name that is imported begins with.
_IN_THE_CIRCLE = ("torch._dynamo.", "torch._inductor", "torch.export.", "_trace", "_draft_export")

#: Module -> function -> the calls that import, as an expression of its parameters. Each imports Dynamo at once in every
#: release in which it imports from the circle by itself.
_FUNCTIONS = {
    # As a decorator (no model) it imports nothing yet, up to 2.11; later on for the default backend only.
    TORCH: {"compile": "model is not None or backend is None", "use_deterministic_algorithms": "True"},
    COMPILER: dict.fromkeys(
        (
            "set_default_backend",
            "get_default_backend",
            "wrap_numpy",
            "set_enable_guard_collectives",
            "cudagraph_mark_step_begin",
            "load_compiled_function",
        ),
        "True",
    ),
    EXPORT: dict.fromkeys(("export", "export_for_training", "draft_export"), "True"),
    HOP_UTILS: dict.fromkeys(("setup_compilation_env", "_maybe_compile_and_run_fn"), "True"),
    HOP_COND: {"cond": "True"},
    FLEX_ATTENTION: {"create_mask": "True"},
    PROXY_TENSOR: {"make_fx": "True"},
}

MODULES = tuple(_FUNCTIONS)


def functions_of(module: ModuleType) -> list[tuple[FunctionType, str]]:
    """Returns the functions of ``module`` that import from the circle in this release, with the calls that do."""
    found = []
    for name, when in _FUNCTIONS[module.__name__].items():
        function = inspect.unwrap(vars(module).get(name, None) or len)
        if isinstance(function, FunctionType) and _imports_from_the_circle(function):
            found.append((function, when))
    return found


def _imports_from_the_circle(function: FunctionType) -> bool:
    return any(name.startswith(_IN_THE_CIRCLE) for name in function.__code__.co_names)


def import_dynamo() -> bool:
    """Imports Dynamo, or waits for the thread that does, with no other lock; tells whether it is there then."""
    try:
        importlib.import_module(dynamo.DYNAMO)
    except Exception:  # noqa: BLE001 - the function itself raises what it raises in plain torch
        return False
    return dynamo.loaded(dynamo.DYNAMO) is not None

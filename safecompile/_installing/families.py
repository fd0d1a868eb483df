"""The families of patches: what is good only together, and which module of torch each part waits for."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

from .._patching.patches import Patch
from .._torch import dynamo
from .._torch import fx as torch_fx

Build = Callable[[ModuleType], "list[Patch]"]


class Part(NamedTuple):
    """What is patched when one module of torch is imported."""

    module: str
    build: Build


class Family:
    """Patches that are good only together. ``required``: without them nothing is installed."""

    def __init__(self, name: str, parts: list[Part], *, required: bool = False) -> None:
        self.name, self.parts, self.required = name, parts, required
        self.applied: list[tuple[Part, list[Patch]]] = []
        self.problem: str | None = None

    def has(self, part: Part) -> bool:
        """Tells whether ``part`` has been applied."""
        return any(one is part for one, _ in self.applied)

    def state(self) -> str:
        """Returns ``"on"``, ``"waiting"`` (for an import of torch's) or ``"off: <why>"``."""
        if self.problem is not None:
            return f"off: {self.problem}"
        return "on" if len(self.applied) == len(self.parts) else "waiting"


def all_families() -> list[Family]:
    """Returns the families anew, nothing of them applied."""
    from .._engine import backward, cache_entries, callback, resets, retry
    from .._isolation import (
        compiled_autograd,
        cuda_graphs,
        data_parallel,
        flex,
        fx,
        graph_module,
        random_state,
        scoped_settings,
        settings,
        shared_settings,
        stances,
        switches,
        triton_keys,
    )
    from .._torch import autograd, shared_state, state
    from .._torch import cuda_graphs as graphs

    return [
        Family(
            "miss",
            [
                Part(dynamo.EVAL_FRAME, retry.patches_of_eval_frame),
                Part(dynamo.CONVERT_FRAME, callback.patches_of_convert_frame),
                Part(dynamo.CONVERT_FRAME, cache_entries.patches_of_convert_frame),
                Part(dynamo.GUARDS, cache_entries.patches_of_guards),
                Part(dynamo.TRACE_RULES, callback.patches_of_trace_rules),
            ],
            required=True,
        ),
        Family(
            "fx",
            [
                Part(torch_fx.SYMBOLIC_TRACE, fx.patches_of_symbolic_trace),
                Part(torch_fx.TRACEBACK, fx.patches_of_globals),
                Part(torch_fx.PROXY_TENSOR, fx.patches_of_globals),
                Part(torch_fx.LAZY_GRAPH_MODULE, fx.patches_of_globals),
                Part(torch_fx.HOP_UTILS, flex.patches_of_hop_utils),
                Part(torch_fx.SYMBOLIC_CONVERT, fx.patches_of_symbolic_convert),
                Part(torch_fx.BUILDER, fx.patches_of_builder),
            ],
            required=True,
        ),
        Family(
            "graph modules",
            [
                Part(torch_fx.GRAPH, graph_module.patches_of_graph),
                Part(torch_fx.GRAPH_MODULE, graph_module.patches_of_graph_module),
                Part(torch_fx.LAZY_GRAPH_MODULE, graph_module.patches_of_lazy_graph_module),
            ],
        ),
        Family("flex", [Part(torch_fx.HOP_FLEX, flex.patches_of_hop_flex)]),
        Family("backward", [Part(dynamo.AOT_WRAPPERS, backward.patches_of_runtime_wrappers)]),
        Family(
            "compiling",
            [
                Part(state.COMPILER, switches.patches_of_compiler),
                Part(state.EXPORT_UTILS, switches.patches_of_export_utils),
            ],
        ),
        Family("dispatch modes", [Part(state.PYTHON_DISPATCH, switches.patches_of_dispatch_modes)]),
        Family("dynamo", [Part(state.DYNAMO_UTILS, switches.patches_of_dynamo_utils)]),
        Family(
            "global state",
            [
                Part(dynamo.CONVERT_FRAME, random_state.patches_of_convert_frame),
                Part(state.DYNAMO_UTILS, random_state.patches_of_dynamo_utils),
                Part(shared_state.USER_DEFINED, random_state.patches_of_user_defined),
                Part(dynamo.CONVERT_FRAME, shared_settings.patches_of_setters),
            ],
        ),
        Family("draws", [Part(module, random_state.patches_of_drawing) for module in shared_state.DRAWING]),
        Family("autograd context", [Part(state.AUTOGRAD_GRAPH, switches.patches_of_autograd_graph)]),
        Family(
            "compiled autograd",
            [Part(autograd.COMPILED_AUTOGRAD_MODULE, compiled_autograd.patches_of_compiled_autograd)],
        ),
        Family("callbacks", [Part(state.CALLBACK, switches.patches_of_callback)]),
        Family("ddp", [Part(state.DISTRIBUTED, switches.patches_of_ddp)]),
        Family(
            "data parallel",
            [
                Part(dynamo.EVAL_FRAME, data_parallel.patches_of_eval_frame),
                Part(dynamo.MODULE, data_parallel.patches_of_module),
            ],
        ),
        Family(
            "cuda graphs",
            [
                Part(graphs.CUDAGRAPH_TREES, cuda_graphs.patches_of_cudagraph_trees),
                Part(graphs.OUTPUT_CODE, cuda_graphs.patches_of_backwards),
                Part(graphs.CUDAGRAPHS_BACKEND, cuda_graphs.patches_of_backwards),
            ],
        ),
        Family("triton keys", [Part(graphs.COMPILE_TASKS, triton_keys.patches_of_compile_tasks)]),
        Family(
            "stance",
            [
                Part(state.EVAL_FRAME, stances.patches_of_eval_frame),
                Part(state.DECORATORS, stances.patches_of_decorators),
            ],
        ),
        Family(
            "reset",
            [
                Part(dynamo.DYNAMO, resets.patches_of_reset),
                Part(dynamo.EVAL_FRAME, resets.patches_of_reset),
                Part(state.DECORATORS, resets.patches_of_reset),
                Part(state.DYNAMO_UTILS, resets.patches_of_dynamo_utils),
            ],
        ),
        Family(
            "settings",
            [
                Part(state.CONFIG_MODULE, settings.patches_of_config_module),
                Part(state.EVAL_FRAME, settings.patches_of_eval_frame),
                Part(state.DYNAMO_UTILS, scoped_settings.patches_of_dynamo_utils),
            ],
        ),
    ]

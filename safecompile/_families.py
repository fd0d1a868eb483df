"""The families of patches: what is good only together, and which module of torch each part waits for."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

from . import _torch, _torch_fx
from ._patches import Patch

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
    from . import (
        _callback,
        _compiled_autograd,
        _cuda_graphs,
        _data_parallel,
        _entries,
        _flex,
        _fx,
        _global_state,
        _graph_module,
        _lazy_backward,
        _reset,
        _retry,
        _scoped_settings,
        _settings,
        _stance,
        _state,
        _triton_keys,
    )
    from . import _torch_autograd as autograd
    from . import _torch_cuda_graphs as graphs
    from . import _torch_state as state

    return [
        Family(
            "miss",
            [
                Part(_torch.EVAL_FRAME, _retry.patches_of_eval_frame),
                Part(_torch.CONVERT_FRAME, _callback.patches_of_convert_frame),
                Part(_torch.CONVERT_FRAME, _entries.patches_of_convert_frame),
                Part(_torch.GUARDS, _entries.patches_of_guards),
                Part(_torch.TRACE_RULES, _callback.patches_of_trace_rules),
            ],
            required=True,
        ),
        Family(
            "fx",
            [
                Part(_torch_fx.SYMBOLIC_TRACE, _fx.patches_of_symbolic_trace),
                Part(_torch_fx.TRACEBACK, _fx.patches_of_globals),
                Part(_torch_fx.PROXY_TENSOR, _fx.patches_of_globals),
                Part(_torch_fx.LAZY_GRAPH_MODULE, _fx.patches_of_globals),
                Part(_torch_fx.HOP_UTILS, _flex.patches_of_hop_utils),
                Part(_torch_fx.SYMBOLIC_CONVERT, _fx.patches_of_symbolic_convert),
                Part(_torch_fx.BUILDER, _fx.patches_of_builder),
            ],
            required=True,
        ),
        Family(
            "graph modules",
            [
                Part(_torch_fx.GRAPH, _graph_module.patches_of_graph),
                Part(_torch_fx.GRAPH_MODULE, _graph_module.patches_of_graph_module),
                Part(_torch_fx.LAZY_GRAPH_MODULE, _graph_module.patches_of_lazy_graph_module),
            ],
        ),
        Family("flex", [Part(_torch_fx.HOP_FLEX, _flex.patches_of_hop_flex)]),
        Family("backward", [Part(_torch.AOT_WRAPPERS, _lazy_backward.patches_of_runtime_wrappers)]),
        Family(
            "compiling",
            [
                Part(state.COMPILER, _state.patches_of_compiler),
                Part(state.EXPORT_UTILS, _state.patches_of_export_utils),
            ],
        ),
        Family("dispatch modes", [Part(state.PYTHON_DISPATCH, _state.patches_of_dispatch_modes)]),
        Family("dynamo", [Part(state.DYNAMO_UTILS, _state.patches_of_dynamo_utils)]),
        Family(
            "global state",
            [
                Part(_torch.CONVERT_FRAME, _global_state.patches_of_convert_frame),
                Part(state.DYNAMO_UTILS, _global_state.patches_of_dynamo_utils),
            ],
        ),
        Family("autograd context", [Part(state.AUTOGRAD_GRAPH, _state.patches_of_autograd_graph)]),
        Family(
            "compiled autograd",
            [Part(autograd.COMPILED_AUTOGRAD_MODULE, _compiled_autograd.patches_of_compiled_autograd)],
        ),
        Family("callbacks", [Part(state.CALLBACK, _state.patches_of_callback)]),
        Family("ddp", [Part(state.DISTRIBUTED, _state.patches_of_ddp)]),
        Family(
            "data parallel",
            [
                Part(_torch.EVAL_FRAME, _data_parallel.patches_of_eval_frame),
                Part(_torch.MODULE, _data_parallel.patches_of_module),
            ],
        ),
        Family(
            "cuda graphs",
            [
                Part(graphs.CUDAGRAPH_TREES, _cuda_graphs.patches_of_cudagraph_trees),
                Part(graphs.OUTPUT_CODE, _cuda_graphs.patches_of_backwards),
                Part(graphs.CUDAGRAPHS_BACKEND, _cuda_graphs.patches_of_backwards),
            ],
        ),
        Family("triton keys", [Part(graphs.COMPILE_TASKS, _triton_keys.patches_of_compile_tasks)]),
        Family(
            "stance",
            [
                Part(state.EVAL_FRAME, _stance.patches_of_eval_frame),
                Part(state.DECORATORS, _stance.patches_of_decorators),
            ],
        ),
        Family(
            "reset",
            [
                Part(_torch.DYNAMO, _reset.patches_of_reset),
                Part(_torch.EVAL_FRAME, _reset.patches_of_reset),
                Part(state.DECORATORS, _reset.patches_of_reset),
                Part(state.DYNAMO_UTILS, _reset.patches_of_dynamo_utils),
            ],
        ),
        Family(
            "settings",
            [
                Part(state.CONFIG_MODULE, _settings.patches_of_config_module),
                Part(state.EVAL_FRAME, _settings.patches_of_eval_frame),
                Part(state.DYNAMO_UTILS, _scoped_settings.patches_of_dynamo_utils),
            ],
        ),
    ]

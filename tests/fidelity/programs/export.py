"""Export and symbolic traces, and the module afterwards."""

from __future__ import annotations

import io
import math

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from tests.fidelity.table import COLUMNS, STRICT_WARNINGS, program

from ._common import Counting, attempt, ones, told


class Net(torch.nn.Module):
    """With a branch on an attribute, and a call of math's."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)
        torch.nn.init.ones_(self.layer.weight)
        torch.nn.init.zeros_(self.layer.bias)

    def forward(self, x):
        return self.layer(x) * math.sqrt(4) + (1 if self.training else 2)


def _exported(**kwargs):
    return torch.export.export(Net().eval(), (ones(3, 2),), **kwargs)


@program({"strict": True, "not strict": False}, quick=("not strict",))
def exported(strict):
    """The graph, a call of it, a compile of it."""
    program = _exported(strict=strict)
    backend = Counting()
    seen = [program.graph_module.code, told(program.module()(ones(3, 2)))]
    return seen, told(torch.compile(program.module(), backend=backend)(ones(3, 2))), backend.calls


@program({"strict": True, "not strict": False})
def exported_with_dynamic_shapes(strict):
    """A dimension that is dynamic."""
    program = _exported(strict=strict, dynamic_shapes={"x": {0: torch.export.Dim("n", min=2, max=9)}})
    return told(program.module()(ones(5, 2))), [str(k) for k in program.range_constraints.values()]


@program()
def exported_saved_and_loaded():
    """Saved, loaded, called."""
    stream = io.BytesIO()
    torch.export.save(_exported(), stream)
    library = b"safecompile" in stream.getvalue()
    stream.seek(0)
    return told(torch.export.load(stream).module()(ones(3, 2))), library


@program({"decompositions": 0, "unflatten": 1, "retrace": 2})
def exported_and_then(kind):
    """What comes after an export."""
    program = _exported()
    if kind == 0:
        return program.run_decompositions().graph_module.code
    if kind == 1:
        return told(torch.export.unflatten(program)(ones(3, 2)))
    return torch.export.export(program.module(), (ones(3, 2),)).graph_module.code


@program({"strict": True, "not strict": False})
def the_module_afterwards(strict):
    """The module itself is as before, and compiles."""
    module, backend = Net(), Counting()
    before = told(module(ones(3, 2)))
    torch.export.export(module, (ones(3, 2),), strict=strict)
    return before == told(module(ones(3, 2))), told(torch.compile(module, backend=backend)(ones(3, 2))), backend.calls


@program({"strict": True, "not strict": False})
def an_export_that_fails(strict):
    """The error is torch's own, and nothing stays behind."""

    class OnData(torch.nn.Module):
        def forward(self, x):
            return x + 1 if x.sum() > 0 else x - 1

    raised = attempt(torch.export.export, OnData(), (ones(),), strict=strict)
    return {**raised, "text": raised["text"][:200], "cause": None, "context": None}, attempt(
        _exported().module(), ones(3, 2)
    )


@program()
def exported_by_dynamo():
    """torch._dynamo.export."""
    found = torch._dynamo.export(Net())(ones(3, 2))
    return found.graph_module.code, [str(g.name) for g in found.guards][:5]


@program()
def exported_while_compiling():
    """is_compiling and is_exporting as the exported code sees them."""
    seen = []

    class Sees(torch.nn.Module):
        def forward(self, x):
            seen.append((torch.compiler.is_compiling(), torch.compiler.is_exporting()))
            return x + 1

    torch.export.export(Sees(), (ones(),), strict=False)
    return seen, torch.compiler.is_compiling(), torch.compiler.is_exporting()


TRACES = {
    "module": lambda: torch.fx.symbolic_trace(Net()),
    "function": lambda: torch.fx.symbolic_trace(lambda x: math.floor(x) + 1 if x is None else x.sin() + 1),
    "math": lambda: torch.fx.symbolic_trace(lambda x: x + math.sqrt(9)),
    "concrete": lambda: torch.fx.symbolic_trace(lambda x, flag: x + 1 if flag else x, concrete_args={"flag": True}),
    "make_fx": lambda: make_fx(lambda x: x.sin() + 1)(ones(2)),
    "symbolic": lambda: make_fx(lambda x: x.sin() + x.shape[0], tracing_mode="symbolic")(ones(2)),
    "functionalized": lambda: make_fx(torch.func.functionalize(lambda x: x.add_(1)))(ones(2)),
    "on a proxy": lambda: torch.fx.symbolic_trace(lambda x: x + 1 if x.sum() > 0 else x),
    "loop": lambda: torch.fx.symbolic_trace(lambda x: [y for y in x]),
    "jit": lambda: torch.jit.trace(Net().eval(), ones(3, 2)),
}


@program(TRACES)
def traced(trace):
    """The code of a trace, or its error; afterwards a compile, and the functions it replaces."""
    result = attempt(lambda: trace().code)
    module = Net()
    return (
        result,
        told(torch.compile(module, backend="eager")(ones(3, 2))),
        math.sqrt.__name__,
        type(math.sqrt).__name__,
    )


@program()
def a_tracer_of_the_users():
    """A subclass of Tracer, and one that overrides call_module."""
    said = []

    class Own(torch.fx.Tracer):
        def is_leaf_module(self, m, name):
            said.append(name)
            return super().is_leaf_module(m, name)

        def call_module(self, m, forward, args, kwargs):
            said.append("call")
            return super().call_module(m, forward, args, kwargs)

    graph = Own().trace(torch.nn.Sequential(Net(), torch.nn.ReLU()))
    return [str(node) for node in graph.nodes], said


@program()
def a_trace_inside_a_trace():
    """symbolic_trace called by code that is being traced."""
    return attempt(lambda: torch.fx.symbolic_trace(lambda x: (torch.fx.symbolic_trace(Net()), x + 1)[1]).code)


@program()
def a_graph_changed_and_recompiled():
    """A GraphModule whose graph is changed by hand."""
    traced = torch.fx.symbolic_trace(Net())
    for node in traced.graph.nodes:
        if node.op == "call_function" and "add" in str(node.target):
            node.args = (node.args[0], 10)
    traced.recompile()
    return told(traced(ones(3, 2))), told(torch.compile(traced, backend="eager")(ones(3, 2)))


# Torch leaves the log of a draft open, and Python warns of it when it happens to be freed.
@program(needs="torch.export.draft_export", columns=tuple(name for name in COLUMNS if name != STRICT_WARNINGS))
def exported_as_a_draft():
    """draft_export."""
    return attempt(lambda: torch.export.draft_export(Net(), (ones(3, 2),)).graph_module.code)


@program()
def metadata_of_nodes():
    """What annotate() leaves on nodes."""
    annotate = getattr(torch.fx.traceback, "annotate", None)
    if annotate is None:
        return "none"

    def f(x):
        with annotate({"a": 1}):
            y = x + 1
        return y * 2

    with torch.fx.traceback.preserve_node_meta():
        graph = make_fx(f)(ones()).graph
    return [(str(node), str(node.meta.get("custom"))) for node in graph.nodes]

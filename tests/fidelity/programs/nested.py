"""Compiles inside compiles, traces and callbacks."""

from __future__ import annotations

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from tests.fidelity.table import program

from ._common import Counting, attempt, in_thread, ones, plus, told


@program()
def compiled_inside_compiled():
    """A compiled function calls another."""
    inner_backend, outer_backend = Counting(), Counting()
    inner = torch.compile(plus, backend=inner_backend)
    outer = torch.compile(lambda x: inner(x) * 2, backend=outer_backend)
    return [told(outer(ones())) for _ in range(2)], told(inner(ones())), inner_backend.calls, outer_backend.calls


@program(quick=True)
def a_backend_that_compiles():
    """A backend compiles and calls another function."""
    inner = torch.compile(lambda x: x * 3, backend="eager")
    backend = Counting(lambda: inner(ones()))
    compiled = torch.compile(plus, backend=backend)
    return [told(compiled(ones(*shape))) for shape in ((2,), (3,), (2, 2))], backend.calls


@program()
def a_backend_that_calls_the_function_itself():
    """A backend calls the function that is being compiled, with another shape."""
    calls, depth = [], []

    def backend(gm, inputs):
        depth.append(1)
        if len(depth) < 4:
            calls.append(attempt(compiled, torch.ones([2] * (len(depth) + 1))))
        return gm.forward

    compiled = torch.compile(plus, backend=backend)
    return attempt(compiled, ones()), calls


@program()
def a_backend_that_traces():
    """A backend traces with FX and make_fx."""
    seen = []

    def backend(gm, inputs):
        seen.append(torch.fx.symbolic_trace(torch.nn.Linear(2, 2)).code)
        seen.append(make_fx(plus)(ones()).code)
        return gm.forward

    return told(torch.compile(plus, backend=backend)(ones())), seen


@program()
def a_backend_that_resets():
    """A backend calls torch._dynamo.reset()."""
    backend = Counting(torch._dynamo.reset)
    compiled = torch.compile(plus, backend=backend)
    return [attempt(compiled, ones()) for _ in range(3)], backend.calls


@program()
def a_callback_that_compiles():
    """A callback of a compile calls compiled code that is warm."""
    warm = torch.compile(lambda x: x - 1, backend="eager")
    warm(ones())
    seen = []
    torch._dynamo.callback.on_compile_start(lambda *a: seen.append(told(warm(ones()))))
    return told(torch.compile(plus, backend="eager")(ones())), seen


@program({"make_fx": 0, "symbolic_trace": 1, "module": 2})
def compiled_inside_a_trace(kind):
    """A compiled function is called while FX traces: the same graph or the same error."""
    compiled = torch.compile(plus, backend="eager")
    compiled(ones())
    if kind == 0:
        return attempt(lambda: make_fx(lambda x: compiled(x) * 2)(ones()).code)
    if kind == 1:
        return attempt(lambda: torch.fx.symbolic_trace(lambda x: compiled(x) * 2).code)
    return attempt(lambda: torch.fx.symbolic_trace(torch.nn.Sequential(torch.compile(torch.nn.ReLU()))).code)


@program({"trace": 0, "eager": 1}, quick=("trace",))
def the_flag_cleared_by_hand(eager):
    """A popular workaround: code that FX traces clears torch's flag and calls compiled code."""
    compiled = torch.compile(plus, backend="eager")

    def f(x):
        torch.fx._symbolic_trace._is_fx_tracing_flag = False
        return compiled(ones()) + x

    if eager:
        return attempt(f, ones()), torch.fx._symbolic_trace.is_fx_tracing()
    return attempt(lambda: torch.fx.symbolic_trace(f).code), torch.fx._symbolic_trace.is_fx_tracing()


@program({"read": 0, "set": 1})
def the_flag_seen_from_outside(write):
    """What a program reads and writes at torch.fx._symbolic_trace._is_fx_tracing_flag."""
    module = torch.fx._symbolic_trace
    seen = []

    class Reads(torch.nn.Module):
        def forward(self, x):
            seen.append((module.is_fx_tracing(), getattr(module, "_is_fx_tracing_flag", "none")))
            return x + 1

    if write:
        module._is_fx_tracing_flag = True
        seen.append(attempt(torch.compile(plus, backend="eager"), ones()))
        module._is_fx_tracing_flag = False
    torch.fx.symbolic_trace(Reads())
    return seen, module.is_fx_tracing()


@program()
def compiled_in_an_autograd_function():
    """A custom autograd function that calls compiled code, forward and backward."""
    backend = Counting()
    compiled = torch.compile(lambda x: x * 2, backend=backend)

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return compiled(x)

        @staticmethod
        def backward(ctx, g):
            return compiled(g)

    x = torch.ones(2, requires_grad=True)
    Double.apply(x).sum().backward()
    return told(x.grad), backend.calls, told(torch.compile(Double.apply, backend="eager")(x))


@program()
def compiled_in_a_hook_of_the_backward():
    """A tensor hook calls cold compiled code, in the backward of compiled code."""
    backend = Counting()
    x = torch.ones(2, requires_grad=True)
    y = torch.compile(lambda x: (x * 2).sin(), backend="aot_eager")(x)
    y.register_hook(torch.compile(lambda g: g * 3, backend=backend))
    y.sum().backward()
    return told(x.grad), backend.calls


@program()
def compiled_in_del():
    """An object's __del__ calls compiled code, also in the middle of a compile."""
    seen = []
    compiled = torch.compile(lambda x: x - 1, backend="eager")

    class Ends:
        def __del__(self):
            seen.append(attempt(compiled, ones()))

    Ends()
    backend = Counting(lambda: (Ends(), None)[1])
    return attempt(torch.compile(plus, backend=backend), ones()), seen


@program()
def compiled_in_a_thread_that_a_backend_starts():
    """A backend starts a thread, and waits for it; the thread calls warm compiled code."""
    warm = torch.compile(lambda x: x - 1, backend="eager")
    warm(ones())
    seen = []
    backend = Counting(lambda: seen.append(in_thread(lambda: warm(ones()))))
    return attempt(torch.compile(plus, backend=backend), ones()), seen


@program()
def disabled_inside():
    """torch.compiler.disable, also not recursive, in compiled code."""
    backend = Counting()

    @torch._dynamo.disable(recursive=False)
    def shallow(x):
        return plus(x) * 2

    @torch.compiler.disable
    def deep(x):
        return plus(x) * 3

    return told(torch.compile(lambda x: shallow(x) + deep(x), backend=backend)(ones())), backend.calls


@program(needs="torch.compiler.nested_compile_region")
def a_region():
    """nested_compile_region: one graph in another."""

    @torch.compiler.nested_compile_region
    def region(x):
        return x.sin() + 1

    return attempt(torch.compile(lambda x: region(x) + region(x), backend="aot_eager", fullgraph=True), ones())


@program({"cond": 0, "while_loop": 1, "scan": 2})
def higher_order_operators(kind):
    """Eager calls compile by themselves; compiled ones are part of the graph."""
    from torch._higher_order_ops import while_loop

    def f(x):
        if kind == 0:
            return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))
        if kind == 1:
            return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (torch.tensor(0), x))[1]
        return torch.vmap(lambda y: y.cumsum(0))(x.unsqueeze(0))

    return attempt(f, ones()), attempt(torch.compile(f, backend="eager"), ones())


@program()
def eager_flex_attention():
    """flex_attention, not compiled, with a mask."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q = torch.ones(1, 1, 16, 16)
    mask = create_block_mask(lambda b, h, i, j: i >= j, 1, 1, 16, 16, device="cpu")
    return [attempt(lambda: list(flex_attention(q, q, q, block_mask=mask).shape)) for _ in range(2)]


@program()
def compiled_autograd():
    """A backward with compiled autograd."""
    backend = Counting()
    x = torch.ones(2, requires_grad=True)
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend=backend)):
        torch.compile(lambda x: (x * 2).sum(), backend="aot_eager")(x).backward()
    return told(x.grad), backend.calls

"""Scenes of ``torch.compile``: its arguments, its backends, what can be inside a compiled function."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from .parking import Run, here
from .scenes import anew, batch, model, parks, part_of_torch, scene


def _compiled_model(**options: Any) -> Run:
    return lambda: torch.compile(model(), **options)(batch()).sum().backward()


def _compiled(function: Any, *args: Any, **options: Any) -> Run:
    return lambda: torch.compile(anew(function), **options)(*args)


@scene(quick=True)
def compile_with_a_backend_of_the_users() -> Run:
    def backend(graph: Any, inputs: Any) -> Any:
        here()
        return graph.forward

    return _compiled_model(backend=backend)


@scene()
def compile_eager_fullgraph() -> Run:
    return _compiled_model(backend="eager", fullgraph=True)


@scene(quick=True)
def compile_aot_eager() -> Run:
    return _compiled_model(backend="aot_eager")


@scene()
def compile_aot_eager_decomp_partition() -> Run:
    return _compiled_model(backend="aot_eager_decomp_partition", dynamic=True)


@scene(quick=True)
def compile_inductor() -> Run:
    return _compiled_model()


@scene()
def compile_inductor_dynamic() -> Run:
    return _compiled_model(dynamic=True, fullgraph=True)


@scene()
def compile_max_autotune() -> Run:
    return _compiled_model(mode="max-autotune")


@scene()
def compile_reduce_overhead() -> Run:
    return _compiled_model(mode="reduce-overhead")


@scene()
def compile_cpp_wrapper() -> Run:
    return _compiled_model(options={"cpp_wrapper": True})


@scene()
def compile_freezing() -> Run:
    def run() -> None:
        with torch.no_grad(), torch._inductor.config.patch(freezing=True):
            torch.compile(model().eval())(batch())

    return run


@scene()
def compile_from_the_cache() -> Run:
    def run() -> None:
        with (
            torch._inductor.config.patch(fx_graph_cache=True),
            torch._functorch.config.patch(enable_autograd_cache=True),
        ):
            _compiled_model()()

    return run


@scene()
def compile_with_graph_breaks() -> Run:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = parks(x + 1)
        torch._dynamo.graph_break()
        return y * 2

    return _compiled(function, batch(), backend="aot_eager")


@scene()
def compile_random() -> Run:
    def function(x: torch.Tensor) -> torch.Tensor:
        return parks(torch.nn.functional.dropout(x, 0.5) + torch.rand(4))

    return _compiled(function, batch())


@scene()
def compile_again_for_a_shape() -> Run:
    def run() -> None:
        compiled = torch.compile(model(), backend="aot_eager")
        for rows in (3, 4, 5):
            compiled(torch.ones(rows, 4))

    return run


@scene()
def compile_checkpoint() -> Run:
    def function(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda y: torch.relu(parks(y)).sin(), x, use_reentrant=False).sum()

    return lambda: torch.compile(anew(function), backend="aot_eager")(batch().requires_grad_()).backward()


@scene(quick=True)
def compile_transforms() -> Run:
    def function(x: torch.Tensor) -> Any:
        return torch.func.vmap(torch.func.grad(lambda y: y.sin().sum()))(parks(x)), torch.func.jvp(
            torch.sin, (x,), (x,)
        )

    return _compiled(function, batch(), backend="aot_eager")


@scene()
def compile_control_flow() -> Run:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda y: parks(y) + 1, lambda y: y - 1, (x,))

    return _compiled(function, batch(), backend="aot_eager")


@scene()
def compile_flex_attention() -> Run:
    flex_attention = part_of_torch("torch.nn.attention.flex_attention", "flex_attention")
    query, key, value = torch.ones(3, 1, 1, 128, 16)  # torch 2.7 refuses one tensor for two of them

    def function(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return flex_attention(parks(query), key, value)

    return _compiled(function, query, key.clone(), value.clone())


@scene()
def compile_nested_region() -> Run:
    region = part_of_torch("torch.compiler", "nested_compile_region")

    def run() -> None:
        inner = region(anew(lambda x: parks(x).sin()))
        torch.compile(anew(lambda x: inner(x) + inner(x)), backend="aot_eager")(batch())

    return run


@scene()
def compile_optimizer() -> Run:
    def run() -> None:
        weight = torch.ones(4, requires_grad=True)
        weight.grad = torch.ones(4)
        optimizer = torch.optim.Adam([weight])
        torch.compile(anew(lambda: optimizer.step()), backend="aot_eager")()

    return run


@scene()
def compile_data_dependent() -> Run:
    def function(x: torch.Tensor) -> torch.Tensor:
        return parks(x.nonzero()) + x.sum().to(torch.int64).item()  # a float is more than torch 2.7 can do

    def run() -> None:
        with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
            _compiled(function, batch(), backend="aot_eager")()

    return run


@scene()
def compile_autocast() -> Run:
    def function(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return parks(x @ x.T)

    return _compiled(function, batch(), backend="aot_eager")


@scene()
def compile_in_blocks() -> Run:
    def run() -> None:
        with torch.device("cpu"), torch.no_grad(), torch.autograd.set_detect_anomaly(True):
            torch.compile(model(), backend="aot_eager")(batch())

    return run


@scene()
def compile_a_failing_function() -> Run:
    def function(x: torch.Tensor) -> torch.Tensor:
        return parks(x) @ torch.ones(7, 7)

    def run() -> None:
        try:
            _compiled(function, batch(), backend="aot_eager")()
        except RuntimeError:
            here()

    return run


@scene(quick=True)
def compiled_autograd() -> Run:
    def run() -> None:
        torch._dynamo.compiled_autograd.reset()  # its own cache
        with torch._dynamo.config.patch(compiled_autograd=True):
            torch.compile(model(), backend="aot_eager")(batch()).sum().backward()

    return run


@scene()
def compiled_autograd_enabled() -> Run:
    enabled = part_of_torch("torch._dynamo.compiled_autograd", "_enable")

    def run() -> None:
        torch._dynamo.compiled_autograd.reset()
        with enabled(torch.compile(backend="eager")):
            here()
            model()(batch()).sum().backward()

    return run


@scene()
def compile_error_on_graph_break() -> Run:
    error_on_graph_break = part_of_torch("torch._dynamo", "error_on_graph_break")

    def function(x: torch.Tensor) -> torch.Tensor:
        with error_on_graph_break(True):
            return parks(x) + 1

    def run() -> None:
        with error_on_graph_break(True):
            here()
            _compiled(function, batch(), backend="eager")()

    return run


@scene()
def explain() -> Run:
    return lambda: torch._dynamo.explain(model())(batch())


@scene()
def reset() -> Run:
    def run() -> None:
        torch.compile(model(), backend="eager")(batch())
        torch.compiler.reset()

    return run


@scene()
def cache_artifacts() -> Run:
    save, load = (part_of_torch("torch.compiler", f"{word}_cache_artifacts") for word in ("save", "load"))

    def run() -> None:
        with (
            torch._inductor.config.patch(fx_graph_cache=True),
            torch._functorch.config.patch(enable_autograd_cache=True),
        ):
            torch.compile(model())(batch())
            if (saved := save()) is not None:
                load(saved[0])

    return run


@scene()
def standalone_compile() -> Run:
    compile_graph = part_of_torch("torch._inductor", "standalone_compile")
    make_fx = part_of_torch("torch.fx.experimental.proxy_tensor", "make_fx")

    def run() -> None:
        graph = make_fx(lambda x: (x.sin() + 1,), tracing_mode="fake")(batch())
        compile_graph(graph, [batch()])(batch())

    return run

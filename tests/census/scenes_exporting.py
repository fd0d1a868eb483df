"""Scenes of export and what comes after it, of ``make_fx``, FX and TorchScript."""

from __future__ import annotations

import io
import tempfile
import warnings
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from .parking import Run, here
from .scenes import Absent, batch, model, parks, part_of_torch, scene


def _exported(**options: Any) -> Any:
    return torch.export.export(model().eval(), (batch(),), **options)


@scene(quick=True)
def export() -> Run:
    return lambda: _exported(strict=False)


@scene(quick=True)
def export_strict() -> Run:
    return lambda: _exported(strict=True)


@scene()
def export_dynamic() -> Run:
    return lambda: _exported(dynamic_shapes=({0: torch.export.Dim("rows")},), strict=False)


@scene()
def export_for_training() -> Run:
    whole = part_of_torch("torch.export._trace", "_export_for_training")
    return lambda: whole(model(), (batch(),))


@scene()
def draft_export() -> Run:
    draft = part_of_torch("torch.export", "draft_export")
    return lambda: draft(model(), (batch(),))


@scene(quick=True)
def run_decompositions() -> Run:
    exported = _exported()
    return lambda: exported.run_decompositions()


@scene()
def unflatten() -> Run:
    exported = _exported()
    return lambda: torch.export.unflatten(exported)(batch())


@scene()
def exported_module() -> Run:
    exported = _exported()
    return lambda: exported.module()(batch())


@scene(quick=True)
def export_save_and_load() -> Run:
    exported = _exported()

    def run() -> None:
        file = io.BytesIO()
        torch.export.save(exported, file)
        file.seek(0)
        torch.export.load(file)

    return run


@scene(warm=1, limit_s=250.0)
def aoti_compile_and_package() -> Run:
    def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            package = str(Path(folder) / "model.pt2")
            torch._inductor.aoti_compile_and_package(_exported(), package_path=package)
            torch._inductor.aoti_load_package(package)

    return run


@scene()
def onnx_export() -> Run:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise Absent(str(error)) from None
    return lambda: torch.onnx.export(model().eval(), (batch(),), dynamo=True)


@scene()
def aot_export_module() -> Run:
    whole = part_of_torch("torch._functorch.aot_autograd", "aot_export_module")

    class Whole(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model()

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
            return (self.inner(x),)

    return lambda: whole(Whole(), [batch()], trace_joint=False)


@scene()
def aot_function() -> Run:
    whole = part_of_torch("functorch.compile", "aot_function")

    def compiler(graph: Any, inputs: Any) -> Any:
        here()
        return graph

    return lambda: whole(lambda x: parks(x).sin().sum(), compiler)(batch().requires_grad_()).backward()


def _made(mode: str, **options: Any) -> Run:
    return lambda: make_fx(lambda x: torch.relu(parks(x)) + 1, tracing_mode=mode, **options)(batch())


@scene(quick=True)
def make_fx_real() -> Run:
    return _made("real")


@scene()
def make_fx_fake() -> Run:
    return _made("fake")


@scene()
def make_fx_symbolic() -> Run:
    return _made("symbolic")


@scene()
def make_fx_pre_dispatch() -> Run:
    return _made("symbolic", pre_dispatch=True)


@scene(quick=True)
def symbolic_trace() -> Run:
    class Traced(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            here()
            return torch.relu(self.inner(x))

    traced = Traced()
    return lambda: fx.symbolic_trace(traced)


@scene()
def fx_interpreter() -> Run:
    graph = make_fx(lambda x: x.sin() + 1)(batch())

    class Own(fx.Interpreter):
        def run_node(self, n: Any) -> Any:
            here()
            return super().run_node(n)

    def run() -> None:
        Own(graph).run(batch())
        fx.Transformer(graph).transform()

    return run


@scene()
def fx_passes() -> Run:
    def run() -> None:
        from torch.fx.passes.fake_tensor_prop import FakeTensorProp
        from torch.fx.passes.shape_prop import ShapeProp
        from torch.fx.passes.split_module import split_module

        graph = make_fx(lambda x: x.sin() + 1)(batch())
        ShapeProp(graph).propagate(batch())
        FakeTensorProp(graph).propagate(batch())
        split_module(graph, torch.nn.Module(), lambda node: 0)
        fx.replace_pattern(graph, lambda x: torch.sin(x), lambda x: torch.cos(x))
        graph.graph.eliminate_dead_code()
        graph.recompile()

    return run


@scene()
def fx_metadata() -> Run:
    annotate = part_of_torch("torch.fx.traceback", "annotate")

    def run() -> None:
        with fx.traceback.preserve_node_meta(), annotate({"a": 1}):
            here()

    return run


@scene()
def lazy_graph_modules() -> Run:
    lazily = part_of_torch("torch.fx._lazy_graph_module", "_use_lazy_graph_module")

    def run() -> None:
        with lazily(True):
            make_fx(lambda x: parks(x) + 1)(batch())(batch())

    return run


@scene()
def jit_trace() -> Run:
    return lambda: _quiet(lambda: torch.jit.trace(lambda x: torch.relu(parks(x)) + 1, (batch(),)))


@scene()
def jit_script() -> Run:
    layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval()

    def run() -> None:
        scripted = torch.jit.script(layers)
        torch.jit.freeze(scripted)(batch())

    return lambda: _quiet(run)


def _quiet(run: Run) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run()


@scene()
def quantization_pt2e() -> Run:
    prepare = part_of_torch("torch.ao.quantization.quantize_pt2e", "prepare_pt2e")
    convert = part_of_torch("torch.ao.quantization.quantize_pt2e", "convert_pt2e")
    quantizer = part_of_torch("torch.ao.quantization.quantizer.x86_inductor_quantizer", "X86InductorQuantizer")
    config = part_of_torch(
        "torch.ao.quantization.quantizer.x86_inductor_quantizer", "get_default_x86_inductor_quantization_config"
    )

    def run() -> None:
        linear = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval()
        prepared = prepare(torch.export.export(linear, (batch(),)).module(), quantizer().set_global(config()))
        prepared(batch())
        convert(prepared)

    return lambda: _quiet(run)


@scene(warm=1, limit_s=250.0)
def cpp_extension() -> Run:
    load_inline = part_of_torch("torch.utils.cpp_extension", "load_inline")
    names = iter("abcdef")
    quicker = {"no_implicit_headers": True} if "no_implicit_headers" in signature(load_inline).parameters else {}

    def run() -> None:
        load_inline(f"census_{next(names)}", "int one() { return 1; }", is_python_module=False, **quicker)

    return run

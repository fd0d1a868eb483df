"""Each isolation taken out by itself: the census fails, and names what is one for the process again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from safecompile._installing import families

from .classified import class_of
from .runner import Runner

#: What is taken out: a part, or a file whose parts need each other -> the scene in which it is missed, and a place that
#: is told then.
MISSED = {
    "switches.patches_of_compiler torch.compiler": ("compile_aot_eager", "torch.compiler.is_compiling()"),
    "switches.patches_of_export_utils torch._export.utils": ("export", "torch.compiler.is_exporting()"),
    "switches.patches_of_dispatch_modes torch.utils._python_dispatch": (
        "modes_of_the_users",
        "torch.utils._python_dispatch.is_in_torch_dispatch_mode()",
    ),
    "switches.patches_of_ops torch._ops": (
        "make_fx_pre_dispatch",
        "torch._ops._mode_stack_state_for_pre_dispatch._ModeStackStateForPreDispatch__infra_modes[]",
    ),
    "switches.patches_of_dynamo_utils torch._dynamo.utils": (
        "compile_error_on_graph_break",
        "torch._dynamo.utils._get_error_on_graph_break()",
    ),
    "switches.patches_of_ddp torch.nn.parallel.distributed": (
        "distributed_data_parallel",
        "torch.nn.parallel.distributed.DistributedDataParallel._active_ddp_module",
    ),
    "fx.patches_of_symbolic_trace torch.fx._symbolic_trace": (
        "symbolic_trace",
        "torch.nn.modules.module.Module.__call__",
    ),
    "fx.patches_of_globals torch.fx.traceback": ("fx_metadata", "torch.fx.traceback.current_meta"),
    "fx.patches_of_globals torch.fx.experimental.proxy_tensor": (
        "make_fx_real",
        "torch.fx.experimental.proxy_tensor._CURRENT_MAKE_FX_TRACER",
    ),
    "fx.patches_of_globals torch.fx._lazy_graph_module": (
        "lazy_graph_modules",
        "torch.fx._lazy_graph_module._use_lazy_graph_module_flag",
    ),
    "stances": ("stance", "torch._dynamo.eval_frame._stance.stance"),
    "anomaly.patches_of_anomaly_mode torch.autograd.anomaly_mode": ("compile_aot_eager", "torch.is_anomaly_enabled()"),
    "exports.patches_of_trace torch.export._trace": ("export", "torch.export._trace._EXPORT_FLAGS"),
    "exports.patches_of_serialize torch._export.serde.serialize": (
        "export_save_and_load",
        "torch._export.serde.serialize._CURRENT_DESERIALIZER",
    ),
    "exports.patches_of_fake_impl torch._library.fake_impl": (
        "custom_operators",
        "torch._library.fake_impl.global_ctx_getter",
    ),
    "exports.patches_of_aot_utils torch._functorch._aot_autograd.utils": (
        "export",
        "torch.nn.modules.module._global_buffer_registration_hooks[]",
    ),
    "forward_ad.patches_of_forward_ad torch.autograd.forward_ad": (
        "forward_mode",
        "torch.autograd.forward_ad._current_level",
    ),
    "forward_ad.patches_of_eager_transforms torch._functorch.eager_transforms": (
        "jvp",
        "torch._functorch.eager_transforms.JVP_NESTING",
    ),
    "overridden_functions.patches_of_non_strict torch._export.non_strict_utils": ("export", "math.pow(2, 3)"),
    "compiled_autograd.patches_of_compiled_autograd torch._dynamo.compiled_autograd": (
        "compiled_autograd",
        "torch._dynamo.compiled_autograd.compiled_autograd_enabled",
    ),
}
#: What is no variable that another thread could see in the middle of a scene. Its tests: docs/thread-safety.md.
ELSEWHERE = {
    "what a compile puts back at its end": ("random_state", "shared_settings"),
    "seen beside a trace of another thread only": (
        "flex",
        "switches.patches_of_trace_rules",
        "fx.patches_of_symbolic_convert",
        "fx.patches_of_builder",
    ),
    "the variable changes all the same": (
        "anomaly.patches_of_aot_autograd",
        "default_device",
        "overridden_functions.patches_of_symbolic_convert",
        "overridden_functions.patches_of_misc",
        "overridden_functions.patches_of_comparing",
    ),
    "a lock or a gate": ("graph_module", "operators", "kernel_launches", "switches.patches_of_callback"),
    "on a GPU": (
        "cuda_graphs",
        "graph_backwards",
        "graph_functions",
        "graph_inputs",
        "recomputed_randomness",
        "triton_keys",
    ),
    "between imports": ("first_uses",),
    "what Dynamo takes for torch's own": ("anomaly.patches_of_trace_rules",),
    "objects that threads share": ("data_parallel", "switches.patches_of_autograd_graph"),
    "with another value than the process's in each context": ("settings", "scoped_assignments"),
}

TAKING_OUT = """
from safecompile._installing import families as _families
from tests.census.test_isolations import name_of
_by_name = _families.by_name
_families.by_name = lambda parts, required: _by_name(
    [p for p in parts if {name!r} not in (name_of(p), name_of(p).partition('.')[0])], required
)
import safecompile.patch_all
"""


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner(60, plain=True) as made:
        yield made


def name_of(part) -> str:
    """Returns ``file.function module``."""
    return f"{part.build.__module__.rpartition('.')[2]}.{part.build.__name__} {part.module}"


def isolations() -> list[str]:
    """Returns the names of all isolations."""
    return [
        name_of(part)
        for family in families.all_families()
        for part in family.parts
        if "._isolation." in part.build.__module__
    ]


@pytest.mark.census
@pytest.mark.timeout(500)
@pytest.mark.parametrize("name", MISSED)
def test_an_isolation_that_is_taken_out_is_missed(runner: Runner, name: str) -> None:
    """Without it a place differs that is in no class; with it, none."""
    scene, place = MISSED[name]
    result = runner.look(scene, TAKING_OUT.format(name=name))
    assert "failed" not in result, result["failed"]
    unclassified = [one for one in result["found"] if class_of(one) is None]
    assert place in unclassified


def test_each_isolation_is_missed_somewhere() -> None:
    """Each is in the table above, or has its test elsewhere."""
    elsewhere = {name for names in ELSEWHERE.values() for name in names}
    of_each = {name: {name, name.partition(" ")[0], name.partition(".")[0]} for name in isolations()}
    for name, spellings in of_each.items():
        assert bool(spellings & MISSED.keys()) != bool(spellings & elsewhere), name
    assert MISSED.keys() | elsewhere <= set().union(*of_each.values())

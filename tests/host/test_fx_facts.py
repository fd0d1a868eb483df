"""What the FX isolation relies on in torch: the names are there, and each function is what its source says."""

from __future__ import annotations

import inspect

import pytest
import torch
import torch.fx._lazy_graph_module
import torch.fx._symbolic_trace as symbolic_trace
import torch.fx.experimental.proxy_tensor as proxy_tensor
import torch.fx.traceback as traceback
from torch._higher_order_ops import utils as hop_utils

from safecompile import uninstall
from safecompile._patching import thread_globals
from safecompile._torch import fx as torch_fx


@pytest.fixture(autouse=True)
def _plain():
    uninstall()


def test_the_flag_is_a_global_or_per_thread():
    """Torch 2.14+ keeps the flag per thread by itself, older releases in a global."""
    has_global = "_is_fx_tracing_flag" in vars(symbolic_trace)
    assert has_global != hasattr(symbolic_trace, "_is_fx_tracing_tls")


def test_the_other_globals():
    """The patcher, the tracer of make_fx, the metadata and the lazy flag are globals of their modules."""
    assert symbolic_trace.CURRENT_PATCHER is None
    assert proxy_tensor._CURRENT_MAKE_FX_TRACER is None
    assert traceback.current_meta == {}
    assert traceback.should_preserve_node_meta is False
    assert torch.fx._lazy_graph_module._use_lazy_graph_module_flag is False


def test_the_patcher():
    """_Patcher.patch and patch_method have these parameters, and keep records with revert() and patch()."""
    patcher = symbolic_trace._Patcher
    assert list(inspect.signature(patcher.patch).parameters) == [
        "self",
        "frame_dict",
        "name",
        "new_fn",
        "deduplicate",
    ]
    assert list(inspect.signature(patcher.patch_method).parameters) == ["self", "cls", "name", "new_fn", "deduplicate"]
    assert {"revert_all_patches", "reapply_all_patches", "visit_once"} <= vars(patcher).keys()
    record = symbolic_trace._PatchedFnSetItem
    assert callable(record.revert)
    assert callable(record.patch)


def test_a_trace_patches_call_and_getattr_of_module():
    """While it runs, both stand patched on nn.Module itself; afterwards the originals do."""
    seen = []

    class Model(torch.nn.Module):
        def forward(self, x):
            seen.append((torch.nn.Module.__call__, torch.nn.Module.__getattr__))
            return x

    before = torch.nn.Module.__call__, torch.nn.Module.__getattr__
    torch.fx.symbolic_trace(Model())
    assert seen[0][0] is not before[0]
    assert seen[0][1] is not before[1]
    assert (torch.nn.Module.__call__, torch.nn.Module.__getattr__) == before
    assert before[0] is torch.nn.Module._wrapped_call_impl


def test_autowrap_asks_by_id():
    """_autowrap_check looks for functions by id(), which the isolation sees through."""
    assert "id" in symbolic_trace._autowrap_check.__code__.co_names


@pytest.mark.parametrize("name", torch_fx.FX_GLOBALS)
def test_the_source_is_what_runs(name):
    """Each function that uses the globals compiles, unchanged, to the very code object that is running."""
    module = __import__(name, fromlist=["_"])
    always, sometimes = torch_fx.FX_GLOBALS[name]
    names = [*always, *(one for one in sometimes if one in vars(module))]
    assert set(always) <= vars(module).keys()
    assert thread_globals.users_of_globals(module, names)


def test_higher_order_ops_set_the_flag_by_attribute():
    """_set_compilation_env has a body below its decorator; it sets the flag of the module, or a per-thread one."""
    names = hop_utils._set_compilation_env.__wrapped__.__code__.co_names
    assert "_is_fx_tracing_flag" in names or "_set_is_fx_tracing" in names

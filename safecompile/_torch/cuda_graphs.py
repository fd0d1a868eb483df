"""The private names of CUDA graph trees and of Triton's kernels. As :mod:`.dynamo`, it only names and tells."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import inspect
import sys
import threading
from collections import defaultdict
from collections.abc import Callable
from types import CodeType, FunctionType, ModuleType
from typing import Any

CUDAGRAPH_TREES = "torch._inductor.cudagraph_trees"
MUTATION_GUARD = "torch._dynamo.mutation_guard"
CUDA = "torch.cuda"
COMPILE_TASKS = "torch._inductor.runtime.compile_tasks"
CAPTURE_LOCK = "graph_capture_lock"
CACHED_TENSORS = "_set_cached_tensors_enabled"
RECORD = "_record"
ON_THE_GRAPHS_STREAM = "_use_cuda_memory_pool_manager"

#: How a function that binds a tree manager writes the call.
GET_MANAGER = "torch._inductor.cudagraph_trees.get_manager"
COMPILE_FX = "torch._inductor.compile_fx"
OUTPUT_CODE = "torch._inductor.output_code"
CUDAGRAPHS_BACKEND = "torch._dynamo.backends.cudagraphs"

#: What an operation raises on a device on which another thread captures: one that draws from the default generator, and
#: one that synchronizes the device (2.11, H200).
BESIDE_A_CAPTURE = (
    "Offset increment outside graph capture encountered unexpectedly",
    "operation not permitted when stream is capturing",
)


def in_thread(key: str) -> Any:
    """Returns what is kept for this thread under ``key``, or None. Autograd passes it on to its workers."""
    import torch

    return torch._C._get_obj_in_tls(key) if torch._C._is_key_in_tls(key) else None


def set_in_thread(key: str, value: Any) -> None:
    """Keeps ``value`` for this thread and for the backwards that it calls."""
    import torch

    if _store_takes_no_reference():
        _one_reference_more(value)
    torch._C._stash_obj_in_tls(key, value)


@functools.cache
def _store_takes_no_reference() -> bool:
    # torch 2.7-2.12: it drops one all the same when the thread ends, so what it held is freed under others (a crash in
    # plain torch, seen on 2.7.1 and 2.11.0). Drop when min torch > 2.12.
    import torch

    probe = object()
    before = sys.getrefcount(probe)
    torch._C._stash_obj_in_tls("safecompile_probe", probe)
    takes_none = sys.getrefcount(probe) == before
    if takes_none:
        _one_reference_more(probe)
    return takes_none


def _one_reference_more(value: Any) -> None:
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


def containers_of_this_thread() -> tuple[Any, Any]:
    """Returns torch's containers of tree managers and their locks, by device: this thread's, or else new ones."""
    import torch._inductor.cudagraph_trees as trees

    names = ("tree_manager_containers", "tree_manager_locks")
    found: tuple[Any, Any] = ({}, defaultdict(threading.Lock))
    if all(hasattr(trees.local, name) for name in names):
        found = (trees.local.tree_manager_containers, trees.local.tree_manager_locks)
        for value in found if _store_takes_no_reference() else ():
            _one_reference_more(value)  # torch has stored it at its import
        return found
    for name, value in zip(names, found, strict=True):
        set_in_thread(name, value)
    return found


def binds_a_manager(module: ModuleType) -> list[FunctionType]:
    """Returns the functions of a module that bind the tree manager of the thread that compiles a backward."""
    # torch 2.7: in cudagraph_post_compile itself. Drop that name when min torch > 2.7.
    names = ("maybe_handle_backward_generation", "cudagraph_post_compile", "cudagraphs")
    found = [getattr(module, name, None) for name in names]
    return [one for one in found if isinstance(one, FunctionType) and _uses(one.__code__, "get_manager")]


def where_cudagraphify_keeps_its_function(cudagraphify: FunctionType) -> str:
    """Returns the variable in which a function with graphs keeps what it has made: for all threads, or for each.

    Raises:
        LookupError: it is not as in any release that was seen.
    """
    # torch 2.7-2.12: compiled_fn. 2.13+: thread_local. Drop the first when min torch > 2.12.
    for code in cudagraphify.__code__.co_consts:
        names = code.co_freevars if isinstance(code, CodeType) and code.co_name == "run" else ()
        for name in ("thread_local", "compiled_fn"):
            if {name, "cudagraphify_fn", "model", "static_input_idxs"} <= set(names):
                return name
    msg = f"what {cudagraphify.__qualname__} keeps between calls"
    raise LookupError(msg)


def uses_graph_trees(make: Any) -> bool:
    """Tells whether ``make``, by which a function with graphs makes what replays, makes trees of graphs."""
    trees = sys.modules.get(CUDAGRAPH_TREES)
    return trees is not None and getattr(make, "func", None) is trees.cudagraphify_impl


def _uses(code: CodeType, name: str) -> bool:
    return name in code.co_names or any(_uses(one, name) for one in code.co_consts if isinstance(one, CodeType))


def device_of(self: Any, args: tuple[Any, ...]) -> int:
    """Returns the device of a tree manager, of one that is being made, or of a node."""
    for name in ("device_index", "device"):
        if name in vars(self):
            return index_of(getattr(self, name))
    return index_of(args[0])


def index_of(device: Any) -> int:
    """Returns the number of a CUDA device: the current one for None."""
    import torch

    if isinstance(device, int):
        return device
    if device is None:
        return torch.cuda.current_device()
    index = torch.device(device).index
    return torch.cuda.current_device() if index is None else index


def allocate_workspace(stream: Any) -> None:
    """Has cuBLAS and cuBLASLt allocate this thread's workspaces for ``stream``, unless they have."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    modes = (_disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad())
    with modes[0], modes[1], modes[2], torch.cuda.stream(stream), torch.autocast("cuda", enabled=False):
        one = torch.zeros(16, 16, device=stream.device)
        # In deterministic mode without CUBLAS_WORKSPACE_CONFIG cuBLAS can't be used at all, in the graph neither.
        strict = torch.are_deterministic_algorithms_enabled()
        with contextlib.suppress(RuntimeError) if strict else contextlib.nullcontext():
            torch.mm(one, one)
            torch.addmm(one[0], one, one)


def made_by_no_graph(manager: Any, inputs: Any) -> list[Any]:
    """Returns those CUDA inputs that no graph of the present path of ``manager`` has made."""
    import torch

    node = manager.current_node
    made_by_graphs = set() if node is None else {one.data_ptr() for one in node.path_live_weakrefs()}
    tensors = [one for one in inputs if isinstance(one, torch.Tensor) and one.is_cuda]
    return [one for one in tensors if one.untyped_storage().data_ptr() not in made_by_graphs]


def cublas_handle(device: int) -> int:
    """Returns this thread's cuBLAS handle for a device. Threads that end pass theirs on."""
    import torch

    with torch.cuda.device(device):
        return int(torch._C._cuda_getCurrentBlasHandle())


def aligning(trees: Any, model: Any, inputs: Any, static: Any, mutated: Any) -> Any:
    """Returns ``model`` with what torch puts in front of a graph: misaligned inputs are copied."""
    to_check = trees.get_input_idxs_to_check(inputs, static)
    if "mutated_input_idxs" in inspect.signature(trees.align_inputs_from_check_idxs).parameters:
        return trees.align_inputs_from_check_idxs(model, to_check, trees.OrderedSet(mutated))
    # torch 2.7: it does not write back what a misaligned input gets. Drop when min torch > 2.7.
    return trees.align_inputs_from_check_idxs(model, to_check)


def containers_or_none(local: Any, name: str) -> Any:
    """Returns torch's containers or locks of this thread, empty ones if it has none."""
    if hasattr(local, name):
        return getattr(local, name)
    found = in_thread(name)
    return (defaultdict(threading.Lock) if name.endswith("locks") else {}) if found is None else found


def captures_here() -> bool:
    """Tells whether the current stream of this thread is captured."""
    import torch

    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def has_live_outputs(manager: Any) -> bool:
    """Tells whether somebody holds an output of the graphs that ran last."""
    return bool(manager.live_cudagraph_pool_storages_in_curr_execution())


def choice_of_ptxas(module: Any) -> Callable[[], None]:
    """Returns the function by which torch sets ``TRITON_PTXAS_PATH`` to its own ``ptxas``, if it brings one."""
    function: Callable[[], None] | None = getattr(module, "_set_triton_ptxas_path", None)
    if function is None:
        msg = f"{module.__name__}._set_triton_ptxas_path"
        raise LookupError(msg)
    return function

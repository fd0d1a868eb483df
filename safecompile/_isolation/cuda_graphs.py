"""CUDA graphs (``mode="reduce-overhead"``) from any thread: each has trees of graphs, and memory, of its own.

torch keeps a tree of graphs, with one pool of memory, for the thread in which it imported its module, and binds each
compiled function to the tree of the thread that called it first. In another thread the first call fails, or worse: it
replays into the memory in which that thread's outputs are (2.7-2.14; from 2.13 on new threads begin trees of their
own, and from 2.15 on functions do). Here a function looks up the tree of the thread that calls. A backward that runs
on one of autograd's workers uses the tree of the thread that called ``backward()``, as torch means it to
(:mod:`.graph_backwards`).

What counts as a new iteration, in which older outputs may be overwritten, is counted for each thread: a compiled call
of another thread is none, nor is its ``cudagraph_mark_step_begin()``.

A warm-up and a capture need the device for themselves: two captures collide, and ``torch.cuda.synchronize()`` of
another thread ends a capture with an error (2.11). So there is a gate for each device, held over a warm-up or a capture
and never over a replay. A thread that holds the compile lock never takes it: inside a compile, compiled code runs
without graphs. So whoever holds the gate may compile, and waits for nobody who waits for the gate.
``SAFECOMPILE_CUDA_GRAPH_THREADS`` (16) threads at most have graphs; the others run the same compiled code without.
"""

from __future__ import annotations

import ast
import functools
import sys
import weakref
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from types import ModuleType
from typing import Any, Final

from .._common import events
from .._patching import rewriting
from .._patching.families import Part
from .._patching.patches import AttributePatch, CodePatch, Patch
from .._torch import cuda_graphs as host
from .._torch import dynamo
from . import graph_inputs, graph_trees, kernel_gates

_CALLS, _WAIT = "__safecompile_calls__", "__safecompile_wait_for_captures__"


class _Function:
    """A compiled function with CUDA graphs: what each thread replays for it. Frees them when it dies.

    Args:
        make: returns what replays, for one thread; its first call warms up.
        without: returns from the inputs of the first such call what runs without graphs.
    """

    def __init__(self, make: Callable[[], Any], without: Callable[[Any], Any]) -> None:
        self.make, self.make_without = make, without
        self.without: Any = None
        self.replays: dict[graph_trees.Trees, Any] = {}

    def __call__(self, inputs: Any) -> Any:
        mine = None if dynamo.compiles_here() else graph_trees.trees_of_this_call()
        if mine is None:
            if self.without is None:
                self.without = self.make_without(inputs)
            return self.without(inputs)
        replay = self.replays.get(mine)
        if replay is None:
            replay = self.replays[mine] = self.make()
            # No callbacks: they would run inside compiled calls, where Dynamo compiles them.
            mine.functions = [one for one in mine.functions if one() is not None] + [weakref.ref(self)]
        return replay(inputs)


def patches_of_cudagraph_trees(module: ModuleType) -> list[Patch]:
    """Returns the patches that give each thread its trees, and captures the device; changes nothing."""
    return [
        *_trees_by_thread(module),
        *_steps_by_thread(module, module.CUDAGraphTreeManager),
        *_gates(module, module.CUDAGraphTreeManager, module.CUDAGraphNode),
        *_patches_of_synchronize(sys.modules[host.CUDA]),
        *_patches_of_count(sys.modules[host.MUTATION_GUARD]),
    ]


def _trees_by_thread(module: ModuleType) -> list[Patch]:
    original_get_obj, original_impl = module.get_obj, module.cudagraphify_impl
    switch = vars(module)[host.CACHED_TENSORS]

    @functools.wraps(original_get_obj)
    def _patched_get_obj(local: Any, name: str) -> Any:
        mine = host.in_thread(graph_trees.Trees.KEY)
        return getattr(mine, name) if mine is not None else host.containers_or_none(local, name)

    @functools.wraps(original_impl)
    def _patched_cudagraphify_impl(model: Any, inputs: Any, static: Any, *args: Any, **kwargs: Any) -> Any:
        ints = [one if isinstance(one, int) else None for one in inputs]  # all that torch looks at here
        return _Function(
            lambda: original_impl(model, list(ints), static, *args, **kwargs),
            lambda inputs: host.aligning(module, model, inputs, static, kwargs.get("mutated_input_idxs", ())),
        )

    @functools.wraps(switch)
    def _patched_switch(enabled: bool) -> None:
        mine = host.in_thread(graph_trees.Trees.KEY)
        if enabled or not any(one.managers() for one in list(graph_trees.all_trees) if one is not mine):
            switch(enabled)

    return [
        AttributePatch(module, "get_obj", _patched_get_obj),
        AttributePatch(module, "cudagraphify_impl", _patched_cudagraphify_impl),
        AttributePatch(module, host.CACHED_TENSORS, _patched_switch),
    ]


def _steps_by_thread(module: ModuleType, manager: Any) -> list[Patch]:
    original_reset = module.reset_cudagraph_trees

    @functools.wraps(module.mark_step_begin)
    def _patched_mark_step_begin() -> None:
        graph_trees.calls.count.steps -= 1

    @functools.wraps(original_reset)
    def _patched_reset() -> None:
        original_reset()
        graph_trees.calls.count.steps = 0
        graph_trees.end_what_is_over()

    def count() -> graph_trees.Count:
        mine = host.in_thread(graph_trees.Trees.KEY)
        return graph_trees.calls.count if mine is None else mine.count

    def get_curr_generation() -> int:
        return count().steps or count().calls

    def user_invoked_mark_step() -> bool:
        return count().steps != 0

    return [
        AttributePatch(module, "mark_step_begin", _patched_mark_step_begin),
        AttributePatch(module, "reset_cudagraph_trees", _patched_reset),
        AttributePatch(manager, "get_curr_generation", staticmethod(get_curr_generation)),
        AttributePatch(manager, "user_invoked_mark_step", staticmethod(user_invoked_mark_step)),
    ]


def _gates(module: ModuleType, manager: Any, node: Any) -> list[Patch]:
    gated_init = _gated(manager.__init__, ("use", "capture"))

    @functools.wraps(manager.__init__)
    def _patched_init(self: Any, *args: Any, **kwargs: Any) -> None:
        gated_init(self, *args, **kwargs)
        graph_trees.take_free_stream(self, host.device_of(self, args))

    @functools.wraps(module.clear_cublass_cache)
    def _patched_clear_cublass_cache() -> None:
        """Does nothing: see :func:`_gated`."""

    return [
        AttributePatch(module, "clear_cublass_cache", _patched_clear_cublass_cache),
        AttributePatch(manager, "__init__", _patched_init),
        AttributePatch(manager, "run_eager", _gated(manager.run_eager, ("use",))),
        AttributePatch(manager, "record_function", _gated(manager.record_function, ("use",))),
        AttributePatch(node, host.RECORD, _gated(vars(node)[host.RECORD], ("capture",))),
        # torch 2.13+ has a lock for all devices, taken in another order. The gates do its work.
        *(AttributePatch(module, name, nullcontext()) for name in (host.CAPTURE_LOCK,) if hasattr(module, name)),
    ]


def _gated(original: Callable[..., Any], kinds: tuple[str, ...]) -> Any:
    """Returns the method with the gates of its device around it.

    torch clears cuBLAS's workspaces around a warm-up and a capture, so that none is allocated in the graphs' memory:
    those of all threads, also one with which another is about to multiply. Here this thread's workspace for the stream
    is allocated beforehand, outside that memory, and stays.
    """

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        device = host.device_of(self, args)
        kernel_gates.assert_none_held("a device for a CUDA graph")
        with ExitStack() as gates:
            for kind in kinds:
                gates.callback(graph_trees.enter(kind, device).release)
            stream = vars(self).get("stream")
            if stream is not None:
                host.allocate_workspace(stream)
                if kinds == ("use",):
                    gates.enter_context(graph_inputs.kept(self, args[0]))
            result = original(self, *args, **kwargs)
        if events.listeners and not dynamo.compiles_here():
            events.deliver()
        return result

    return method


class _Before(ast.NodeTransformer):
    """Puts a statement in front of the body of a function, behind its docstring."""

    def __init__(self, text: str) -> None:
        self.text = text

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        first = node.body[1]
        node.body.insert(1, rewriting.located(ast.parse(self.text).body[0], first))
        return node


def _patches_of_synchronize(module: ModuleType) -> list[Patch]:
    function = module.synchronize
    code = rewriting.recompiled(function, _Before(f"{_WAIT}(device)").visit)
    return [AttributePatch(module, _WAIT, graph_trees.wait_for_captures, new=True), CodePatch(function, code)]


def _patches_of_count(module: ModuleType) -> list[Patch]:
    # It runs at each top-level compiled call, and adds some 50 ns, in programs that use CUDA graphs only.
    function = module.install_generation_tagging_init
    code = rewriting.recompiled(function, _Before(f"{_CALLS}.count.calls += 1").visit)
    return [AttributePatch(module, _CALLS, graph_trees.calls, new=True), CodePatch(function, code)]


PARTS: Final = (Part("cuda graphs", host.CUDAGRAPH_TREES, patches_of_cudagraph_trees),)

"""CUDA graphs (``mode="reduce-overhead"``) from any thread: each has trees of graphs, and memory, of its own.

torch keeps a tree of graphs, with one pool of memory, for the thread in which it imported its module, and binds each
compiled function to the tree of the thread that called it first. In another thread the first call fails, or worse: it
replays into the memory in which that thread's outputs are (2.7-2.14; from 2.13 on new threads begin trees of their
own, and from 2.15 on functions do). Here a function looks up the tree of the thread that calls. A backward that runs
on one of autograd's workers uses the tree of the thread that called ``backward()``, as torch means it to.

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
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from types import ModuleType
from typing import Any, Final

from . import _environment, _events, _rewrite, _torch
from . import _torch_cuda_graphs as host
from ._patches import AttributePatch, CodePatch, Patch

#: Seconds for which ``torch.cuda.synchronize()`` waits for another thread's capture, which takes milliseconds.
CAPTURE_S: Final = 10.0

_CALLS, _WAIT = "__safecompile_calls__", "__safecompile_wait_for_captures__"


class _Count:
    """How many top-level compiled calls a thread has made, and how often it has marked the beginning of a step."""

    __slots__ = ("calls", "steps")

    def __init__(self) -> None:
        self.calls = self.steps = 0


class _Token:
    """Lives as long as its thread, also as one that Python has not started."""


class _Calls(threading.local):
    """This thread's count, and what lives as long as it."""

    def __init__(self) -> None:
        self.count, self.alive = _Count(), _Token()


_calls = _Calls()


class Trees:
    """What one thread has of CUDA graphs, under torch's names; in the thread-local store that autograd passes on."""

    KEY: Final = "safecompile_cuda_graph_trees"

    def __init__(self, containers: Any, locks: Any) -> None:
        self.tree_manager_containers, self.tree_manager_locks = containers, locks
        self.count, self._alive = _calls.count, weakref.ref(_calls.alive)
        self.functions: list[weakref.ref[_Function]] = []

    def are_over(self) -> bool:
        """Tells whether the thread has ended and nobody holds an output of its graphs."""
        return not self.are_in_use() and not any(map(host.has_live_outputs, self.managers()))

    def are_in_use(self) -> bool:
        """Tells whether the thread is alive."""
        return self._alive() is not None

    def end(self) -> None:
        """Frees the graphs, tensors that torch has cached for them first: it notes their addresses."""
        try:
            for manager in self.managers():
                device = host.device_of(manager, ())
                with gate("use", device):
                    manager.shutdown()
                if "_safecompile_streams" in vars(manager):
                    _streams.setdefault(manager._safecompile_streams, []).append(manager.stream)
        finally:
            for reference in self.functions:
                function = reference()
                if function is not None:
                    function.replays.pop(self, None)

    def managers(self) -> list[Any]:
        """Returns torch's tree managers, one for each device at most."""
        found = [container.tree_manager for container in list(self.tree_manager_containers.values())]
        return [manager for manager in found if manager is not None]


#: The trees of all threads, ended ones too while their outputs live.
_all: list[Trees] = []
_beginning = threading.RLock()  # reentrant: a signal handler may call compiled code
_told = False

_gates: dict[tuple[str, int], Any] = {}

#: The streams of trees that have ended, by device and the cuBLAS handle that was used with them, for new ones: each
#: stream has a cuBLAS workspace (32 MiB on an H200) with each handle it was used with, and it is never freed.
_streams: dict[tuple[int, int], list[Any]] = {}


def take_free_stream(manager: Any, device: int) -> None:
    """Gives a new tree manager the stream of one that has ended and had this thread's cuBLAS handle."""
    key = vars(manager)["_safecompile_streams"] = (device, host.cublas_handle(device))
    free = _streams.get(key)
    if free:
        manager.stream = free.pop()


def gate(kind: str, device: int) -> Any:
    """Returns the reentrant lock of a device: ``"use"`` for warm-ups and captures, ``"capture"`` for captures."""
    found = _gates.get((kind, device))
    return _gates.setdefault((kind, device), threading.RLock()) if found is None else found


def trees_of_this_call() -> Trees | None:
    """Returns the trees of the calling thread, or on an autograd worker of the one that called ``backward()``.

    None if no more threads may have graphs, or on a worker, if the thread that it works for has none.
    """
    mine: Trees | None = host.in_thread(Trees.KEY)
    if mine is not None or _torch.in_backward():
        return mine
    return _begin()


def end_what_is_over() -> None:
    """Frees the graphs of threads that have ended. Called where a thread begins, and by a reset."""
    with _beginning:
        over = [one for one in _all if one.are_over()]
        for one in over:
            _all.remove(one)
    for one in over:
        one.end()


def _begin() -> Trees | None:
    global _told
    end_what_is_over()
    with _beginning:
        most = _environment.cuda_graph_threads()
        if sum(one.are_in_use() for one in _all) < most:
            mine = Trees(*host.containers_of_this_thread())
            host.set_in_thread(Trees.KEY, mine)
            _all.append(mine)
            return mine
    if not _told:
        _told = True
        _events.log.warning(
            "%r runs without CUDA graphs, and so does each further thread: %d threads have them, and each needs memory "
            "of its own. Results are the same, calls are slower. Set SAFECOMPILE_CUDA_GRAPH_THREADS to allow more.",
            threading.current_thread().name,
            most,
        )
    return None


class _Function:
    """A compiled function with CUDA graphs: what each thread replays for it. Frees them when it dies.

    Args:
        make: returns what replays, for one thread; its first call warms up.
        without: returns from the inputs of the first such call what runs without graphs.
    """

    def __init__(self, make: Callable[[], Any], without: Callable[[Any], Any]) -> None:
        self.make, self.make_without = make, without
        self.without: Any = None
        self.replays: dict[Trees, Any] = {}

    def __call__(self, inputs: Any) -> Any:
        mine = None if _torch.compiles_here() else trees_of_this_call()
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


class _ManagerOfTheCall:
    """Stands for the tree manager that torch binds to a backward which runs without graphs: whose ever it is."""

    def __init__(self, device: int) -> None:
        self.device = device

    def set_to_running_backward(self) -> None:
        """Tells the manager of the thread whose backward this is, if it has one."""
        mine = host.in_thread(Trees.KEY)
        container = None if mine is None else mine.tree_manager_containers.get(self.device)
        if container is not None and container.tree_manager is not None:
            container.tree_manager.set_to_running_backward()


class _OfTheCall(ast.NodeTransformer):
    """Puts :class:`_ManagerOfTheCall` in the place of a manager that is looked up when a backward is compiled."""

    NAME: Final = "__safecompile_manager_of_the_call__"
    changed = False

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if ast.unparse(node.func) != "torch._inductor.cudagraph_trees.get_manager":
            return node
        self.changed = True
        name = ast.copy_location(ast.Name(self.NAME, ast.Load()), node.func)
        return ast.copy_location(ast.Call(name, node.args[:1], []), node)


def patches_of_backwards(module: ModuleType) -> list[Patch]:
    """Returns the patches for the modules that bind a manager to a backward; changes nothing."""
    found: list[Patch] = [AttributePatch(module, _OfTheCall.NAME, _ManagerOfTheCall, new=True)]
    for function in host.binds_a_manager(module):
        change = _OfTheCall()
        found.append(CodePatch(function, _rewrite.recompiled(function, change.visit)))
        if not change.changed:
            msg = f"a call of get_manager in {function.__qualname__}"
            raise LookupError(msg)
    return found


def patches_of_cudagraph_trees(module: ModuleType) -> list[Patch]:
    """Returns the patches that give each thread its trees, and captures the device; changes nothing."""
    original_get_obj, original_impl = module.get_obj, module.cudagraphify_impl
    manager, node, switch = module.CUDAGraphTreeManager, module.CUDAGraphNode, module._set_cached_tensors_enabled

    @functools.wraps(original_get_obj)
    def _patched_get_obj(local: Any, name: str) -> Any:
        mine = host.in_thread(Trees.KEY)
        return getattr(mine, name) if mine is not None else host.containers_or_none(local, name)

    @functools.wraps(original_impl)
    def _patched_cudagraphify_impl(model: Any, inputs: Any, static: Any, *args: Any, **kwargs: Any) -> Any:
        ints = [one if isinstance(one, int) else None for one in inputs]  # all that torch looks at here
        return _Function(
            lambda: original_impl(model, list(ints), static, *args, **kwargs),
            lambda inputs: host.aligning(module, model, inputs, static, kwargs.get("mutated_input_idxs", ())),
        )

    @functools.wraps(module.mark_step_begin)
    def _patched_mark_step_begin() -> None:
        _calls.count.steps -= 1

    original_reset = module.reset_cudagraph_trees

    @functools.wraps(original_reset)
    def _patched_reset() -> None:
        original_reset()
        _calls.count.steps = 0
        end_what_is_over()

    def count() -> _Count:
        mine = host.in_thread(Trees.KEY)
        return _calls.count if mine is None else mine.count

    def get_curr_generation() -> int:
        return count().steps or count().calls

    def user_invoked_mark_step() -> bool:
        return count().steps != 0

    gated_init = _gated(manager.__init__, ("use", "capture"))

    @functools.wraps(manager.__init__)
    def _patched_init(self: Any, *args: Any, **kwargs: Any) -> None:
        gated_init(self, *args, **kwargs)
        take_free_stream(self, host.device_of(self, args))

    @functools.wraps(module.clear_cublass_cache)
    def _patched_clear_cublass_cache() -> None:
        """Does nothing: see :func:`_gated`."""

    @functools.wraps(switch)
    def _patched_switch(enabled: bool) -> None:
        mine = host.in_thread(Trees.KEY)
        if enabled or not any(one.managers() for one in list(_all) if one is not mine):
            switch(enabled)

    return [
        AttributePatch(module, "get_obj", _patched_get_obj),
        AttributePatch(module, "cudagraphify_impl", _patched_cudagraphify_impl),
        AttributePatch(module, "mark_step_begin", _patched_mark_step_begin),
        AttributePatch(module, "reset_cudagraph_trees", _patched_reset),
        AttributePatch(module, "clear_cublass_cache", _patched_clear_cublass_cache),
        AttributePatch(module, "_set_cached_tensors_enabled", _patched_switch),
        AttributePatch(manager, "get_curr_generation", staticmethod(get_curr_generation)),
        AttributePatch(manager, "user_invoked_mark_step", staticmethod(user_invoked_mark_step)),
        AttributePatch(manager, "__init__", _patched_init),
        AttributePatch(manager, "run_eager", _gated(manager.run_eager, ("use",))),
        AttributePatch(manager, "record_function", _gated(manager.record_function, ("use",))),
        AttributePatch(node, "_record", _gated(node._record, ("capture",))),
        # torch 2.13+ has a lock for all devices, taken in another order. The gates do its work.
        *(AttributePatch(module, name, nullcontext()) for name in (host.CAPTURE_LOCK,) if hasattr(module, name)),
        *_patches_of_synchronize(sys.modules[host.CUDA]),
        *_patches_of_count(sys.modules[host.MUTATION_GUARD]),
    ]


def _gated(original: Callable[..., Any], kinds: tuple[str, ...]) -> Any:
    """Returns the method with the gates of its device around it.

    torch clears cuBLAS's workspaces around a warm-up and a capture, so that none is allocated in the graphs' memory:
    those of all threads, also one with which another is about to multiply. Here this thread's workspace for the stream
    is allocated beforehand, outside that memory, and stays.

    Both run on a stream of their own, and drop inputs as soon as the kernels that read them are launched. Another
    thread, whose stream does not wait for that one, could be given such memory while they still read it (wrong
    gradients in 2 of 3 runs, 2.11, H200). So the allocator is told of the stream.
    """

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        device = host.device_of(self, args)
        with ExitStack() as gates:
            for kind in kinds:
                gates.enter_context(gate(kind, device))
            stream = vars(self).get("stream")
            if stream is not None:
                host.allocate_workspace(stream)
                if kinds == ("use",):
                    host.tell_allocator(self, args[0], stream)
            return original(self, *args, **kwargs)

    return method


def wait_for_captures(device: Any = None) -> None:
    """Returns when no other thread captures on ``device`` (None: the current one), or after ten seconds.

    A thread that holds the compile lock waits for half a second at most.
    """
    lock = _gates.get(("capture", host.index_of(device))) if _gates else None
    if lock is not None and lock.acquire(timeout=0.5 if _torch.compiles_here() else CAPTURE_S):
        lock.release()


def was_in_the_way(error: Exception) -> bool:
    """Tells whether an error is what torch raises on a device on which another thread captures."""
    return bool(_gates) and any(text in str(error) for text in host.BESIDE_A_CAPTURE) and not host.captures_here()


class _Before(ast.NodeTransformer):
    """Puts a statement in front of the body of a function, behind its docstring."""

    def __init__(self, text: str) -> None:
        self.text = text

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        first = node.body[1]
        node.body.insert(1, ast.parse(self.text).body[0])
        for part in ast.walk(node.body[1]):
            ast.copy_location(part, first)
        return node


def _patches_of_synchronize(module: ModuleType) -> list[Patch]:
    function = module.synchronize
    code = _rewrite.recompiled(function, _Before(f"{_WAIT}(device)").visit)
    return [AttributePatch(module, _WAIT, wait_for_captures, new=True), CodePatch(function, code)]


def _patches_of_count(module: ModuleType) -> list[Patch]:
    # It runs at each top-level compiled call, and adds some 50 ns, in programs that use CUDA graphs only.
    function = module.install_generation_tagging_init
    code = _rewrite.recompiled(function, _Before(f"{_CALLS}.count.calls += 1").visit)
    return [AttributePatch(module, _CALLS, _calls, new=True), CodePatch(function, code)]


def after_fork_in_child() -> None:
    """Forgets the gates of the parent's other threads. A forked child can't use CUDA anyway."""
    global _beginning
    _beginning = threading.RLock()
    _all.clear()
    _gates.clear()
    _streams.clear()

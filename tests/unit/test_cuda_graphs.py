"""CUDA graphs by thread, with tree managers that capture nothing: tests/gpu/cuda_graphs.py has the real ones.

torch's own module runs; only its tree manager, which needs a GPU, is replaced.
"""

from __future__ import annotations

import _thread
import contextlib
import gc
import logging
import threading
import time
import types
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._inductor.compile_fx as compile_fx
import torch._inductor.cudagraph_trees as cudagraph_trees

import safecompile
from safecompile._isolation import cuda_graphs, graph_inputs, graph_trees
from tests.helpers.threads import run_threads

TREE_MANAGER = cudagraph_trees.CUDAGraphTreeManager


class Manager:
    """Notes which functions it runs, and in which thread it was made."""

    made: list[Manager]

    def __init__(self, device_index: int, **_: Any) -> None:
        self.device_index, self.thread = device_index, threading.current_thread()
        self.runs: list[Any] = []
        self.live: list[int] = []
        self.stream: Any = object()
        self.is_shut_down = False
        Manager.made.append(self)

    def add_function(self, model: Any, inputs: Any, *_: Any) -> tuple[Any, Any]:
        def replay(inputs: Any) -> Any:
            self.runs.append(threading.current_thread())
            return model(inputs)

        cudagraph_trees.get_container(self.device_index).add_strong_reference(replay)
        return replay, replay(inputs)

    def shutdown(self) -> None:
        self.is_shut_down = True

    def live_cudagraph_pool_storages_in_curr_execution(self) -> list[int]:
        return self.live


@pytest.fixture(autouse=True)
def managers(installed: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Manager]]:
    monkeypatch.setattr(cudagraph_trees, "CUDAGraphTreeManager", Manager)
    monkeypatch.setattr(graph_trees, "all_trees", [])
    monkeypatch.setattr(graph_trees, "_told", False)
    monkeypatch.setattr(graph_trees, "streams", {})
    Manager.made = []
    yield Manager.made
    torch.compiler.reset()


def graphed(model: Any = lambda inputs: [len(inputs)]) -> Any:
    """Returns what Inductor calls for a graph with CUDA graphs."""
    return cudagraph_trees.cudagraphify_impl(
        model, [torch.zeros(1)], (), device_index=0, is_backward=False, is_inference=True
    )


def call(function: Any) -> Any:
    return function([torch.zeros(1)])


def test_each_thread_has_trees_of_its_own(managers: list[Manager]) -> None:
    """A function that one thread called first replays in each thread in that thread's trees."""
    function = graphed()
    call(function)
    run_threads([lambda: [call(function) for _ in range(3)]] * 4)
    assert len(managers) == 5
    assert all(set(one.runs) == {one.thread} for one in managers)
    assert sorted(len(one.runs) for one in managers) == [1, 3, 3, 3, 3]


def test_a_backward_uses_the_trees_of_the_thread_that_called_it() -> None:
    """On whatever thread autograd runs it: the thread-local store goes with it. A hook tells which trees it finds."""
    seen: list[Any] = []

    def work() -> None:
        mine = graph_trees.trees_of_this_call()
        x = torch.zeros(1, requires_grad=True)
        x.register_hook(lambda grad: seen.append(graph_trees.trees_of_this_call() is mine))
        x.sum().backward()

    run_threads([work] * 3)
    assert seen == [True] * 3


def test_a_step_of_another_thread_is_none() -> None:
    """Neither compiled calls nor cudagraph_mark_step_begin() of another thread begin an iteration in this one."""
    generation = TREE_MANAGER.get_curr_generation
    compiled = torch.compile(lambda x: x + 1, backend="eager")
    compiled(torch.zeros(1))
    before = generation()
    run_threads([lambda: (compiled(torch.zeros(1)), torch.compiler.cudagraph_mark_step_begin())])
    assert generation() == before
    compiled(torch.zeros(1))
    assert generation() == before + 1
    torch.compiler.cudagraph_mark_step_begin()
    assert generation() < 0


def test_beyond_the_number_of_threads(
    managers: list[Manager], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two threads have graphs, the others run the same code without; one WARNING says so."""
    monkeypatch.setenv("SAFECOMPILE_CUDA_GRAPH_THREADS", "2")
    function = graphed()
    together = threading.Barrier(5)

    def work() -> Any:
        together.wait(30)
        result = call(function)
        together.wait(30)
        return result

    with caplog.at_level(logging.WARNING, "safecompile"):
        assert run_threads([work] * 5) == [[1]] * 5
    assert len(managers) == 2
    assert [record.message.count("SAFECOMPILE_CUDA_GRAPH_THREADS") for record in caplog.records] == [1]


def inductors_function(model: Any = lambda inputs: [inputs[0] + 1]) -> Any:
    """Returns what Inductor makes of a graph with CUDA graphs, at the end of its compile."""
    return compile_fx.cudagraphify(model, device_index=0, stack_traces=[], is_backward=False, is_inference=True)


def test_outputs_outlive_their_thread(managers: list[Manager]) -> None:
    """One function serves all threads: one for each would die with its thread (2.13+), and its graphs with it."""
    functions = [inductors_function()]
    for number in range(3):
        run_threads([lambda: call(functions[0])])
        managers[-1].live = [1]
        assert [one.managers() for one in graph_trees.all_trees] == [[one] for one in managers]
        assert len(managers) == number + 1
    functions.clear()
    gc.collect()
    assert [one.managers() for one in graph_trees.all_trees] == [[], [], []]  # with the compiled function, as in torch


def test_two_threads_make_one_function(managers: list[Manager], monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that call it first at once: none of them is left with a function, and graphs, that die with its call."""
    meet, make = threading.Barrier(4, timeout=30), cudagraph_trees.cudagraphify_impl

    def slowly(*args: Any, **kwargs: Any) -> Any:
        made = make(*args, **kwargs)
        meet.wait()
        return made

    def work() -> int:
        result = call(function)
        meet.wait()  # nobody has ended
        return len([one for one in graph_trees.all_trees if one.managers()]) * len(result)

    with monkeypatch.context() as patched:
        patched.setattr(cudagraph_trees, "cudagraphify_impl", slowly)
        function = inductors_function()
        assert run_threads([work] * 4) == [4] * 4
    assert len(managers) == 4


def test_what_a_thread_had_is_freed_when_nobody_holds_an_output(managers: list[Manager]) -> None:
    """One thread for each request: at the next one's first call, unless an output still lives."""
    function = graphed()
    for number in range(6):
        run_threads([lambda: call(function)])
        managers[-1].live = [1] if number == 2 else []
    assert [one.is_shut_down for one in managers] == [True, True, False, True, True, False]
    managers[2].live = []
    run_threads([lambda: call(function)])
    assert managers[2].is_shut_down
    assert len(function.replays) == 1


def test_a_stream_is_used_again_with_the_same_cublas_handle(
    managers: list[Manager], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each pair of a stream and a handle keeps a workspace for good, so their number must not grow."""
    handles = iter([7, 8, 7, 8])
    monkeypatch.setattr(graph_trees.host, "cublas_handle", lambda device: next(handles))
    function, streams = graphed(), []

    def work() -> None:
        call(function)
        graph_trees.take_free_stream(managers[-1], 0)
        streams.append(managers[-1].stream)

    for _ in range(4):
        run_threads([work])
    assert len(set(map(id, streams))) == 2
    assert streams[0] is streams[2]


def test_inputs_live_until_the_threads_stream_waits_for_the_one_that_reads_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All but what graphs have made, whose memory no other thread is ever given. Afterwards nothing keeps them."""

    class OnTheGpu(torch.Tensor):
        is_cuda = True

    class Node:
        def path_live_weakrefs(self) -> list[Any]:
            return [made.untyped_storage()]

    lives: list[bool] = []

    def warm_up(manager: Any, inputs: list[Any]) -> None:
        with module.on_the_other_stream():
            inputs.clear()
            lives.append(still_there() is not None)
        lives.append(still_there() is not None)

    made, given = (torch.full((1,), float(n)).as_subclass(OnTheGpu) for n in range(2))
    manager = Manager(0)
    manager.current_node, manager.stream = Node(), "stream"
    assert list(map(float, cuda_graphs.host.made_by_no_graph(manager, [made, given, 3, torch.zeros(1)]))) == [1.0]
    manager.current_node = None
    module = types.ModuleType("trees")
    module.on_the_other_stream = contextlib.nullcontext  # type: ignore[attr-defined]
    monkeypatch.setattr(cuda_graphs.host, "ON_THE_GRAPHS_STREAM", "on_the_other_stream")
    monkeypatch.setattr(cuda_graphs.host, "allocate_workspace", lambda stream: None)
    monkeypatch.setattr(cuda_graphs.host, "device_of", lambda *_: 0)
    for patch in graph_inputs.patches_of_cudagraph_trees(module):
        patch.apply()
    inputs, still_there = [given], weakref.ref(given)
    del given
    cuda_graphs._gated(warm_up, ("use",))(manager, inputs)
    assert lives == [True, False]


def test_threads_that_python_has_not_started(managers: list[Manager]) -> None:
    """Their end is seen too: what they had is freed, and they use up none of the threads that may have graphs."""
    function = graphed()
    for _ in range(20):
        ended = threading.Event()
        _thread.start_new_thread(lambda ended=ended: (call(function), ended.set()), ())
        assert ended.wait(30)
    until = time.monotonic() + 10
    while sum(one.are_in_use() for one in graph_trees.all_trees) > 1 and time.monotonic() < until:
        time.sleep(0.01)
    run_threads([lambda: call(function)])
    assert [one.is_shut_down for one in managers[:20]] == [True] * 20


def test_a_reset_forgets_the_steps() -> None:
    """After a reset, as in plain torch, each call begins an iteration again."""
    torch.compiler.cudagraph_mark_step_begin()
    assert TREE_MANAGER.user_invoked_mark_step()
    cudagraph_trees.reset_cudagraph_trees()
    assert not TREE_MANAGER.user_invoked_mark_step()


def test_inside_a_compile_there_are_no_graphs(managers: list[Manager]) -> None:
    """A thread that holds the compile lock takes no gate: a backend that calls such a function runs it without."""
    function = graphed()
    with torch._dynamo.convert_frame.compile_lock:
        assert call(function) == [1]
    assert not managers


def test_a_lock_of_torchs_own_is_not_in_the_way() -> None:
    """From 2.13 on torch takes one lock for all devices before what takes the gate, and inside it as well."""
    lock = getattr(cudagraph_trees, "graph_capture_lock", None)
    if lock is None:
        pytest.skip("this release has no such lock")
    with lock:
        run_threads([lambda: lock.__enter__()], 10)


def test_a_reset_beside_a_recording() -> None:
    """A thread that records a graph is between its callbacks, under no lock: a reset of another raises nothing."""
    handler = torch._dynamo.callback_handler
    recording, done = threading.Event(), threading.Event()

    def record() -> None:
        given = () if not hasattr(torch._dynamo.callback, "CallbackArgs") else (None, "0")
        with handler.install_callbacks(*given):
            recording.set()
            assert done.wait(30)

    def reset() -> None:
        assert recording.wait(30)
        torch._dynamo.reset()
        done.set()

    run_threads([record, reset])


def test_a_capture_is_waited_for() -> None:
    """torch.cuda.synchronize() returns once no other thread captures on that device."""
    assert "__safecompile_wait_for_captures__" in torch.cuda.synchronize.__code__.co_names
    order: list[str] = []
    capturing = threading.Event()

    def capture() -> None:
        with graph_trees.gate("capture", 0):
            capturing.set()
            threading.Event().wait(0.3)
            order.append("captured")

    def synchronize() -> None:
        assert capturing.wait(30)
        graph_trees.wait_for_captures(1)
        order.append("another device")
        graph_trees.wait_for_captures(0)
        order.append("this device")

    run_threads([capture, synchronize])
    assert order == ["another device", "captured", "this device"]


def test_a_wrong_number_of_threads() -> None:
    """It is refused at the installation, and nothing is installed."""
    safecompile.uninstall()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SAFECOMPILE_CUDA_GRAPH_THREADS", "many")
        with pytest.raises(safecompile.SafeCompileError, match="'many', which is not a number"):
            safecompile.install()
    assert not safecompile.is_installed()

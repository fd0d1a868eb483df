"""The first launch of a kernel beside captures of CUDA graphs: the device comes before the kernel."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._inductor.cudagraph_trees

from safecompile._isolation import cuda_graphs, graph_trees
from tests.helpers.kernels import Driver, Parked, first_launch_in_a_thread, kernel
from tests.helpers.threads import run_threads

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def on_a_gpu(installed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_trees, "gates", {})


def gpu_kernel(driver: Driver) -> Any:
    made = kernel(driver)
    made.triton_meta |= {"device": 0, "device_type": "cuda"}
    made.precompile = lambda *_, **__: None  # which would look for a GPU
    made.compile_results = [made._precompile_config(config) for config in made.configs]
    made.launchers = [one.make_launcher() for one in made.compile_results]
    return made


def test_no_capture_begins_in_the_middle_of_a_tuning(on_a_gpu: None) -> None:
    """max-autotune beside a capture: torch synchronizes the device while it tunes, which would end the capture."""
    parked = Parked(1)
    driver = Driver(parked)
    made = gpu_kernel(driver)
    synchronized: list[float] = []
    driver.on_launch = lambda: synchronized.append(time_of(lambda: graph_trees.wait_for_captures(0)))
    capture = graph_trees.gate("capture", 0)
    with first_launch_in_a_thread(made, parked):
        assert not capture.acquire(timeout=0.2)
    assert capture.acquire(timeout=10)
    capture.release()
    assert max(synchronized) < 0.2


def time_of(function: Callable[[], Any]) -> float:
    began = time.monotonic()
    function()
    return time.monotonic() - began


def test_a_first_launch_waits_for_a_capture_before_it_takes_the_gate(on_a_gpu: None) -> None:
    """The device comes before the kernel: who captures and launches the same kernel goes on at once."""
    driver = Driver()
    made = gpu_kernel(driver)
    other = threading.Thread(target=lambda: made.run(stream=0), name="other", daemon=True)
    with graph_trees.gate("capture", 0):
        other.start()
        other.join(0.3)
        assert other.is_alive()
        assert not driver.trials
        made.run(stream=0)
        assert len(driver.trials) == 3
    other.join(30)
    assert not other.is_alive()
    assert len(driver.trials) == 3


def test_who_has_the_compile_lock_waits_for_no_capture_for_long(on_a_gpu: None) -> None:
    """Whoever captures may be waiting for the compile lock."""
    made = gpu_kernel(Driver())
    lock = torch._dynamo.convert_frame.compile_lock
    held, done = threading.Event(), threading.Event()

    def capture() -> None:
        with graph_trees.gate("capture", 0):
            held.set()
            assert done.wait(30)

    def compile_and_launch() -> None:
        assert held.wait(30)
        with lock:
            made.run(stream=0)
        done.set()

    run_threads([capture, compile_and_launch], timeout_s=30)


def test_a_warm_up_in_the_middle_of_a_first_launch_is_named(on_a_gpu: None) -> None:
    class Manager:
        def __init__(self) -> None:
            self.device_index = 0

    gated = cuda_graphs._gated(lambda _: None, ("use",))
    driver = Driver(lambda _: gated(Manager()))
    with pytest.raises(AssertionError, match="a device for a CUDA graph"):
        gpu_kernel(driver).run(stream=0)

"""Who waits for whom: threads that meet in compiled code, warm calls beside a compile, a compile that fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tests.helpers.compiles import Counting
from tests.helpers.threads import Hung, ParkedBackend, run_threads

#: The meeting place of the operator below, which a graph holds without a graph break.
_meeting: list[threading.Barrier] = []


@torch.library.custom_op("safecompile_tests::meet", mutates_args=())
def meet(x: torch.Tensor) -> torch.Tensor:
    _meeting[0].wait(20)
    return x.clone()


@meet.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.compiler.disable
def meet_eagerly(x: torch.Tensor) -> torch.Tensor:
    _meeting[0].wait(20)
    return x.clone()


@pytest.fixture(autouse=True)
def nobody_meets(installed: None) -> Iterator[None]:
    yield
    _meeting.clear()


def jobs_that_meet(meeting: Any, devices: list[str], shapes: list[int], *, shared: bool) -> list[Callable[[], Any]]:
    """Returns a job for each device and shape; all meet inside the compiled function."""
    _meeting[:] = [threading.Barrier(len(devices) * len(shapes))]

    def body(x: torch.Tensor) -> torch.Tensor:
        return meeting(x + 1) * 2

    compiled = torch.compile(body, backend="eager", dynamic=False)

    def job(device: str, shape: int) -> Any:
        function = compiled if shared else torch.compile(body, backend="eager", dynamic=False)
        return function(torch.zeros(shape, device=device))

    return [lambda d=d, s=s: job(d, s) for d in devices for s in shapes]


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("meeting", [meet, meet_eagerly])
@pytest.mark.parametrize("devices", [["cpu", "meta"], ["cpu"]])
@pytest.mark.parametrize("shapes", [[3], [3, 3], [3, 4, 5]])
def test_threads_that_meet_inside_the_first_call(meeting: Any, devices: Any, shapes: Any, shared: bool) -> None:
    """Threads wait for each other's compile, never for each other's first call: one or several for each device."""
    if meeting is meet and "meta" in devices:
        devices = ["cpu", "cpu"]  # the operator has no code for meta tensors but its fake
    for result in run_threads(jobs_that_meet(meeting, devices, shapes, shared=shared), 30):
        assert result.device.type == "meta" or (result == 2).all()


def test_a_lock_around_the_first_call_hangs() -> None:
    """Red twin: the lock that everyone writes first lets nobody meet."""
    lock = threading.Lock()

    def locked(job: Callable[[], Any]) -> Any:
        with lock:
            return job()

    jobs = jobs_that_meet(meet_eagerly, ["cpu"], [3, 4], shared=True)
    barrier = _meeting[0]
    threading.Timer(3, barrier.abort).start()
    with pytest.raises(threading.BrokenBarrierError):
        run_threads([lambda job=job: locked(job) for job in jobs], 30)


def test_a_warm_call_waits_for_no_compile() -> None:
    """While one thread compiles a function for another shape, calls that hit go on, however long it takes."""
    backend = ParkedBackend(parked=False)
    compiled = torch.compile(lambda x: x + 1, backend=backend, dynamic=False)
    warm = torch.zeros(3)
    compiled(warm)
    backend.park()
    leader = threading.Thread(target=compiled, args=(torch.zeros(4),), daemon=True)
    leader.start()
    backend.wait_parked()
    end, longest, calls = time.monotonic() + 3, 0.0, 0
    while (began := time.monotonic()) < end:
        compiled(warm)
        longest, calls = max(longest, time.monotonic() - began), calls + 1
    assert leader.is_alive()
    backend.release()
    leader.join(30)
    assert calls > 1000
    assert longest < 1.0
    assert backend.compiles == 2


def test_a_failing_backend_fails_its_own_thread_only() -> None:
    """A compile that raises for one thread is tried again by the next, which gets its result."""
    failed = threading.Event()
    good = Counting()

    def backend(graph_module: Any, example_inputs: Any) -> Any:
        if not failed.is_set():
            time.sleep(0.2)
            failed.set()
            raise ValueError("the first compile fails")
        return good(graph_module, example_inputs)

    compiled = torch.compile(lambda x: x + 1, backend=backend)

    def job() -> Any:
        try:
            return compiled(torch.zeros(2)).tolist()
        except Exception as error:  # what a failing backend raises has another type in each release
            return str(error)

    results = run_threads([job] * 8)
    assert results.count([1.0, 1.0]) == 7
    assert sum("the first compile fails" in one for one in results) == 1
    assert good.forward == 1


@pytest.mark.parametrize("error", [MemoryError("no memory"), RecursionError("too deep"), SystemExit(3)])
def test_whatever_a_backend_raises_leaves_the_engine_ready(error: BaseException) -> None:
    """Out of memory, too deep a recursion, the end of a thread: the next call compiles."""
    left = [error]

    def backend(graph_module: Any, example_inputs: Any) -> Any:
        if left:
            raise left.pop()
        return graph_module.forward

    compiled = torch.compile(lambda x: x + 1, backend=backend)
    with pytest.raises(BaseException, match=str(error)):
        compiled(torch.zeros(2))
    assert run_threads([lambda: compiled(torch.zeros(2)).tolist()] * 3) == [[1.0, 1.0]] * 3


def test_a_thread_may_die_while_it_compiles() -> None:
    """A leader that ends in its compile, with whatever exception, leaves the others to compile in its place."""
    backend = ParkedBackend(timeout_s=1.0)
    compiled = torch.compile(lambda x: x + 1, backend=backend)

    def dying() -> None:
        with pytest.raises(Exception, match="was not released"):
            compiled(torch.zeros(2))
        backend.release()

    def waiting() -> Any:
        backend.wait_parked()
        return compiled(torch.zeros(2)).tolist()

    try:
        assert run_threads([dying, waiting, waiting], 30)[1:] == [[1.0, 1.0]] * 2
    except Hung as error:
        raise AssertionError("the followers wait for a leader that has gone") from error

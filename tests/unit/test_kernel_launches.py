"""The first launch of a kernel, which several threads make at once: torch's own class, and a driver that only notes."""

from __future__ import annotations

import copy
import inspect
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch._inductor.cudagraph_trees
from torch._inductor.codegen.multi_kernel import MultiKernelCall
from torch._inductor.runtime import triton_heuristics
from torch.utils._python_dispatch import TorchDispatchMode

import safecompile
from safecompile._common import events, waits
from safecompile._isolation import graph_trees, kernel_gates
from tests.helpers.kernels import Driver, Tuner, kernel
from tests.helpers.nursery import in_forked_process
from tests.helpers.threads import run_threads

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def installed() -> Iterator[None]:
    safecompile.install()
    yield
    safecompile.uninstall()


class Parked:
    """Parks the first thread that tries the given configuration of a kernel."""

    def __init__(self, number: int) -> None:
        self.number, self.is_there, self.may_go = number, threading.Event(), threading.Event()

    def __call__(self, number: int) -> None:
        if number == self.number and not self.is_there.is_set():
            self.is_there.set()
            assert self.may_go.wait(30)


@contextmanager
def first_launch_in_a_thread(made: Any, parked: Parked) -> Iterator[None]:
    """One thread launches ``made`` and is parked in the middle; it ends with the block."""
    errors: list[BaseException] = []

    def launch() -> None:
        try:
            made.run(stream=0)
        except BaseException as error:
            errors.append(error)

    leader = threading.Thread(target=launch, name="leader", daemon=True)
    leader.start()
    assert parked.is_there.wait(30)
    try:
        yield
    finally:
        parked.may_go.set()
        leader.join(30)
    if errors:
        raise errors[0]


def launch_beside(made: Any, parked: Parked, patience_s: float = 0.5) -> bool:
    """Launches ``made`` while another thread is in the middle of its first launch; tells whether this one waited."""
    results: list[Any] = []
    follower = threading.Thread(target=lambda: results.append(made.run(stream=0)), name="follower", daemon=True)
    with first_launch_in_a_thread(made, parked):
        follower.start()
        follower.join(patience_s)
        waited = follower.is_alive()
    follower.join(30)
    assert results, "the follower raised"
    return waited


#: What is asked of a kernel, and which trial is the one to be parked in.
TUNED = [({}, 1, 3), ({"coordinate_descent_tuning": True}, -1, 1)]
if "combo_tuning_groups" in inspect.getsource(triton_heuristics.CachingAutotuner.run):
    TUNED.append(({"combo_tuning_groups": [1]}, -1, 1))


@pytest.mark.parametrize(("meta", "trial", "configs"), TUNED)
def test_a_kernel_is_tuned_once(side: str, meta: dict[str, Any], trial: int, configs: int) -> None:
    """Of threads that launch a new kernel at once, one tunes it. In plain torch all do, and unload what others run."""
    parked = Parked(trial)
    driver = Driver(parked)
    made = kernel(driver, configs, **meta)
    if side == "safe":
        assert launch_beside(made, parked)
        assert driver.trials == list(range(configs))[: configs if configs > 1 else 0] + [-1] * bool(meta)
        assert driver.launches[-2:] == [(configs - 1, "leader"), (configs - 1, "follower")]
    else:
        error = ""
        try:
            assert not launch_beside(made, parked)
        except AssertionError as raised:
            error = str(raised)
        assert len(driver.trials) > len(set(driver.trials)) or "load_kernel" in error


class Choice(MultiKernelCall):  # type: ignore[misc]
    """torch's own choice among kernels, but for the clock."""

    def __init__(self, driver: Driver, kernels: list[Any]) -> None:
        more = [{}] * ("arg_index" in inspect.signature(MultiKernelCall.__init__).parameters)
        super().__init__("multi_kernel_0", kernels, *more)
        self.driver, self.picked_kernel = driver, None

    def load_cache(self) -> None:
        """Finds nothing."""

    store_cache = load_cache

    def benchmark_sub_kernels(self, *_: Any, **__: Any) -> list[float]:
        self.driver.on_trial(-2)
        self.driver.trials.append(-2)
        return [2.0, 1.0]

    def _metrics_table_row(self, *_: Any) -> dict[str, Any]:
        return {}

    def _get_filtered_args(self, args: Any, _: int) -> Any:
        return args


def test_a_choice_among_kernels_is_made_once(side: str) -> None:
    parked = Parked(-2)
    driver = Driver(parked)
    made = Choice(driver, [kernel(driver, 1), kernel(driver, 1)])
    waited = launch_beside(made, parked)
    assert waited == (side == "safe")
    assert driver.trials == [-2] * (1 if side == "safe" else 2)
    assert type(made) is Choice


def test_many_threads_and_many_kernels(installed: None) -> None:
    """However many threads launch however many kernels, each is compiled, loaded and tried once."""
    driver = Driver(lambda _: time.sleep(0.001))
    kernels = [kernel(driver) for _ in range(8)]
    run_threads([lambda i=i: [kernels[(i + j) % 8].run(stream=0) for j in range(8)] for i in range(8)])
    assert sorted(driver.trials) == sorted([0, 1, 2] * 8)
    assert len(driver.compiled) == len(driver.loaded) == 24
    assert all(type(one) is Tuner for one in kernels)
    assert not kernel_gates._gates


def calls_of_a_launch(made: Any) -> list[str]:
    """Returns each function, of Python or C, that a launch calls."""
    calls: list[str] = []

    def note(frame: Any, event: str, arg: Any) -> None:
        if event in ("call", "c_call"):
            calls.append(f"{frame.f_code.co_filename}:{frame.f_code.co_name}" if event == "call" else arg.__qualname__)

    sys.setprofile(note)
    try:
        made.run(stream=0)
    finally:
        sys.setprofile(None)
    return [one for one in calls if "setprofile" not in one]


def test_a_later_launch_is_torchs_own(installed: None) -> None:
    """It calls what a launch in plain torch calls and nothing else, of an object that is as torch makes it."""
    mine = kernel(Driver())
    mine.run(stream=0)
    safecompile.uninstall()
    plain = kernel(Driver())
    plain.run(stream=0)
    safecompile.install()
    assert type(mine) is type(plain) is Tuner
    assert mine.run.__func__ is triton_heuristics.CachingAutotuner.run
    assert set(vars(mine)) == set(vars(plain))
    assert calls_of_a_launch(mine) == calls_of_a_launch(plain)


def test_threads_may_meet_in_a_launch(installed: None) -> None:
    """A kernel with one launcher from the beginning, as most have, is launched without a gate."""
    meet = threading.Barrier(2, timeout=30)
    made = kernel(Driver(on_launch=meet.wait), configs=1)
    made.precompile()
    run_threads([lambda: made.run(stream=0)] * 2)


def test_a_first_launch_that_raises_leaves_the_next_thread_to_it(installed: None) -> None:
    driver = Driver()
    made = kernel(driver)

    def broken(_: int) -> None:
        raise MemoryError

    driver.on_trial = broken
    with pytest.raises(MemoryError):
        made.run(stream=0)
    driver.on_trial = lambda _: None
    run_threads([lambda: made.run(stream=0)] * 2)
    assert driver.trials == [0, 1, 2]


def test_a_kernel_is_pickled_as_torchs(installed: None) -> None:
    """What goes into torch's caches and between its processes can be read without the library."""
    made = kernel(Driver())
    del made.driver
    text = pickle.dumps(made)
    assert b"safecompile" not in text
    copied = copy.deepcopy(made)
    assert type(copied) is type(made) is not Tuner
    safecompile.uninstall()
    assert type(pickle.loads(text)) is Tuner
    safecompile.install()
    assert type(pickle.loads(text)) is type(made)


def test_kernels_outlive_an_uninstall(installed: None) -> None:
    """One that was made with the library is tuned once all the same; one that is made later is torch's own."""
    parked = Parked(1)
    driver = Driver(parked)
    made = kernel(driver)
    safecompile.uninstall()
    assert type(kernel(Driver())) is Tuner
    assert launch_beside(made, parked)
    assert type(made) is Tuner


def test_a_kernel_that_is_compiled_once_more_is_not_tuned_by_two(installed: None) -> None:
    """A second graph may get the kernel of the first (2.13+), and precompile it in the middle of a launch."""
    parked = Parked(1)
    driver = Driver(parked)
    made = kernel(driver)
    compiler = threading.Thread(target=made.precompile, daemon=True)
    with first_launch_in_a_thread(made, parked):
        compiler.start()
        compiler.join(0.3)
        assert compiler.is_alive()
    compiler.join(30)
    assert driver.trials == [0, 1, 2]


def test_a_thread_that_has_a_gate_waits_for_no_second(installed: None) -> None:
    """Two threads, each in the first launch of one kernel, launch the other's: both go on."""
    inside = threading.Barrier(2, timeout=30)
    kernels: list[Any] = []

    def crosswise(other: int) -> Callable[[int], None]:
        def on_trial(number: int) -> None:
            if number == 0 and threading.current_thread().name == f"job-{1 - other}":
                inside.wait()
                kernels[other].run(stream=0)

        return on_trial

    kernels += [kernel(Driver(crosswise(1))), kernel(Driver(crosswise(0)))]
    for one in kernels:
        one.bench = lambda launcher, *_, one=one, **__: (one.driver.on_trial(launcher.config.number), 1.0)[1]
    run_threads([lambda i=i: kernels[i].run(stream=0) for i in range(2)], timeout_s=30)


def test_a_compile_in_the_middle_of_a_first_launch_is_named(installed: None) -> None:
    """Whoever has a kernel's gate takes no lock of the library's: a finalizer that compiles there is told so."""

    @torch.compile(backend="eager")
    def cold(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    driver = Driver(lambda _: cold(torch.ones(1)))
    with pytest.raises(AssertionError, match=r"first launch of a Triton kernel.*compile lock"):
        kernel(driver).run(stream=0)
    assert kernel_gates.held.count == 0


class Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_a_mode_of_the_users_may_wait_for_who_wants_the_kernel(installed: None, monkeypatch: Any) -> None:
    """Where torch calls code of the user's in a first launch, it may compile, and nobody waits for ever for it."""
    monkeypatch.setattr(kernel_gates, "HOOKS_AT_MOST_S", 0.2)
    monkeypatch.setattr(waits, "TICK_S", 0.05)
    done = threading.Event()
    driver = Driver()
    made = kernel(driver)

    @torch.compile(backend="eager")
    def cold(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def of_the_user(number: int) -> None:
        if threading.current_thread().name == "job-0" and number == 2:
            cold(torch.ones(1))
            assert done.wait(30)

    def follow() -> None:
        while len(driver.trials) < 2:
            time.sleep(0.01)
        try:
            made.run(stream=0)
        except AssertionError as error:  # as in plain torch: what this kernel is tuned to is not settled yet
            assert "load_kernel" in str(error)
        done.set()

    def lead() -> None:
        with Mode():
            made.run(stream=0)

    driver.on_trial = of_the_user
    run_threads([lead, follow], timeout_s=30)


def test_a_gate_that_nobody_holds_any_more_is_found_out(installed: None, monkeypatch: Any) -> None:
    """An exception from outside may strike between any two instructions; the lock it leaves behind holds up nobody."""
    monkeypatch.setattr(waits, "TICK_S", 0.05)
    made = kernel(Driver())
    gone_on = threading.Event()
    left: list[Any] = []

    def run() -> None:
        left.append(kernel_gates.gate(made, sys._getframe()))
        left[0].__enter__()

    def struck() -> None:
        run()
        gone_on.wait(30)
        left[0].__exit__(None, None, None)

    thread = threading.Thread(target=struck, daemon=True)
    thread.start()
    try:
        run_threads([lambda: made.run(stream=0)] * 3, timeout_s=30)
    finally:
        gone_on.set()
        thread.join(30)
    assert type(made) is Tuner


def test_a_long_wait_is_told(installed: None, monkeypatch: Any, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(waits, "TICK_S", 0.05)
    monkeypatch.setattr(events, "wait_warning_s", 0.1)
    parked = Parked(1)
    assert launch_beside(kernel(Driver(parked)), parked)
    (record,) = [one for one in caplog.records if "first launch" in one.getMessage()]
    assert "triton_stand_in" in record.getMessage()
    assert "in launch" in record.getMessage()


def test_a_forked_child_launches(installed: None) -> None:
    """The gate that another thread of the parent holds at the fork does not hold up the child."""
    result = in_forked_process(
        """
        import os, threading
        import safecompile; safecompile.install()
        from tests.helpers.kernels import Driver, kernel
        from tests.unit.test_kernel_launches import Parked, first_launch_in_a_thread
        parked = Parked(1)
        made = kernel(Driver(parked))
        with first_launch_in_a_thread(made, parked):
            pid = os.fork()
            if pid == 0:
                made.run(stream=0)
                os._exit(0)
            print("child", os.waitpid(pid, 0)[1])
        """
    )
    assert result.returncode == 0, result.stderr
    assert "child 0" in result.stdout


# --- beside a capture -----------------------------------------------------------------------------------------------


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
    from safecompile._isolation import cuda_graphs

    class Manager:
        def __init__(self) -> None:
            self.device_index = 0

    gated = cuda_graphs._gated(lambda _: None, ("use",))
    driver = Driver(lambda _: gated(Manager()))
    with pytest.raises(AssertionError, match="a device for a CUDA graph"):
        gpu_kernel(driver).run(stream=0)

"""The first launch of a kernel, which several threads make at once: torch's own class, and a driver that only notes."""

from __future__ import annotations

import contextlib
import copy
import gc
import inspect
import pickle
import sys
import threading
import time
import weakref
from typing import Any

import pytest
from torch._inductor.codegen.multi_kernel import MultiKernelCall
from torch._inductor.runtime import triton_heuristics

import safecompile
from safecompile._isolation import kernel_gates
from tests.helpers.kernels import Driver, Parked, Tuner, first_launch_in_a_thread, kernel, launch_beside
from tests.helpers.threads import run_threads

pytestmark = pytest.mark.timeout(120)


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
    assert not any(one in kernel_gates._gates for one in kernels)


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


def test_a_first_launch_keeps_no_inputs(installed: None) -> None:
    """What a kernel read is free once it has run, without the collector: CUDA graphs count what lives in their pool."""

    class Input:
        pass

    made, one = kernel(Driver(), 2), Input()
    still_there = weakref.ref(one)
    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(TypeError):  # how a launch ends is told elsewhere
            made.run(one, stream=0)
        del one
        assert still_there() is None
    finally:
        gc.enable()


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

"""Inductor's Triton kernels without Triton and without a GPU: torch's own class, and a driver that only notes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from torch._inductor.runtime import triton_heuristics
from torch._inductor.runtime.hints import DeviceProperties, HeuristicType


class Driver:
    """Notes what is loaded, tried and launched.

    Args:
        on_trial: called with the configuration's number (-1 for what follows the choice of one), in the thread that
            tries it.
        on_launch: called in each launch of the winner and in each trial.
    """

    def __init__(
        self, on_trial: Callable[[int], None] = lambda _: None, on_launch: Callable[[], object] = lambda: None
    ) -> None:
        self.on_trial, self.on_launch = on_trial, on_launch
        self.loaded: list[int] = []
        self.trials: list[int] = []
        self.launches: list[tuple[int, str]] = []
        self.compiled: list[int] = []


class Config:
    """Stands for Triton's configuration of a kernel."""

    def __init__(self, number: int) -> None:
        self.kwargs, self.num_warps, self.num_stages, self.pre_hook = {"XBLOCK": number}, 1, 1, None
        self.maxnreg = self.ir_override = None
        self.num_ctas, self.number = 1, number


class Binary:
    """Stands for a kernel that torch launches statically: loaded, run and unloaded."""

    def __init__(self, driver: Driver, config: Config) -> None:
        self.driver, self.config, self.hash, self.function = driver, config, f"{config.number:064x}", None

    def load(self) -> None:
        self.function = self.config.number
        self.driver.loaded.append(self.config.number)

    def run(self, *_: Any) -> None:
        assert self.function is not None, "load_kernel() must be called before run()"
        self.driver.on_launch()
        self.driver.launches.append((self.config.number, threading.current_thread().name))

    def close(self) -> None:
        self.function = None


class Result:
    """Stands for what torch gets from compiling one configuration."""

    def __init__(self, driver: Driver, config: Config) -> None:
        self.config, self.kernel = config, Binary(driver, config)

    def make_launcher(self) -> Any:
        self.kernel.load()
        scope: dict[str, Any] = {"runner": self.kernel.run}
        exec("def launcher(*args, stream): return runner(*args)", scope)
        launcher = scope["launcher"]
        launcher.config, launcher.n_regs, launcher.n_spills, launcher.shared = self.config, 1, 0, 0
        launcher.cache_hash, launcher.store_cubin, launcher._is_static = self.kernel.hash, False, True
        return launcher


class Tuner(triton_heuristics.CachingAutotuner):  # type: ignore[misc]
    """torch's own kernel, but for the compile of one configuration and the clock of its trial."""

    driver: Driver

    def _precompile_config(self, config: Config) -> Result:
        self.driver.compiled.append(config.number)
        return Result(self.driver, config)

    def coordinate_descent_tuning(self, launcher: Any, *args: Any, **_: Any) -> Any:
        return self._tuned_later(launcher, "found_by_coordesc")

    def _combo_sequential_autotune(self, launcher: Any, *args: Any, **_: Any) -> Any:  # torch 2.13+
        return self._tuned_later(launcher, "found_by_combo_autotune")

    def _tuned_later(self, launcher: Any, mark: str) -> Any:
        self.driver.on_trial(-1)
        self.driver.trials.append(-1)
        setattr(launcher.config, mark, True)
        return launcher

    def bench(self, launcher: Any, *args: Any, **_: Any) -> float:
        self.driver.on_trial(launcher.config.number)
        self.driver.trials.append(launcher.config.number)
        launcher(*args, stream=0)
        return 1.0 / (1 + launcher.config.number)  # the last is the best


def kernel(driver: Driver, configs: int = 3, cls: type[Any] = Tuner, **inductor_meta: Any) -> Any:
    """Returns a kernel that is not compiled yet, with some configurations to try."""
    device = DeviceProperties(type="cpu", index=None, multi_processor_count=1, cc=0)  # type: ignore[arg-type]
    function = SimpleNamespace(
        __name__="triton_stand_in", fn=kernel, arg_names=["XBLOCK"], constexprs=[], src="", repr=str, hash="0" * 64
    )
    made = cls(
        function,
        triton_meta={"device": device, "signature": {}, "constants": {}},
        configs=[Config(number) for number in range(configs)],
        save_cache_hook=None,
        mutated_arg_names=[],
        optimize_mem=True,
        heuristic_type=HeuristicType.POINTWISE,
        size_hints={"x": 8},
        inductor_meta={"kernel_name": "triton_stand_in", **inductor_meta},
    )
    made.driver = driver
    return made


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

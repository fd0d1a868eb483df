"""The gate of a kernel's first launch: a leaf, that a thread can leave, and that is found out if it is left behind."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._inductor.cudagraph_trees
from torch.utils._python_dispatch import TorchDispatchMode

from safecompile._common import events, waits
from safecompile._isolation import kernel_gates
from tests.helpers.kernels import Driver, Parked, Tuner, kernel, launch_beside
from tests.helpers.nursery import in_forked_process
from tests.helpers.threads import run_threads

pytestmark = pytest.mark.timeout(120)


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
    is_there, gone_on = threading.Event(), threading.Event()
    left: list[Any] = []

    def run() -> None:
        left.append(kernel_gates.gate(made, sys._getframe()))
        left[0].__enter__()

    def struck() -> None:
        run()
        is_there.set()
        gone_on.wait(60)
        left[0].__exit__(None, None, None)

    thread = threading.Thread(target=struck, daemon=True)
    thread.start()
    assert is_there.wait(30)
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
        from tests.helpers.kernels import Parked, first_launch_in_a_thread
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

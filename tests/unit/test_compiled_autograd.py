"""Compiled autograd, turned on in one thread: torch has one switch for the process."""

from __future__ import annotations

import logging
import os
import threading
from typing import Any

import pytest
import torch
import torch._dynamo
from torch._dynamo import compiled_autograd
from torch._dynamo.backends.common import aot_autograd

from tests.helpers.nursery import in_forked_process
from tests.helpers.threads import ParkedBackend, run_threads


class Compiler:
    """A compiler of backward graphs that notes the threads it is called in, and runs them as they are."""

    def __init__(self) -> None:
        self.threads: list[str] = []

    def __call__(self, graph_module: Any) -> Any:
        self.threads.append(threading.current_thread().name)
        return graph_module


class Parked:
    """A compiler of backward graphs that waits in the first until it is let go on."""

    def __init__(self) -> None:
        self.inside, self.leave = threading.Event(), threading.Event()

    def __call__(self, graph_module: Any) -> Any:
        self.inside.set()
        assert self.leave.wait(30)
        return graph_module


def gradient(rows: int = 4, hook: Any = None) -> torch.Tensor:
    x = torch.ones(rows, requires_grad=True)
    y = x * 2
    if hook is not None:
        y.register_hook(hook)
    y.sum().backward()
    return x.grad


@pytest.fixture(autouse=True)
def off_again():
    """Takes away what plain torch leaves on."""
    yield
    for name, value in (("depth", 0), ("active_disable_ctx", False)):
        if name in vars(compiled_autograd):  # it is not while the library is installed
            setattr(compiled_autograd, name, value)
    compiled_autograd.reset()


def test_it_is_on_for_its_own_thread(side):
    """A thread that has not turned it on runs its backward without it, whatever another one has on."""
    compiler, on, done = Compiler(), threading.Event(), threading.Event()

    def with_it() -> None:
        with compiled_autograd._enable(compiler):
            on.set()
            assert done.wait(30)
            assert compiled_autograd.compiled_autograd_enabled
            assert torch.equal(gradient(), torch.full((4,), 2.0))

    def without() -> bool:
        assert on.wait(30)
        try:
            assert torch.equal(gradient(3), torch.full((3,), 2.0))
            return bool(compiled_autograd.compiled_autograd_enabled)
        finally:
            done.set()

    _, seen = run_threads([with_it, without])
    assert compiler.threads[0] == ("job-0" if side == "safe" else "job-1")
    assert seen is (side == "plain")


def test_a_compile_of_another_thread_does_not_turn_it_off(side):
    """AOTAutograd turns it off for the time of a compile, and puts back afterwards what it found."""
    compiler, parked = Compiler(), ParkedBackend()
    function = torch.compile(lambda x: x.sin() + 1, backend=aot_autograd(fw_compiler=parked))
    on, off = threading.Event(), threading.Event()

    def with_it() -> None:
        with compiled_autograd._enable(compiler):
            on.set()
            parked.wait_parked()
            gradient()
        off.set()
        parked.release()

    def compiles() -> None:
        assert on.wait(30)
        with torch.no_grad():
            function(torch.zeros(3))

    run_threads([with_it, compiles])
    assert off.is_set()
    assert compiler.threads == (["job-0"] if side == "safe" else [])
    gradient(5)
    left_on = len(compiler.threads) > 1 or (side == "plain" and compiler.threads != [])
    assert left_on is (side == "plain")


def test_two_threads_leave_it_in_the_order_in_which_they_entered(side):
    compilers, steps = [Compiler(), Compiler()], [threading.Event() for _ in range(3)]

    def first() -> None:
        with compiled_autograd._enable(compilers[0]):
            steps[0].set()
            assert steps[1].wait(30)
        steps[2].set()

    def second() -> None:
        assert steps[0].wait(30)
        with compiled_autograd._enable(compilers[1]):
            steps[1].set()
            assert steps[2].wait(10)
            gradient()

    if side == "safe":
        run_threads([first, second])
        assert compilers[1].threads == ["job-1"]
    else:
        with pytest.raises((AssertionError, RuntimeError)):
            run_threads([first, second])
            assert compilers[1].threads == ["job-1"], "switched off by the other thread"


def test_it_is_turned_on_beside_a_backward(side):
    """Up to torch 2.7 that raises, and every later backward of the process does ("COMPILED_AUTOGRAD_POISON")."""
    if side == "plain":
        script = "import tests.unit.test_compiled_autograd as t; t.turned_on_beside_a_backward()"
        poisoned = not hasattr(compiled_autograd, "depth")
        assert (in_forked_process(script).returncode != 0) is poisoned
        return
    turned_on_beside_a_backward()


def turned_on_beside_a_backward() -> None:
    inside, leave = threading.Event(), threading.Event()

    def hook(_: torch.Tensor) -> None:
        inside.set()
        assert leave.wait(30)

    def turns_it_on() -> None:
        assert inside.wait(30)
        try:
            with compiled_autograd._enable(Compiler()):
                assert torch.equal(gradient(), torch.full((4,), 2.0))
        finally:
            leave.set()

    run_threads([lambda: gradient(hook=hook), turns_it_on])
    gradient()


def test_two_compiled_backwards_at_once(side, caplog):
    """Torch runs one at a time and raises for the second; here that one runs without, and a WARNING says so."""
    compiler, parked = Compiler(), Parked()
    inside, leave = parked.inside, parked.leave

    def first() -> torch.Tensor:
        with compiled_autograd._enable(parked):
            return gradient(6)

    def second() -> torch.Tensor:
        assert inside.wait(30)
        try:
            with compiled_autograd._enable(compiler):
                return gradient(7)
        finally:
            leave.set()

    if side == "plain":
        with pytest.raises(RuntimeError):
            run_threads([first, second])
        return
    from safecompile._common import events

    events._told_of.discard("compiled autograd")
    with caplog.at_level(logging.WARNING, "safecompile"):
        one, two = run_threads([first, second])
    assert torch.equal(one, torch.full((6,), 2.0))
    assert torch.equal(two, torch.full((7,), 2.0))
    assert compiler.threads == []
    assert sum("without compiled autograd" in r.getMessage() for r in caplog.records) == 1


def test_a_reset_beside_a_compiled_backward():
    """What a running backward has compiled is thrown away when it has ended: torch writes to it until then."""
    from safecompile import install
    from safecompile._isolation import compiled_autograd as isolated

    install()
    parked = Parked()
    inside, leave = parked.inside, parked.leave

    def backward() -> torch.Tensor:
        with compiled_autograd._enable(parked):
            return gradient(8)

    def resets() -> None:
        assert inside.wait(30)
        try:
            compiled_autograd.reset()
            assert len(isolated._afterwards) == 1
        finally:
            leave.set()

    one, _ = run_threads([backward, resets])
    assert torch.equal(one, torch.full((8,), 2.0))
    assert not isolated._afterwards


def test_beside_eager_backwards():
    """Two threads train with it and two without, for a while: each gets what it asked for, and right gradients."""
    from safecompile import install

    install()
    compiler, ended = Compiler(), []

    def with_it() -> None:
        try:
            for n in range(60):
                with compiled_autograd._enable(compiler):
                    assert torch.equal(gradient(10 + n % 5), torch.full((10 + n % 5,), 2.0))
        finally:
            ended.append(1)

    def without() -> None:
        while len(ended) < 2:
            assert torch.equal(gradient(10), torch.full((10,), 2.0))

    run_threads([with_it, with_it, without, without])
    assert not {"job-2", "job-3"} & set(compiler.threads)
    gradient(11)
    assert "MainThread" not in compiler.threads


def test_by_the_setting_in_several_threads():
    """``torch._dynamo.config.compiled_autograd``: a step with its backward, compiled by Inductor, in four threads."""
    from safecompile import install

    install()
    weight = torch.linspace(-1, 1, 64).reshape(8, 8)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return (x @ weight).tanh().square().sum()

    with torch._dynamo.config.patch(compiled_autograd=True):

        @torch.compile
        def step(x: torch.Tensor) -> None:
            loss(x).backward()

    def train(seed: int) -> None:
        for n in range(3):
            given = torch.randn(4, 8, generator=torch.Generator().manual_seed(10 * seed + n))
            x, y = given.clone().requires_grad_(), given.clone().requires_grad_()
            step(x)
            loss(y).backward()
            torch.testing.assert_close(x.grad, y.grad)

    run_threads([lambda seed=seed: train(seed) for seed in range(4)], timeout_s=120)


def test_what_was_compiled_before_an_installation_or_an_uninstallation():
    """It refers to the module's variables, which the two move: torch compiles it again."""
    from safecompile import install, uninstall

    seen: list[bool] = []

    def compiler(graph_module: Any) -> Any:
        def run(*args: Any) -> Any:
            seen.append(bool(compiled_autograd.in_compiled_autograd_region))
            return graph_module(*args)

        return run

    uninstall()
    for change in (lambda: None, install, uninstall, install):
        change()
        with compiled_autograd._enable(compiler):
            assert torch.equal(gradient(9), torch.full((9,), 2.0))
    assert seen == [True] * 4


def test_no_uninstallation_while_it_is_on():
    from safecompile import InstallError, install, is_installed, uninstall

    install()
    on, done = threading.Event(), threading.Event()

    def with_it() -> None:
        with compiled_autograd._enable(Compiler()):
            with pytest.raises(InstallError, match="compiled autograd on"):
                uninstall()
            on.set()
            assert done.wait(30)

    def without() -> None:
        assert on.wait(30)
        try:
            with pytest.raises(InstallError, match="compiled autograd on"):
                uninstall(timeout_s=0.1)
        finally:
            done.set()

    run_threads([with_it, without])
    assert is_installed()
    uninstall()


def test_an_installation_in_a_backward_that_is_compiled() -> None:
    """There the switch is off for the moment, while torch is in the middle of turning it: it is left alone."""
    done = in_forked_process(
        """
        import torch, safecompile
        from torch._dynamo import compiled_autograd
        leaf = torch.ones(2, requires_grad=True)
        y = leaf * 2
        y.register_hook(lambda gradient: (safecompile.install(), gradient)[1])
        with compiled_autograd._enable(lambda graph: graph):
            y.sum().backward()
        assert leaf.grad.tolist() == [2, 2]
        """
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_a_child_forked_while_another_thread_is_in_the_window():
    """Its first backward runs, without what the parent's thread was doing."""
    done = in_forked_process(
        """
        import os, signal, threading
        import safecompile.patch_all
        import torch, torch._dynamo
        from torch._dynamo import compiled_autograd
        from safecompile._isolation import compiled_autograd as isolated

        def gradient():
            x = torch.ones(3, requires_grad=True)
            (x * 2).sum().backward()
            return x.grad.tolist()

        with compiled_autograd._enable(lambda graph: graph):
            gradient()
        held, done = threading.Event(), threading.Event()

        def hold():
            with isolated._window:
                held.set()
                done.wait(30)

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait(30)
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            os._exit(0 if gradient() == [2.0] * 3 else 1)
        status = os.waitpid(child, 0)[1]
        done.set()
        thread.join()
        assert status == 0, status
        """
    )
    assert done.returncode == 0, done.stderr

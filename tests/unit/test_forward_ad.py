"""Forward-mode AD and ``jvp`` in several threads: each has its own level.

Each scene is the same with the library and in plain torch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.autograd.forward_ad as fw

import safecompile
from tests.helpers.threads import ParkedBackend, run_threads

from .test_switches import Pause, beside

# torch calls it itself for jvp (2.14+).
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")

X, TANGENT = torch.tensor([0.5, 1.0, 2.0]), torch.tensor([1.0, 2.0, 3.0])
WANTED = (X.cos() * TANGENT).tolist()


def by_jvp(pause: Pause = lambda: None) -> list[float]:
    def function(x: torch.Tensor) -> torch.Tensor:
        pause()
        return x.sin()

    return torch.func.jvp(function, (X,), (TANGENT,))[1].tolist()


def by_level(pause: Pause = lambda: None) -> list[float]:
    with fw.dual_level():
        dual = fw.make_dual(X, TANGENT)
        pause()
        return fw.unpack_dual(dual.sin()).tangent.tolist()


@pytest.mark.parametrize("first", [by_jvp, by_level])
@pytest.mark.parametrize("second", [by_jvp, by_level])
@pytest.mark.parametrize("crossing", [False, True])
def test_two_levels_at_once(side, first: Callable[..., Any], second: Callable[..., Any], crossing: bool):
    """A level that ends inside of another thread's, or after it, takes no tangents away."""
    try:
        results = beside(first, second if crossing else lambda _: second())
    except RuntimeError as error:
        results = [str(error)]
    finally:
        if side == "plain":
            clean_up()
    counted = first is second is by_jvp and not crossing  # torch counts jvp inside jvp, whatever the thread
    assert (results == [WANTED, WANTED]) == (side == "safe" or counted), results
    assert (fw._current_level, torch.func.jvp(torch.sin, (X,), (TANGENT,))[1].tolist()) == (-1, WANTED)


def clean_up() -> None:
    """Ends what levels that overlap leave behind in plain torch."""
    fw._current_level = -1
    torch._functorch.eager_transforms.JVP_NESTING = 0
    with contextlib.suppress(RuntimeError):
        torch._C._exit_dual_level(level=0)


def test_a_compile_of_jvp_beside_jvp(side):
    """A function with jvp in it is compiled once, and right, beside another thread's jvp; a warm call stays warm."""
    backend = ParkedBackend(parked=False)

    options = {"backend": backend, "fullgraph": True}
    warm = torch.compile(lambda x, t: torch.func.jvp(lambda y: y.sin(), (x,), (t,))[1], **options)
    cold = torch.compile(lambda x, t: torch.func.jvp(lambda y: 1 * y.sin(), (x,), (t,))[1], **options)
    warm(X, TANGENT)
    before = backend.compiles

    def calls(_: Pause) -> list[Any]:
        return [warm(X, TANGENT).tolist(), backend.compiles - before, cold(X, TANGENT).tolist()]

    try:
        seen = beside(by_jvp, calls)
    except Exception as error:
        seen = [str(error)]
    finally:
        if side == "plain":
            clean_up()
    assert (seen == [WANTED, [WANTED, 0, WANTED]]) == (side == "safe"), seen
    assert side == "plain" or backend.compiles == 2


def test_many_transforms_at_once(installed):
    """jvp, jacfwd, hessian and plain levels, eager and compiled, in threads."""
    compiled = torch.compile(lambda x, t: torch.func.jvp(lambda y: y.sin(), (x,), (t,))[1], backend="aot_eager")

    def repeats(function: Callable[[], torch.Tensor], wanted: torch.Tensor) -> Callable[[], bool]:
        return lambda: all(torch.allclose(function(), wanted) for _ in range(20))

    diagonal = torch.diag(X.cos())
    jobs = [
        repeats(lambda: torch.tensor(by_jvp()), X.cos() * TANGENT),
        repeats(lambda: torch.tensor(by_level()), X.cos() * TANGENT),
        repeats(lambda: torch.func.jacfwd(torch.sin)(X), diagonal),
        repeats(lambda: torch.func.hessian(lambda x: -x.cos().sum())(X), diagonal),
        repeats(lambda: compiled(X, TANGENT), X.cos() * TANGENT),
    ]
    assert run_threads(jobs) == [True] * 5


def test_a_second_level_of_one_thread_is_refused(side):
    """What torch refuses in one thread it still refuses: a level in a level, and the end of what has not begun."""
    with fw.dual_level(), pytest.raises(RuntimeError, match="Nested forward mode AD"):
        fw.enter_dual_level()
    with pytest.raises(RuntimeError):
        fw.exit_dual_level()
    with pytest.raises(RuntimeError):
        torch._C._exit_dual_level(level=0)
    assert by_level() == WANTED


def test_a_compiled_function_that_is_called_inside_of_a_level(side):
    """What was compiled outside of a level is compiled at most once more inside, and each is used in its place."""
    backend = ParkedBackend(parked=False)
    compiled = torch.compile(lambda x: x * 2 if fw.unpack_dual(x).tangent is None else x, backend=backend)

    def inside() -> None:
        with fw.dual_level():
            compiled(fw.make_dual(X, TANGENT))

    counts = []
    for call in (lambda: compiled(X), inside, lambda: compiled(X), inside):
        call()
        counts.append(backend.compiles)
    assert counts in ([1, 2, 2, 2], [1, 1, 1, 1])  # the second: 2.15, where no guard reads the level


def test_an_installation_inside_of_a_level(side):
    """Who installs or uninstalls in a level, or in a ``jvp``, is still in it, and afterwards in none."""

    def exchange() -> None:
        if side == "safe":
            safecompile.uninstall() if safecompile.is_installed() else safecompile.install()

    def function(x: torch.Tensor) -> torch.Tensor:
        exchange()
        return torch.func.jvp(torch.sin, (x,), (TANGENT,))[1]

    def twice() -> list[float]:
        return torch.func.jvp(function, (X,), (TANGENT,))[1].tolist()

    wanted = (-X.sin() * TANGENT * TANGENT).tolist()
    for _ in range(2):  # out, and in again
        with fw.dual_level():
            dual = fw.make_dual(X, TANGENT)
            exchange()
            again = fw.make_dual(X, TANGENT)
            assert [fw.unpack_dual(one.sin()).tangent.tolist() for one in (dual, again)] == [WANTED] * 2
        assert fw._current_level == -1
        assert by_jvp() == WANTED
    for _ in range(2):
        assert twice() == pytest.approx(wanted)
        assert torch._functorch.eager_transforms.JVP_NESTING == 0
        assert by_level() == WANTED

"""set_stance: one thread sees what it sees in plain torch, in any order. Of several, each has its own."""

from __future__ import annotations

import contextlib
import gc
import pickle
import random
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
from torch._dynamo import eval_frame

from safecompile import install, uninstall
from tests.helpers.threads import ParkedBackend, run_threads

KINDS = ("default", "force_eager", "eager_on_recompile", "fail_on_recompile")


@pytest.fixture(autouse=True)
def default_stance() -> Iterator[None]:
    """Begins and ends with torch's own default."""
    standing = eval_frame._stance
    yield
    gc.collect()
    eval_frame._stance = standing


def seen() -> str:
    """Returns the stance that a compiled call of this thread finds."""
    return str(eval_frame._stance.stance)


def walk(seed: int, steps: int = 40) -> list[str]:
    """Does what a seed says: contexts made, dropped, entered and left in any order, plain calls, decorated calls."""
    told: list[str] = []
    choose = random.Random(seed)
    made: list[Any] = []
    entered: list[Any] = []

    def decorated() -> None:
        told.append(seen())

    for _ in range(steps):
        kind, step = choose.choice(KINDS), choose.randrange(9)
        if step == 0:
            torch.compiler.set_stance(kind)
        elif step == 1:
            made.append(torch.compiler.set_stance(kind))
        elif step == 2 and made:
            del made[choose.randrange(len(made))]
        elif step in (3, 4) and made:
            entered.append(choose.choice(made))
            entered[-1].__enter__()
        elif step in (5, 6) and entered:
            entered.pop(choose.choice((-1, choose.randrange(len(entered))))).__exit__(None, None, None)
        elif step == 7:
            with torch.compiler.set_stance(kind), contextlib.suppress(ZeroDivisionError):
                told.append(seen())
                raise ZeroDivisionError
        else:
            torch.compiler.set_stance(kind)(decorated)()
        if choose.random() < 0.5:
            told.append(seen())
    while entered:
        entered.pop().__exit__(None, None, None)
        told.append(seen())
    made.clear()
    told.append(seen())
    eval_frame._set_stance(eval_frame.DynamoStance())
    return told


def test_one_thread_sees_what_it_sees_in_plain_torch() -> None:
    """A hundred random walks give the same stances, step by step, with the library and without."""
    uninstall()
    plain = [walk(seed) for seed in range(100)]
    install()
    assert [walk(seed) for seed in range(100)] == plain
    assert type(eval_frame._stance) is eval_frame.DynamoStance  # nothing answers by thread any more


def elsewhere(function: Any) -> Any:
    """Returns what ``function`` returns in another thread."""
    return run_threads([function])[0]


def test_a_context_left_in_another_thread_leaves_nothing_behind(side: str) -> None:
    """One thread enters, another leaves, a third runs, also with the identity of the first."""

    @contextlib.contextmanager
    def eager() -> Iterator[None]:
        with torch.compiler.set_stance("force_eager"):
            yield

    for make in (eager, lambda: torch.compiler.set_stance("force_eager")):
        context = make()
        elsewhere(context.__enter__)
        elsewhere(lambda context=context: context.__exit__(None, None, None))
        assert [elsewhere(seen) for _ in range(3)] == ["default"] * 3, side
        assert seen() == "default"
    assert type(eval_frame._stance) is eval_frame.DynamoStance


@pytest.mark.usefixtures("installed")
def test_a_context_made_in_one_thread_and_entered_in_another_is_a_context() -> None:
    """The one who has made it sees what it saw before, once another has entered it."""
    context = torch.compiler.set_stance("force_eager")

    def use() -> str:
        with context:
            return seen()

    assert (elsewhere(use), seen(), elsewhere(seen)) == ("force_eager", "default", "default")


@pytest.mark.parametrize("looks", ["its own", "another"])
def test_a_call_whose_result_is_kept_is_the_process(side: str, looks: str) -> None:
    """``c.s = s = set_stance(…)`` acts at once in its own thread, and in the others."""

    class Keeper:
        s: Any = None

    Keeper.s = kept = torch.compiler.set_stance("force_eager")
    if looks == "its own":
        assert seen() == "force_eager", side
    assert (elsewhere(seen), seen()) == ("force_eager", "force_eager")
    del kept, Keeper.s
    assert elsewhere(seen) == "force_eager"
    torch.compiler.set_stance("default")


@pytest.mark.usefixtures("installed")
def test_a_kept_call_of_a_thread_that_has_ended_is_the_process() -> None:
    """The thread that sets a stance for the process may end before anybody looks."""
    kept: list[Any] = []
    elsewhere(lambda: kept.append(torch.compiler.set_stance("force_eager")))
    assert seen() == "force_eager"
    torch.compiler.set_stance("default")


def test_between_construction_and_entry_no_other_thread_sees_it(side: str) -> None:
    """A compiled call of another thread in that moment waits for microseconds and sees the process's stance."""
    made, enters, looked = threading.Event(), threading.Event(), threading.Event()
    told: list[str] = []

    def first() -> None:
        context = torch.compiler.set_stance("force_eager")
        made.set()
        assert enters.wait(30)
        with context:
            assert looked.wait(30)

    def second() -> None:
        assert made.wait(30)
        standing = eval_frame._stance
        enters.set()
        told.append(str(standing.stance))
        looked.set()

    run_threads([first, second])
    assert told == ["default" if side == "safe" else "force_eager"]
    assert seen() == "default"


def test_two_threads_share_one_context_object(side: str) -> None:
    """Each leaves its own; the third sees nothing of it."""
    context = torch.compiler.set_stance("force_eager")
    both, told, out = threading.Barrier(3), [], threading.Barrier(3)

    def inside() -> None:
        with context:
            both.wait(30)
            told.append(seen())
            out.wait(30)

    def outside() -> None:
        both.wait(30)
        told.append(seen())
        out.wait(30)

    run_threads([inside, inside, outside])
    assert sorted(told) == ["default" if side == "safe" else "force_eager", "force_eager", "force_eager"]
    assert seen() == "default"


def test_a_thread_that_ends_inside_takes_its_stance_with_it(side: str) -> None:
    """Nobody ever leaves the context: the stance goes with thread and context, and reads are torch's own again."""
    elsewhere(lambda: torch.compiler.set_stance("force_eager").__enter__())
    gc.collect()
    assert seen() == ("default" if side == "safe" else "force_eager")
    if side == "safe":
        assert type(eval_frame._stance) is eval_frame.DynamoStance
    torch.compiler.set_stance("default")


def test_a_decorated_function_in_many_threads(side: str) -> None:
    """Each call is eager, and nothing stays."""
    backend = ParkedBackend(parked=False)
    compiled = torch.compile(lambda x: x + 1, backend=backend)

    @torch.compiler.set_stance("force_eager")
    def eager() -> Any:
        return compiled(torch.ones(2)).tolist()

    assert run_threads([eager] * 8) == [[2.0, 2.0]] * 8
    if side == "safe":
        assert seen() == "default"
    assert side == "plain" or backend.compiles == 0


@pytest.mark.usefixtures("installed")
def test_a_context_can_be_pickled_by_a_process_without_the_library() -> None:
    """What the library keeps in a context object is not in its pickle."""
    context = torch.compiler.set_stance("default")
    with context:
        assert b"safecompile" not in pickle.dumps(context)


def lines_of(enter: bool) -> int:
    """Returns how many lines of Python one block runs, in a function of a thousand lines."""
    body = "".join(f"    x = {i}\n" for i in range(1000))
    block = "    with set_stance('force_eager'):\n        pass\n" if enter else "    pass\n"
    space: dict[str, Any] = {"set_stance": torch.compiler.set_stance}
    exec(f"def large(x):\n    if x:\n        return\n{body}def block():\n  if 1:\n{block}", space)
    exec(f"def large(skip=True):\n  if not skip:\n{body}{block}", space)
    count = 0

    def trace(*_: Any) -> Any:
        nonlocal count
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        space["large"]()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.usefixtures("installed")
def test_a_block_costs_the_same_in_a_large_function() -> None:
    """Nothing looks through the code of the function in which a block stands."""
    lines_of(enter=True)
    assert lines_of(enter=True) - lines_of(enter=False) < 200

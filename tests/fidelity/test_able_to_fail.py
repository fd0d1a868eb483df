"""The harness can fail: each known kind of fault, brought back, is told in the part of the record where it belongs."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator

import pytest

from . import companions
from .faults import TOLD_BY
from .marks import Mark, judged
from .runner import PLAIN, Runner, broken, differences
from .table import ALONE, COLUMNS, IDLE, programs


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner() as made:
        yield made


@pytest.mark.parametrize("fault", TOLD_BY)
def test_a_fault_is_told(runner: Runner, fault: str) -> None:
    """A program with a fault around it differs from the same program without."""
    program = programs()["errors/in_compiled_code[raises]" if fault == "frames" else "call_forms/called[function]"]
    if fault == "hang":
        program = dataclasses.replace(program, timeout_s=3.0)
    found = differences(runner.alone(program), runner.run(program, PLAIN, ALONE, fault))
    assert any(line.startswith(TOLD_BY[fault]) for line in found), found


@pytest.mark.parametrize("fault", ["leaves early", "crash", "error", "hang"])
def test_a_program_that_does_not_end_in_plain_torch_is_broken(runner: Runner, fault: str) -> None:
    """What does not come to its end on both sides is not equal, but a program that can't be judged."""
    program = dataclasses.replace(programs()["call_forms/called[function]"], timeout_s=3.0)
    assert broken(runner.run(program, PLAIN, ALONE, fault))


def test_the_same_program_twice_is_equal(runner: Runner) -> None:
    """Nothing that is compared is another by chance."""
    program = programs()["call_forms/called[function]"]
    assert not differences(runner.alone(program), runner.run(program, PLAIN, ALONE))


def test_alone_means_alone() -> None:
    """A process that has another thread already is no place for a program."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        for column in (ALONE, IDLE):
            with pytest.raises(AssertionError, match="threads before the program"):
                companions.start(column)
    finally:
        over.set()
        thread.join()


def test_a_mark_is_strict() -> None:
    """A marked cell that is equal is an error; one that differs is not."""
    mark = Mark(("a/b[*]",), "a fault")
    assert mark.covers("a/b[c]", COLUMNS[0], "2.13.0")
    assert not mark.covers("a/bc", COLUMNS[0], "2.13.0")
    assert judged(mark, "equal", []) == ("marked, but equal", ["a fault"])
    assert judged(mark, "differs", ["x"]) == ("marked", ["a fault", "x"])
    assert judged(None, "differs", ["x"]) == ("differs", ["x"])
    assert judged(mark, "broken", ["x"]) == ("broken", ["x"])

"""Some of the programs, in three columns; ``python -m tests.fidelity`` runs them all, in each."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.helpers.threads import ROOT

from .marks import MARKS, mark_of
from .runner import Runner, cell, release
from .table import ALONE, COLUMNS, FOREIGN, IDLE, RELEASES, Program, programs

QUICK = (ALONE, IDLE, FOREIGN)


class Differs(AssertionError):
    """Plain torch and the library do not do the same."""


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner() as made:
        yield made


def _cells() -> Iterator[object]:
    if release() not in RELEASES:
        return
    for program in programs().values():
        for column in QUICK if program.quick else ():
            mark = mark_of(program.name, column, release())
            marks = [pytest.mark.xfail(strict=True, raises=Differs, reason=mark.reason)] if mark else []
            marks += [pytest.mark.slow] if column != ALONE else []
            yield pytest.param(program, column, id=f"{program.name}-{column}", marks=marks)


@pytest.mark.parametrize(("program", "column"), list(_cells()))
def test_the_library_is_not_noticed(runner: Runner, program: Program, column: str) -> None:
    """A program does the same with the library as without."""
    word, found = cell(runner, program, column)
    assert word != "broken", found
    if word == "differs":
        raise Differs("\n".join(found))


def test_size_of_the_table() -> None:
    """At least 150 programs, about thirty of them in the default test run."""
    table = programs().values()
    assert len(table) >= 150
    assert 25 <= sum(program.quick for program in table) <= 40
    assert len({program.name.partition("/")[0] for program in table}) >= 15


@pytest.mark.parametrize("mark", MARKS, ids=lambda mark: mark.reason)
def test_marks(mark) -> None:
    """Each pattern of a mark names programs; columns and releases are known; an exemption is a known issue."""
    for pattern in mark.programs:
        assert any(mark.matches(pattern, name) for name in programs()), pattern
    assert set(mark.columns) <= set(COLUMNS)
    assert set(mark.releases) <= set(RELEASES)
    headings = re.findall("^## (.*)$", (ROOT / "docs" / "known-issues.md").read_text(), re.MULTILINE)
    assert not mark.known_issue or mark.known_issue in headings


def test_no_cell_has_two_marks() -> None:
    """A cell has one mark, so that one change takes it away."""
    for name, program in programs().items():
        for column in program.columns:
            for one in RELEASES:
                mark_of(name, column, one)

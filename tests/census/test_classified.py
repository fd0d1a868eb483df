"""The classification itself: each place once, with a reader; each class with what it names."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.helpers.threads import ROOT

from .__main__ import RESULTS, stale
from .classified import HARMLESS, ISOLATED, KNOWN_ISSUES, every_place
from .runner import scene_names


def test_each_place_is_in_one_class() -> None:
    """So that one change moves it."""
    assert not [place for place, count in Counter(every_place()).items() if count > 1]


@pytest.mark.parametrize("table", [ISOLATED, HARMLESS, KNOWN_ISSUES])
def test_each_place_has_a_reader(table) -> None:
    """A file of torch's, or Python, and what reads the place there."""
    for places in table.values():
        for place, reader in places.items():
            assert re.match(r"[\w/.<>-]+: \S|Python: \S", reader), (place, reader)
            assert not re.search(r"[*?^$|\\]", place), f"{place} is a pattern"


def test_what_isolates_and_the_known_issues_are_there() -> None:
    """An isolation is a file of the library's, a known issue a heading of docs/known-issues.md."""
    for file in ISOLATED:
        assert (ROOT / "safecompile" / file).is_file(), file
    headings = re.findall("^## (.*)$", (ROOT / "docs" / "known-issues.md").read_text(), re.MULTILINE)
    assert set(KNOWN_ISSUES) <= set(headings)


def test_no_place_is_stale() -> None:
    """Each classified place was found on a release; ``python -m tests.census`` writes what it finds."""
    assert list(RESULTS.glob("*.json"))
    assert not stale()


def test_size_of_the_table() -> None:
    """At least sixty scenes, about a dozen of them in the run for CI."""
    assert len(scene_names()) >= 60
    assert 10 <= len(scene_names(quick=True)) <= 20

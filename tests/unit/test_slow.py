"""The list of slow tests: it names tests that there are, and is made of the slowest."""

from __future__ import annotations

import ast

from tests import slow
from tests.helpers.threads import ROOT


def test_the_list_names_tests_that_there_are() -> None:
    """A test that was renamed or taken away leaves the list, too: its new name would run unmarked."""
    for name in slow.names():
        file, _, function = name.partition("::")
        tree = ast.parse((ROOT / "tests" / file).read_text())
        assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, name


def test_the_slowest_go_until_the_others_fit() -> None:
    """As few tests as possible are slow, and none that is over at once."""
    seconds = {"a": 5.0, "b": 3.0, "c": 1.0, "d": 0.4, "e": 0.4}
    assert slow.slowest(seconds, 10.0) == []
    assert slow.slowest(seconds, 5.0) == ["a"]
    assert slow.slowest(seconds, 0.5) == ["a", "b", "c"]


def test_times_come_from_a_report(tmp_path) -> None:
    """All parameters of a test are one entry, by file and function."""
    report = tmp_path / "all.xml"
    report.write_text(
        '<testsuite><testcase classname="tests.unit.test_a" name="test_b[x]" time="1.5"/>'
        '<testcase classname="tests.unit.test_a" name="test_b[y::z]" time="0.5"/></testsuite>'
    )
    assert slow.measured(report) == {"unit/test_a.py::test_b": 2.0}
    assert slow.name_of("tests/unit/test_a.py::test_b[y::z]") == "unit/test_a.py::test_b"

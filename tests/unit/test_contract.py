"""The contract's judge: what counts as a difference between plain torch and the library."""

from __future__ import annotations

from tests.contract.judging import Difference, differences, passed, verdict

PASSED, FAILED, SKIPPED, DIED = ("passed", ""), ("failed", "KeyError: 'x'"), ("skipped", ""), ("died", "")


def test_equal_outcomes_are_no_difference():
    """Two tests that end the same way are equal, whatever the errors say."""
    plain = {"a": PASSED, "b": FAILED, "c": SKIPPED}
    assert differences(plain, {**plain, "b": ("failed", "KeyError: 'y'")}) == []


def test_kinds_of_differences():
    """A test may fail with the library only, pass with it only, or end in two ways of which none is to pass."""
    found = differences({"a": PASSED, "b": FAILED, "c": FAILED}, {"a": FAILED, "b": PASSED, "c": SKIPPED})
    assert [(one.test, one.kind) for one in found] == [("a", "worse"), ("b", "better"), ("c", "other")]


def test_what_did_not_run_differs():
    """A test that one side does not have, or that killed its process there, differs."""
    found = differences({"a": PASSED, "b": PASSED}, {"b": DIED, "c": PASSED})
    assert [(one.test, one.plain[0], one.safe[0], one.kind) for one in found] == [
        ("a", "passed", "not run", "worse"),
        ("b", "passed", "died", "worse"),
        ("c", "not run", "passed", "better"),
    ]


def test_second_look():
    """A difference that shows again, alone or among the others, is one; one that does not, or is another, is chance."""
    first = Difference("a", PASSED, FAILED)
    other = Difference("a", PASSED, DIED)
    assert verdict(first, [first], []) == "differs, alone too"
    assert verdict(first, [], [first]) == "differs, after the tests before it only"
    assert verdict(first, [], []) == "flaky"
    assert verdict(first, [other], [Difference("b", PASSED, FAILED)]) == "flaky"


def test_count_of_passed():
    """Only what passed counts as passed."""
    assert passed({"a": PASSED, "b": FAILED, "c": ("passed unexpectedly", ""), "d": PASSED}) == 2

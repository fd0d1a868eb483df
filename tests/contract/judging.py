"""What counts as a difference between two runs of the same tests: with the library, and without."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

#: By test, what became of it and why: a test that has begun and not ended killed its process, or ran out of time.
Outcomes = Mapping[str, tuple[str, str]]

STARTED, DIED, NOT_RUN = "started", "died", ("not run", "")


@dataclass(frozen=True)
class Difference:
    """A test whose outcome is another one with the library."""

    test: str
    plain: tuple[str, str]
    safe: tuple[str, str]

    @property
    def kind(self) -> str:
        """Tells whether the library makes a test fail that passes, or one pass that does not, or neither."""
        passed = self.plain[0] == "passed", self.safe[0] == "passed"
        return {(True, False): "worse", (False, True): "better"}.get(passed, "other")


def differences(plain: Outcomes, safe: Outcomes) -> list[Difference]:
    """Returns the tests whose outcome differs. Two failures are equal, whatever they say."""
    tests = [*plain, *(test for test in safe if test not in plain)]
    found = (Difference(test, plain.get(test, NOT_RUN), safe.get(test, NOT_RUN)) for test in tests)
    return [one for one in found if one.plain[0] != one.safe[0]]


def verdict(first: Difference, alone: Iterable[Difference], again: Iterable[Difference]) -> str:
    """Tells what a second look found: the same alone, the same among the tests of its process, or chance."""
    same = (first.test, first.plain[0], first.safe[0])
    if any(same == (one.test, one.plain[0], one.safe[0]) for one in alone):
        return "differs, alone too"
    if any(same == (one.test, one.plain[0], one.safe[0]) for one in again):
        return "differs, after the tests before it only"
    return "flaky"


def passed(outcomes: Outcomes) -> int:
    """Counts the tests that passed."""
    return sum(outcome == "passed" for outcome, _ in outcomes.values())

"""What differs today, cell by cell: a mark is taken away by the change that makes the cell equal.

A mark is strict: a cell that it names and that is equal is an error. A mark with ``known_issue`` is no fault to remove:
it names the entry of docs/known-issues.md that tells of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from .table import COLUMNS, RELEASES


@dataclass(frozen=True)
class Mark:
    """Programs, columns and releases of one fault.

    Attributes:
        programs: patterns, in which brackets stand for themselves.
        reason: the fault, in words.
        known_issue: the heading in docs/known-issues.md, for an exemption.
    """

    programs: tuple[str, ...]
    reason: str
    columns: tuple[str, ...] = COLUMNS
    releases: tuple[str, ...] = RELEASES
    known_issue: str = ""

    def names(self, program: str) -> bool:
        """Whether it speaks of a program."""
        return any(self.matches(pattern, program) for pattern in self.programs)

    @staticmethod
    def matches(pattern: str, program: str) -> bool:
        """Whether a pattern speaks of a program."""
        return fnmatchcase(program, pattern.replace("[", "[[]"))

    def covers(self, program: str, column: str, release: str) -> bool:
        """Whether it speaks of a cell."""
        return column in self.columns and release in self.releases and self.names(program)


MARKS: tuple[Mark, ...] = ()


def mark_of(program: str, column: str, release: str) -> Mark | None:
    """Returns the mark of a cell.

    Raises:
        AssertionError: there are two.
    """
    found = [mark for mark in MARKS if mark.covers(program, column, release)]
    assert len(found) <= 1, f"{program}, {column}, {release}: {[mark.reason for mark in found]}"
    return found[0] if found else None


def judged(mark: Mark | None, word: str, found: list[str]) -> tuple[str, list[str]]:
    """Returns the verdict of a cell in the light of its mark, with the lines that tell why."""
    if mark is None or word in ("absent", "broken"):
        return word, found
    if word == "equal":
        return "marked, but equal", [mark.reason]
    return ("exempt" if mark.known_issue else "marked"), [mark.known_issue or mark.reason, *found]

"""What differs today, cell by cell: a mark is taken away by the change that makes the cell equal.

A mark is strict: a cell that it names and that is equal is an error. A mark with ``known_issue`` is no fault to remove:
it names the entry of docs/known-issues.md that tells of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from .table import COLUMNS, FOREIGN, IDLE, INDUCTOR, POLLING, RELEASES


@dataclass(frozen=True)
class Mark:
    """Programs, columns and releases of one fault.

    Attributes:
        programs: patterns, in which brackets stand for themselves.
        reason: the fault, in words.
        known_issue: the heading in docs/known-issues.md, for an exemption.
        chance: a cell may be equal too: it depends on when the other thread gets the processor.
    """

    programs: tuple[str, ...]
    reason: str
    columns: tuple[str, ...] = COLUMNS
    releases: tuple[str, ...] = RELEASES
    known_issue: str = ""
    chance: bool = False

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


#: Columns with another thread that is alive.
BESIDE = (IDLE, POLLING, FOREIGN, INDUCTOR)

MARKS: tuple[Mark, ...] = (
    Mark(
        (
            "introspection/of_names",
            "introspection/names_in",
            "stances/looked_at",
            "export/an_export_that_fails[not strict]",
            "settings/for_a_while_in_compiled_code[default device]",
        ),
        "what looks at torch's own functions, modules and frames sees the library there",
        known_issue="Where the library can be seen",
    ),
    Mark(
        ("configuration/assigned_in_a_thread",),
        "a compile sees what another thread has assigned to a setting",
        releases=("2.13.0", "2.15.0"),
        known_issue="Settings of other threads",
    ),
    Mark(
        ("stances/skipped_guards",),
        "beside another thread guards are not skipped",
        BESIDE,
        ("2.9.1", "2.13.0"),
        known_issue="Skipping guards beside other threads",
        chance=True,
    ),
    Mark(
        ("memory/entries[twice]",),
        "beside another thread a reset leaves a bare entry",
        BESIDE,
        known_issue="Resets beside running calls",
        chance=True,
    ),
    Mark(
        ("settings/changed_by_a_backend[threads]",),
        "a backend that changes the number of threads is not told so where other threads use the processor",
        BESIDE,
        known_issue="Compiles beside threads that work",
        chance=True,
    ),
    Mark(
        (
            "modules/*[__hash__]",
            "nested/a_backend_that_traces",
            "seeds/drawn_around_a_compile*",
            "seeds/drawn_by_a_backend*",
            "settings/changed_by_a_backend[default device]",
        ),
        "beside a thread that works, what a backend has drawn is skipped, and a failed trace made again",
        (POLLING,),
        known_issue="Compiles beside threads that work",
        chance=True,
    ),
)


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
        return ("equal", found) if mark.chance else ("marked, but equal", [mark.reason])
    return ("exempt" if mark.known_issue else "marked"), [mark.known_issue or mark.reason, *found]

"""What differs today, cell by cell: a mark is taken away by the change that makes the cell equal.

A mark is strict: a cell that it names and that is equal is an error. A mark with ``known_issue`` is no fault to remove:
it names the entry of docs/known-issues.md that tells of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from .table import COLUMNS, IDLE, INDUCTOR, POLLING, RELEASES


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


#: Columns with a thread that the library knows of.
BESIDE = (IDLE, POLLING, INDUCTOR)

#: The settings that torch puts back after a compile, and programs that change them.
PUT_BACK = ("default dtype", "deterministic", "warn only", "matmul precision")
SETTING = ("left_on_by_compiled_code", "changed_where_the_compile_fails", "changed_by_a_backend")

MARKS: tuple[Mark, ...] = (
    Mark(
        (
            "errors/in_compiled_code[of_a_shape]",
            "errors/of_a_backend[KeyboardInterrupt]",
            "errors/of_a_backend[SystemExit]",
            "errors/fail_at_the_limit",
            "settings/for_a_while_in_compiled_code[warn only]",
            "settings/changed_by_a_backend[default device]",
            "stances/in_compiled_code",
            "hooks/of_compiles_that_raise",
            "call_forms/a_coroutine",
            "export/an_export_that_fails[not strict]",
            "modules/a_module_with_its_own[__hash__]",
            "introspection/logs[graph_breaks]",
        ),
        "five frames of the library stand in the traceback of an error",
    ),
    Mark(
        (
            "saving/pickled[compiled]",
            "saving/pickled[never called]",
            "saving/pickled[of the user]",
            "saving/pickled[part]",
            "saving/pickled[deep copy]",
            "saving/pickled[in a list]",
            "saving/pickled[read back]",
            "saving/saved[compiled]",
            "saving/saved[part]",
            "saving/read_without_the_library[compiled]",
            "saving/read_without_the_library[of the user]",
            "saving/pickled_by_protocol[*]",
        ),
        "a pickled compiled module names the library, and can't be read without it",
        releases=("2.13.0", "2.15.0"),
    ),
    Mark(
        ("modules/under_construction[*]", "modules/its_own_methods_compiled[*]"),
        "a miss asks a module for its parameters that has none yet",
    ),
    Mark(
        ("modules/an_argument_with_its_own[parameters]", "modules/an_argument_with_its_own[__hash__]"),
        "a miss calls parameters() of a module that is an argument, or five frames stand in the error",
    ),
    Mark(
        (
            "kept_stances/not_entered[chained]",
            "kept_stances/not_entered[walrus]",
            "kept_stances/entered_later[chained]",
        ),
        "whether a stance is entered is guessed from bytecode: a chained assignment does nothing",
    ),
    Mark(
        ("stances/left_in_another_thread[*]",),
        "a stance that another thread leaves raises KeyError, and later threads run eagerly",
    ),
    Mark(("stances/entered[closing_order]",), "stances that are left in another order than entered stay"),
    Mark(("stances/looked_at",), "a stance has an attribute of the library's"),
    Mark(
        ("nested/the_flag_cleared_by_hand[trace]", "nested/the_flag_seen_from_outside[set]"),
        "an assignment to torch's tracing flag does nothing",
    ),
    Mark(("nested/disabled_inside",), "frames under disable(recursive=False) are compiled another number of times"),
    Mark(
        ("contexts/in_compiled_code[anomaly]", "contexts/in_compiled_code[config]"),
        "frames inside a mode are compiled another number of times",
    ),
    Mark(
        ("contexts/modes_of_the_user[function]",), "a TorchFunctionMode of the user's sees calls that a compile makes"
    ),
    Mark(
        ("introspection/of_names",), "some of torch's functions tell another file, or have attributes of the library's"
    ),
    Mark(
        ("imports/after_a_cold_compile_with_inductor[*]",),
        "after a cold compile with Inductor the library takes the process for one with two working threads",
    ),
    Mark(("introspection/names_in",), "variables that became one for each thread are not in dir() of their module"),
    Mark(("configuration/as_a_whole[load]",), "a warning about a setting names the library's file"),
    Mark(
        (
            "configuration/assigned_inside_patch",
            "configuration/assigned_in_a_thread",
            "configuration/assigned_in_a_copied_context",
            "threads_in_turn/settings_of_a_task",
        ),
        "an assignment inside config.patch, a thread that has ended, or a copied context reaches compiles outside",
    ),
    Mark(("settings/changed_by_a_backend[threads]",), "a backend that changes the number of threads is not told so"),
    Mark(
        ("seeds/drawn_around_a_compile[thread]",),
        "what a backend draws shifts the numbers, since two threads are alive",
    ),
    Mark(
        (
            "seeds/drawn_in_compiled_code[randint]",
            "seeds/drawn_in_compiled_code[uniform]",
            "seeds/drawn_in_compiled_code[several]",
            "seeds/drawn_by_a_backend[torch]",
            "seeds/drawn_by_a_backend[random]",
            "seeds/drawn_by_a_backend[all]",
            "seeds/drawn_by_a_backend[seeds]",
            "seeds/drawn_by_a_backend[random.seed]",
            "seeds/drawn_by_a_backend_that_fails[*]",
            "seeds/drawn_around_a_compile[main]",
        ),
        "beside a thread that sleeps, what a trace or a backend draws is not put back",
        BESIDE,
    ),
    Mark(
        (
            "settings/written_in_compiled_code[default_dtype]",
            "settings/written_in_compiled_code[deterministic]",
            "settings/written_in_compiled_code[precision]",
            "settings/written_in_compiled_code[dtype_in_a_callee]",
            *(f"settings/{program}[{setting}]" for program in SETTING for setting in PUT_BACK),
            "settings/for_a_while_in_compiled_code[default dtype]",
            "settings/for_a_while_in_compiled_code[deterministic]",
            "settings/for_a_while_in_compiled_code[matmul precision]",
        ),
        "beside a thread that sleeps, what a trace sets is not put back",
        BESIDE,
    ),
    Mark(
        (
            "memory/freed_by_a_reset[*]",
            "memory/entries[twice]",
            "memory/a_backend_that_is_dropped",
            "memory/graph_modules_alive",
        ),
        "beside a thread that sleeps, a reset frees nothing",
        BESIDE,
    ),
    Mark(
        ("stances/skipped_guards",),
        "beside a thread that sleeps, guards are not skipped",
        BESIDE,
        known_issue="Skipping guards beside other threads",
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
        return "marked, but equal", [mark.reason]
    return ("exempt" if mark.known_issue else "marked"), [mark.known_issue or mark.reason, *found]

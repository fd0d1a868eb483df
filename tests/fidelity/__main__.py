"""The full matrix on the installed torch, by one command: ``python -m tests.fidelity``.

Writes the cells that differ to ``tests/fidelity/results/TORCH.json``, and fails if one is not as its mark says.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from .marks import judged, mark_of
from .runner import Runner, cell, here, release
from .table import COLUMNS, Program, programs

#: Verdicts that are not as the marks say.
FAILURES = ("differs", "broken", "marked, but equal")
RESULTS = Path(__file__).parent / "results"


def cells(
    chosen: list[Program], columns: list[str], runners: list[Runner]
) -> Iterator[tuple[Program, str, str, list[str]]]:
    """Yields each program and column with the verdict and what differs; a program has one runner in all columns."""

    def judge(index: int) -> tuple[str, list[str]]:
        program = chosen[index]
        mark = mark_of(program.name, column, release())
        return judged(mark, *cell(runners[index % len(runners)], program, column))

    with ThreadPoolExecutor(len(runners)) as team:
        for column in columns:
            indices = [index for index, program in enumerate(chosen) if column in program.columns]
            for index, verdict in zip(indices, team.map(judge, indices), strict=True):
                yield (chosen[index], column, *verdict)


def main() -> int:
    """Runs the matrix, or a part of it."""
    parser = argparse.ArgumentParser(prog="python -m tests.fidelity", description=__doc__)
    # With commas: one of them is called -O.
    parser.add_argument("--columns", type=lambda text: text.split(","), default=list(COLUMNS), metavar="NAME,NAME")
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help="names of programs")
    parser.add_argument("--fresh", action="store_true", help="an interpreter for each program: no forks, hours")
    parser.add_argument(
        "--jobs", type=int, default=2, help="programs at a time, each in plain torch and with the library"
    )
    parser.add_argument("--output", type=Path, default=None, help=f"instead of {RESULTS.name}/TORCH.json")
    options = parser.parse_args()
    if unknown := set(options.columns) - set(COLUMNS):
        parser.error(f"no column {', '.join(sorted(unknown))}; there are {', '.join(COLUMNS)}")
    patterns = [pattern.replace("[", "[[]") for pattern in options.only]
    chosen = [p for name, p in programs().items() if any(fnmatchcase(name, pattern) for pattern in patterns)]
    begun, counts, told = time.monotonic(), Counter[str](), {}
    totals: dict[str, Counter[str]] = {column: Counter() for column in options.columns}
    print(f"{len(chosen)} programs, {here()}", flush=True)
    with ExitStack() as stack:
        runners = [stack.enter_context(Runner(fresh=options.fresh)) for _ in range(options.jobs)]
        for program, column, word, lines in cells(chosen, options.columns, runners):
            counts[word] += 1
            totals[column][word] += 1
            if word not in ("equal", "absent"):
                told[f"{program.name} | {column}"] = {"is": word, "why": lines[:9]}
            if word in FAILURES:
                print(f"{word}: {program.name} | {column}\n    " + "\n    ".join(lines[:6]), flush=True)
            # As it goes: it takes an hour, and what was found in half of one is not to be lost.
            _write(options.output or RESULTS / f"{release()}.json", {"on": here(), "cells": totals, "not equal": told})
    print(f"{dict(counts)} in {time.monotonic() - begun:.0f} s")
    return 1 if any(counts[word] for word in FAILURES) else 0


def _write(path: Path, found: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    sys.exit(main())

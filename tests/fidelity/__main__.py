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
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from .marks import judged, mark_of
from .runner import Runner, cell, here, release
from .table import COLUMNS, Program, programs

#: Verdicts that are not as the marks say.
FAILURES = ("differs", "broken", "marked, but equal")
RESULTS = Path(__file__).parent / "results"


def cells(chosen: list[Program], columns: list[str], runner: Runner) -> Iterator[tuple[Program, str, str, list[str]]]:
    """Yields each program and column with the verdict and what differs."""
    for column in columns:
        for program in chosen:
            if column in program.columns:
                mark = mark_of(program.name, column, release())
                yield (program, column, *judged(mark, *cell(runner, program, column)))


def main() -> int:
    """Runs the matrix, or a part of it."""
    parser = argparse.ArgumentParser(prog="python -m tests.fidelity", description=__doc__)
    parser.add_argument("--columns", nargs="+", choices=COLUMNS, default=list(COLUMNS))
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help="names of programs")
    parser.add_argument("--fresh", action="store_true", help="an interpreter for each program: no forks, hours")
    parser.add_argument("--output", type=Path, default=None, help=f"instead of {RESULTS.name}/TORCH.json")
    options = parser.parse_args()
    patterns = [pattern.replace("[", "[[]") for pattern in options.only]
    chosen = [p for name, p in programs().items() if any(fnmatchcase(name, pattern) for pattern in patterns)]
    begun, counts, told = time.monotonic(), Counter[str](), {}
    totals: dict[str, Counter[str]] = {column: Counter() for column in options.columns}
    print(f"{len(chosen)} programs, {here()}", flush=True)
    with Runner(fresh=options.fresh) as runner:
        for program, column, word, lines in cells(chosen, options.columns, runner):
            counts[word] += 1
            totals[column][word] += 1
            if word not in ("equal", "absent"):
                told[f"{program.name} | {column}"] = {"is": word, "why": lines[:9]}
            if word in FAILURES:
                print(f"{word}: {program.name} | {column}\n    " + "\n    ".join(lines[:6]), flush=True)
    print(f"{dict(counts)} in {time.monotonic() - begun:.0f} s")
    _write(options.output or RESULTS / f"{release()}.json", {"on": here(), "cells": totals, "not equal": told})
    return 1 if any(counts[word] for word in FAILURES) else 0


def _write(path: Path, found: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    sys.exit(main())

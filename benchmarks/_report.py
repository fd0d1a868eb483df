"""Writes benchmarks/README.md: its fixed text, and the tables and pictures from the files in benchmarks/results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ._common import RESULTS, environment_line, say

HEAD = """# Benchmarks

Everything below the next section is written by `python -m benchmarks._report` from the files in `results/`, each of
which was written by the script that the section names. Wall times of a machine that others use are noisy: the row
"plain again" tells how noisy. Instructions are not.

## How to reproduce

```
pip install -e .[bench]                     # matplotlib, for the pictures; without it there are the tables alone
python -m benchmarks                        # everything, short: some minutes on two cores
python -m benchmarks --setting full         # everything, as below: an hour or more
python -m benchmarks --only cold_start      # one of call_overhead, cold_start, contention, drafters
python -m benchmarks.readers                # what is_compiling() and an nn.Module's call cost beside a trace
python -m benchmarks.overlap --runs 3       # an experiment: the compile lock given up while kernels compile
```

Counting instructions needs `valgrind`. Each module has settings of its own: `python -m benchmarks.drafters --help`.

The drafters on the GPUs that are there, one GPU (first line) or eight with five targets and three drafters:

```
python -m benchmarks.drafters --runs 5 --configs safe:1x1,safe:1x4,safe:1x4:separate,safe:1x6,safe:1x6:separate
python -m benchmarks.drafters --runs 5 --configs single:5x1,warmup:5x3,safe:5x3,plain:5x3
```
"""


def table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Returns a Markdown table; None becomes a dash."""
    head = list(head)
    lines = [head, ["---"] * len(head), *([_cell(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "**no**"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _overhead(data: dict[str, Any]) -> str:
    text = "Instructions of one warm call of the smallest function, counted by callgrind. "
    text += "The goal is at most 1.005 times plain. "
    text += "The patches may be compared with a plain process, with one that only imported safecompile, and with the "
    text += "same process after all were taken out: what is imported moves a count by itself. "
    text += "Rows `without x`: the patches of family x, and of those above it in the list, taken out again.\n\n"
    counted = {name: row for name, row in data.get("instructions", {}).items() if isinstance(row, dict)}
    if counted:
        kinds = ("ratio", "ratio_to_imported", "ratio_to_taken_out")
        rows = [
            (name, row["median"], f"{row['least']:,} to {row['most']:,}", *(f"{row[kind]:.4f}" for kind in kinds))
            for name, row in counted.items()
        ]
        head = ["", "instructions", "range", "to plain", "to plain, imported", "to all patches taken out"]
        text += table(head, rows)
    for function, measured in data.get("functions", {}).items():
        for threads, compared in measured.get("threads", {}).items():
            backend, blocks = measured["backend"], data["blocks"]
            text += f"\nWarm call of the {function} (backend {backend}), {threads} thread(s), {blocks} blocks:\n\n"
            head = ["", "kind of time", "ns per call", "ratio to plain", "95 % interval", "ns added"]
            measures = [
                (
                    name,
                    kind,
                    f"{row['ns_per_call']:,.0f}",
                    f"{row['ratio']:.4f}",
                    "{:.4f} to {:.4f}".format(*row["ratio_95"]),
                    f"{row['added_ns']:+,.0f}",
                )
                for name, kinds in compared.items()
                for kind, row in kinds.items()
            ]
            text += table(head, measures)
        if "identity" in measured:
            text += f"\nWhat `safe_compile` returns beside what plain `torch.compile` returns ({function}):\n\n"
            text += table(["", ""], ((name, value) for name, value in measured["identity"].items()))
    return text


def _cold_start(data: dict[str, Any]) -> str:
    text = (
        f"Fresh process and caches each time. The backend `staged` sleeps {data['staged_s']:g} s in each compile.\n\n"
    )
    head = [
        "backend",
        "shapes",
        "threads",
        "variant",
        "wall s",
        "first result s",
        "last first result s",
        "compiles",
        "eager calls",
        "failed calls",
        "CPU s",
        "runs",
    ]
    names = (
        "backend",
        "shapes",
        "threads",
        "variant",
        "wall_s",
        "first_result_s",
        "last_first_result_s",
        "compiles",
        "eager_calls",
        "failed_calls",
        "cpu_s",
        "runs",
    )
    text += table(head, ([row.get(name) for name in names] for row in data["table"]))
    if data["must_hold"]:
        text += "\nThe goal: one compile for each shape, no call eager, "
        text += "at most 1.1 times the wall time of one thread plus 0.3 s:\n\n"
        shown = ("backend", "threads", "shapes", "alone_s", "wall_s", "limit_s", "compiles", "kept")
        text += table(
            [n.replace("_s", " s") for n in shown], ([row[name] for name in shown] for row in data["must_hold"])
        )
    return text


def _contention(data: dict[str, Any]) -> str:
    text = f"One warm thread's calls, in microseconds, while two others are busy for {data['seconds']:g} s.\n\n"
    names = ("scene", "variant", "p50", "p95", "p99", "max", "calls", "failed_calls", "done_by_others", "failed_others")
    return text + table([n.replace("_", " ") for n in names], ([row.get(n) for n in names] for row in data["table"]))


def _drafters(data: dict[str, Any]) -> str:
    text = (
        "`mode:targets x drafters:compiled objects`. First step: of the last drafter, cold, from the common start.\n\n"
    )
    head = [
        "configuration",
        "runs",
        "finished",
        "hung",
        "failed",
        "first step s, median",
        "worst",
        "warm-up s",
        "graphs",
        "hot tokens/s, median",
        "worst",
    ]
    rows = []
    for row in data["summary"]:
        first, hot = row["last_first_step_s"] or {}, row["hot_tokens_per_s"] or {}
        rows.append(
            [
                row["config"],
                row["runs"],
                row["finished"],
                row["hung"],
                row["failed"],
                first.get("median"),
                first.get("worst"),
                row["warm_up_s"],
                " or ".join(map(str, row["graphs"])) or None,
                *(f"{hot[k]:,.0f}" if hot else None for k in ("median", "worst")),
            ]
        )
    text += table(head, rows)
    for key in ("note", "stopped"):
        text += f"\n{data[key]}.\n" if key in data else ""
    return text


_OVERLAP = """\
The first step of D devices, as a model: one trace after the other, and the kernels of the first serve the others. On
two H200s (`drafters-2.11.0-h200-two-gpus-d.json`, the phases of each compile) the first forward takes 4 s to 6 s,
half of it waiting for kernels, and its backward 2.5 s to 3.5 s, nearly all of it waiting. Each further device adds
0.6 s to 1.2 s for its forward and 0.2 s to 0.6 s for its backward, if it finds the kernels:
T(D) = T(1) + 1.3 s x (D - 1). It finds them if both were compiled with the same `ptxas`, which the library sees to
(15 of 15 runs; before that some took 2 s to 3 s more).

What could be gained is the waiting. The experiment below gives the compile lock up around it: another thread traces
meanwhile. It is not part of the library: **it fails**. Inductor keeps the state of one compile in classes, for the
process. The first that breaks is `TritonBundler.begin_compile` (2.13.0), which asserts that no other compile is open.

"""


def _overlap(data: dict[str, Any]) -> str:
    names = ("threads", "lock", "wall_s", "runs", "hung")
    rows = ([*(row[n] for n in names), len(row["errors"])] for row in data["table"])
    return _OVERLAP + table(["threads, a function each", "lock", "wall s, median", "runs", "hung", "errors"], rows)


def _readers(data: dict[str, Any]) -> str:
    text = (
        "Nanoseconds of one call, the best of 15 times 200,000. The limits: `is_compiling()` at most 100 ns slower, a\n"
    )
    text += "module's call 0 ns slower while nobody traces or compiles, and at most 400 ns while somebody does.\n\n"
    plain = data["table"]["plain"]
    rows = (
        [name, *(x for key in plain for x in (row[key], f"{row[key] - plain[key]:+.0f}"))]
        for name, row in data["table"].items()
    )
    return text + table(["", "is_compiling() ns", "to plain", "nn.Module call ns", "to plain"], rows)


WRITERS: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "call_overhead": ("The warm call", _overhead),
    "cold_start": ("The cold start", _cold_start),
    "contention": ("What a warm thread feels", _contention),
    "readers": ("What those pay who only read", _readers),
    "drafters": ("The training layout", _drafters),
    "overlap": ("An experiment: the lock given up while kernels compile", _overlap),
}


def report(folder: Path = RESULTS) -> str:
    """Returns the text of the README for the results in ``folder``."""
    text = HEAD
    files = sorted(folder.glob("*.json"))
    for benchmark, (title, writer) in WRITERS.items():
        text += f"\n## {title}: `{benchmark}`\n"
        for file in files:
            data = json.loads(file.read_text())
            if data.get("benchmark") != benchmark:
                continue
            text += f"\n### {environment_line(data['environment'])}\n\n`results/{file.name}`\n\n{writer(data)}"
            for picture in sorted(folder.glob(f"{file.stem}*.svg")):
                text += f"\n![{title}](results/{picture.name})\n"
    return text


def write(folder: Path = RESULTS) -> Path:
    """Writes the README beside ``folder``; returns its file."""
    file = folder.parent / "README.md"
    file.write_text(report(folder))
    return file


if __name__ == "__main__":
    say(f"written: {write().name}")

"""Writes benchmarks/README.md: its fixed text, and the tables and pictures from the files in benchmarks/results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from . import _prose, _summary, drafters, hot
from ._common import RESULTS, environment_line, say


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
    if isinstance(value, list):
        return ", ".join(map(_cell, value))
    return f"{value:,}" if isinstance(value, int) else str(value)


def _overhead(data: dict[str, Any]) -> str:
    text = ""
    counted = {name: row for name, row in data.get("instructions", {}).items() if isinstance(row, dict)}
    if counted:
        text += "Instructions of one warm call of the smallest function, counted by callgrind:\n\n"
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
    head = [
        "backend",
        "shapes",
        "threads",
        "variant",
        "wall s",
        "least to most",
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
        "wall_s_range",
        "first_result_s",
        "last_first_result_s",
        "compiles",
        "eager_calls",
        "failed_calls",
        "cpu_s",
        "runs",
    )
    rows = [{**row, "wall_s_range": " to ".join(map(str, row.get("wall_s_range", "-")))} for row in data["table"]]
    text = table(head, ([row.get(name) for name in names] for row in rows))
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
    rows = ([row.get(n) for n in names] + [_end(row)] for row in data["table"])
    return text + table([*(n.replace("_", " ") for n in names), "ended"], rows)


def _serving(data: dict[str, Any]) -> str:
    names = ("p50_ms", "p95_ms", "p99_ms", "longest_ms", "longest_first_ms", "answers", "uncompiled", "failed")
    rows = ([row["variant"], *(row.get(n) for n in names), "; ".join(row.get("errors", []))] for row in data["table"])
    text = table(["", *(name.replace("_", " ") for name in names), "errors"], rows)
    medians, ratios = data["beside"].get("medians", {}), data["beside"].get("ratios", {})
    text += "\nBeside a compile, medians of the rounds:\n\n"
    shown = ("p50_ms", "p99_ms", "compile_s", "answers")
    text += table(["", *shown], ([way, *(one[n] for n in shown)] for way, one in medians.items()))
    text += f"\nRatios: p50 {ratios.get('p50_ms')}, p99 {ratios.get('p99_ms')}.\n"
    return text + (f"\n{data['note']}.\n" if "note" in data else "")


def _end(row: dict[str, Any]) -> str:
    return "well" if "p50" in row else "; ".join(row["errors"])


def _drafters(data: dict[str, Any]) -> str:
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
        "cold tokens/s",
        "hot tokens/s, median",
        "worst",
        "of one drafter",
    ]
    rows = []
    for row in data["summary"]:
        first, hot = row["last_first_step_s"] or {}, row["hot_tokens_per_s"] or {}
        runs = [run for run in data["runs"] if run["config"] == row["config"]]
        cold, each = drafters.other_tokens_per_s(runs, data["settings"][row["config"]]["steps"])
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
                *(f"{n:,.0f}" if n else None for n in (cold, hot.get("median"), hot.get("worst"), each)),
            ]
        )
    text = table(head, rows)
    for key in ("note", "stopped"):
        text += f"\n{data[key]}.\n" if key in data else ""
    return text


def _hot(data: dict[str, Any]) -> str:
    settings = data["settings"]
    devices, runs, steps = ", ".join(settings["devices"]), len(data["runs"]), settings["steps"]
    text = f"Drafters on {devices}; {runs} processes, {steps} steps a block.\n\n"
    text += "".join(
        f"A run ended without a result: {error}.\n\n" for one in data["runs"] for error in one.get("errors", [])
    )
    summary = hot.summary(data["runs"])
    if not summary:
        return text
    for one in data["runs"]:
        if "compiled_while_hot" in one:
            found = one["compiled_while_hot"]
            each = found if isinstance(found, int) else ", ".join(f"{name} {n}" for name, n in found.items())
            text += f"Graphs compiled in the blocks of a run: {each}.\n\n"
    rows = (
        [
            row["name"],
            f"{row['tokens_per_s']:,.0f}",
            f"{row['ratio']:.4f}",
            "{:.4f} to {:.4f}".format(*row["ratio_95"]),
            ", ".join(f"{ratio:.3f}" for ratio in row["ratio_by_run"]),
            row["blocks"],
        ]
        for row in summary
    )
    return text + table(["", "tokens/s, median", "ratio to warmup", "95 % interval", "by run", "blocks"], rows)


def _overlap(data: dict[str, Any]) -> str:
    names = ("threads", "lock", "wall_s", "runs", "hung")
    rows = ([*(row[n] for n in names), len(row["errors"])] for row in data["table"])
    text = table(["threads, a function each", "lock", "wall s, median", "runs", "hung", "errors (5 at most)"], rows)
    errors = dict.fromkeys(error.partition(": ")[2] for row in data["table"] for error in row["errors"])
    return text + "".join(f"\n- `{' '.join(error.split())}`" for error in errors) + "\n" * bool(errors)


def _readers(data: dict[str, Any]) -> str:
    rows = (
        [name, *(x for row in (kinds["is_compiling"], kinds["module"]) for x in (row["ns"], _added(row)))]
        for name, kinds in data["table"].items()
    )
    own = "yes" if data["modules_code_is_torchs_own"] else "**no**"
    said = f"With safecompile, a module's call runs torch's own functions and code objects: {own}.\n\n"
    return said + table(["", "is_compiling() ns", "to plain", "nn.Module call ns", "to plain"], rows)


def _costs(data: dict[str, Any]) -> str:
    rows = (
        [
            f"{name}, {row['unit']}",
            *(f"{value:,.6g}" for value in (row["plain"], row["safe"], *row["least"])),
            "{:+,.4g} [{:+,.4g}, {:+,.4g}]".format(row["added"], *row["added_95"]),
            "{:.3f} [{:.3f}, {:.3f}]".format(row["ratio"], *row["ratio_95"]),
            row["pairs"],
        ]
        for name, row in data["table"].items()
    )
    text = table(["", "plain", "safecompile", "least, plain", "least, safecompile", "added", "ratio", "pairs"], rows)
    return text + "".join(f"\nA pair gave no result: {error}.\n" for error in data["errors"])


def _added(row: dict[str, Any]) -> str:
    return "{:+.0f} [{:+.0f}, {:+.0f}]".format(row["added_ns"], *row["added_ns_95"])


WRITERS: dict[str, Callable[[dict[str, Any]], str]] = {
    "call_overhead": _overhead,
    "cold_start": _cold_start,
    "contention": _contention,
    "readers": _readers,
    "costs": _costs,
    "drafters": _drafters,
    "hot": _hot,
    "serving": _serving,
    "overlap": _overlap,
}


def report(folder: Path = RESULTS) -> str:
    """Returns the text of the README for the results in ``folder``."""
    results = {file.name: json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))}
    head = ["what", "limit", "measured", "kept", "file"]
    text = _prose.HEAD + _prose.SUMMARY + table(head, _summary.rows(results))
    stems = [Path(name).stem for name in results]
    pictures: dict[str, list[str]] = {}
    for picture in sorted(folder.glob("*.svg")):
        of = [stem for stem in stems if picture.stem == stem or picture.stem.startswith(f"{stem}-")]
        if of:
            pictures.setdefault(max(of, key=len), []).append(picture.name)
    for benchmark, writer in WRITERS.items():
        title, intro = _prose.SECTIONS[benchmark]
        text += f"\n## {title}: `{benchmark}`\n\n{intro}"
        for name, data in results.items():
            if data.get("benchmark") != benchmark:
                continue
            text += (
                f"\n### {environment_line(data['environment'])}\n\n`results/{name}`{_command(data)}\n\n{writer(data)}"
            )
            for picture in pictures.get(Path(name).stem, ()):
                text += f"\n![{title}](results/{picture})\n"
    return text


def _command(data: dict[str, Any]) -> str:
    command = data["environment"].get("command")
    return f", by `{command}`" if command else ""


def write(folder: Path = RESULTS) -> Path:
    """Writes the README beside ``folder``; returns its file."""
    file = folder.parent / "README.md"
    file.write_text(report(folder))
    return file


if __name__ == "__main__":
    say(f"written: {write().name}")

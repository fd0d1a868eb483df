"""Writes the tables of benchmarks/README.md behind its own words, from the files in benchmarks/results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ._common import RESULTS, environment_line, say

README = RESULTS.parent / "README.md"
MARK = "<!-- What follows is written by python -m benchmarks._report -->\n"
VERDICTS = {True: "yes", False: "**no**", None: "open"}
#: Cells that no table needs: long, or of one run alone.
LEFT_OUT = {"points", "stderr"}


def report(folder: Path = RESULTS) -> str:
    """Returns the text of the README for the results in ``folder``."""
    results = {file.name: json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))}
    held = [
        {**row, "kept": VERDICTS[row["kept"]], "file": f"`{name}`"}
        for name, data in results.items()
        for row in data.get("must_hold", ())
    ]
    text = README.read_text().partition(MARK)[0] + MARK + "\n## What must hold\n\n" + _table(held)
    for name, data in results.items():
        command = data["environment"].get("command")
        by = f"`{command}`, " if command else ""
        text += f"\n## `results/{name}`\n\n{by}{environment_line(data['environment'])}.\n"
        if data.get("note"):
            text += f"{data['note']}.\n"
        if counted := data.get("instructions"):
            text += "\n" + _table([{"instructions of a warm call": kind, **row} for kind, row in counted.items()])
        text += "\n" + _table(data["table"])
        if "medians" in data.get("beside", {}):
            text += "\n" + _table([{"beside a compile": way, **row} for way, row in data["beside"]["medians"].items()])
        if (picture := folder / name).with_suffix(".svg").exists():
            text += f"\n![{data['benchmark']}](results/{picture.stem}.svg)\n"
    return text


def _table(rows: list[dict[str, Any]]) -> str:
    from tabulate import tabulate

    shown = [{key: _cell(value) for key, value in row.items() if key not in LEFT_OUT} for row in rows]
    return tabulate(shown, headers="keys", tablefmt="github", disable_numparse=True) + "\n"


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_cell(one)}" for key, one in value.items())
    if isinstance(value, list):
        return "; ".join(map(_cell, value)) if value and isinstance(value[0], str) else " to ".join(map(_cell, value))
    return f"{value:,}" if isinstance(value, int) else str(value)


def write(folder: Path = RESULTS) -> Path:
    """Writes the README beside ``folder``; returns its file."""
    file = folder.parent / "README.md"
    file.write_text(report(folder))
    return file


if __name__ == "__main__":
    say(f"written: {write().name}")

"""``python -m benchmarks``: runs the benchmarks in a short or a full setting, draws the pictures, writes the README."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import _plots, _report, call_overhead, cold_start, contention, costs, drafters, hot, readers, serving
from ._common import RESULTS, environment, result_path, say

MODULES: dict[str, Any] = {
    "call_overhead": call_overhead,
    "cold_start": cold_start,
    "contention": contention,
    "costs": costs,
    "drafters": drafters,
    "hot": hot,
    "readers": readers,
    "serving": serving,
}

#: The command lines of the two settings. Short proves that everything works; full is long enough to be shown.
SETTINGS: dict[str, dict[str, list[str]]] = {
    "short": {
        "call_overhead": ["--blocks", "5", "--samples", "0", "--functions", "function"],
        "cold_start": [
            "--threads",
            "4",
            "--shapes",
            "1,2",
            "--backends",
            "staged",
            "--runs",
            "1",
            "--staged-s",
            "0.3",
            "--variants",
            "alone,plain,safe",
        ],
        "contention": ["--seconds", "1", "--variants", "plain,safe"],
        "costs": ["--rounds", "1", "--counted-rounds", "0"],
        "drafters": ["--configs", "safe:1x2,plain:1x2", "--backend", "eager", "--steps", "3"],
        "hot": ["--blocks", "2", "--steps", "2", "--runs", "1", "--backend", "eager"],
        "readers": ["--rounds", "2", "--calls", "2000"],
        "serving": ["--threads", "4", "--seconds", "3", "--rounds", "1", "--variants", "eager|safe, max_wait_s=0"],
    },
    "full": {
        "call_overhead": ["--blocks", "200", "--samples", "25"],
        "cold_start": ["--threads", "8,32", "--shapes", "1,6", "--runs", "3"],
        "contention": ["--seconds", "6"],
        "costs": ["--rounds", "11", "--counted-rounds", "3"],
        "drafters": ["--configs", "single:1x1,warmup:5x3,safe:5x3,plain:5x3", "--runs", "3"],
        "hot": ["--blocks", "40", "--runs", "2"],
        "readers": ["--rounds", "40"],
        "serving": ["--seconds", "30", "--rounds", "5"],
    },
}


def main(given: list[str] | None = None) -> int:
    """Runs what the command line asks for; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--setting", choices=tuple(SETTINGS), default="short")
    parser.add_argument("--only", choices=tuple(MODULES), action="append", help="may be given more than once")
    parser.add_argument("--results", type=Path, help="folder for the results; default: benchmarks/results")
    arguments = parser.parse_args(given)
    folder: Path = arguments.results or RESULTS
    chosen = arguments.only or list(MODULES)
    env = environment()
    for number, name in enumerate(chosen, 1):
        say(f"[{number}/{len(chosen)}] {name}, {arguments.setting}")
        began = time.monotonic()
        module = MODULES[name]
        out = result_path(name, env, folder)
        run: Callable[[argparse.Namespace], Path] = module.run
        run(module.arguments([*SETTINGS[arguments.setting][name], "--out", str(out)]))
        say(f"[{number}/{len(chosen)}] {name}: {time.monotonic() - began:.0f} s, {out.name}")
    for picture in _plots.draw_all(folder):
        say(f"picture: {picture.name}")
    say(f"written: {_report.write(folder).name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

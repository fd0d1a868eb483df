"""``python -m benchmarks``: runs the benchmarks in a short or a full setting, draws the picture, writes the README."""

from __future__ import annotations

import argparse
import time
from importlib import import_module
from pathlib import Path

from . import _picture, _report
from ._common import RESULTS, environment, result_path, say

#: The short setting proves that everything works; the full one, each module's own defaults, is long enough to be shown.
SHORT = {
    "call_overhead": "--blocks 5 --samples 0 --functions function",
    "cold_start": "--threads 4 --shapes 1,2 --backends staged --runs 1 --staged-s 0.3 --variants alone,plain,safe",
    "contention": "--seconds 1 --variants plain,safe",
    "costs": "--rounds 1 --counted-rounds 0",
    "readers": "--rounds 2 --calls 2000",
    "serving": "--threads 4 --seconds 5 --rounds 1 --variants safe",
}


def main(given: list[str] | None = None) -> int:
    """Runs what the command line asks for; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--setting", choices=("short", "full"), default="short")
    parser.add_argument("--only", choices=tuple(SHORT), action="append", help="may be given more than once")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the results")
    arguments = parser.parse_args(given)
    chosen, env = arguments.only or list(SHORT), environment()
    for number, name in enumerate(chosen, 1):
        say(f"[{number}/{len(chosen)}] {name}, {arguments.setting}")
        began, module = time.monotonic(), import_module(f"benchmarks.{name}")
        out = result_path(name, env, arguments.results)
        options = SHORT[name].split() if arguments.setting == "short" else []
        module.run(module.arguments([*options, "--out", str(out)]))
        say(f"[{number}/{len(chosen)}] {name}: {time.monotonic() - began:.0f} s, {out.name}")
    for picture in _picture.draw_all(arguments.results):
        say(f"picture: {picture.name}")
    say(f"written: {_report.write(arguments.results).name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

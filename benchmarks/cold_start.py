"""Cold starts: N threads call one compiled function with K shapes at the same moment, in a fresh process each time.

Variants: one thread alone (``alone``), plain torch, safe_compile, the locks that people write, and a warm-up on the
main thread (``warmup``). Backends: eager, aot_eager, inductor, and ``staged``, which sleeps and so shows the waits
without the noise of a busy machine. ``python -m benchmarks.cold_start --threads 32 --backends staged,inductor``
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median
from typing import Any

from ._common import environment, environment_line, result_path, rounded, run_child, say, write_json

VARIANTS = ("alone", "plain", "safe", "rlock in first call", "rlock in every call", "wrapt.synchronized", "warmup")


def summary(config: dict[str, Any], runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the medians of the runs that ended, and the worst of what must not happen."""
    ended = [one for one in runs if not one["hung"] and "wall_s" in one]
    medians = {
        name: rounded(median(values))
        for name in ("wall_s", "cpu_s", "first_result_s", "last_first_result_s")
        if (values := [one[name] for one in ended if one[name] is not None])
    }
    walls = [one["wall_s"] for one in ended]
    spread = {"wall_s_range": [min(walls), max(walls)]} if walls else {}
    worst = {
        name: max((one[name] for one in ended), default=None) for name in ("compiles", "eager_calls", "failed_calls")
    }
    return {**config, "runs": len(runs), "hung": sum(one["hung"] for one in runs), **medians, **spread, **worst}


def judged(table: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns for each safe cold start whether it kept to 1.1 times one thread plus 0.3 s."""
    rows = []
    for row in table:
        alone = next(
            (
                r
                for r in table
                if r["variant"] == "alone" and r["backend"] == row["backend"] and r["shapes"] == row["shapes"]
            ),
            None,
        )
        if row["variant"] != "safe" or alone is None or "wall_s" not in row or "wall_s" not in alone:
            continue
        limit = 1.1 * alone["wall_s"] + 0.3
        rows.append(
            {
                "backend": row["backend"],
                "threads": row["threads"],
                "shapes": row["shapes"],
                "wall_s": row["wall_s"],
                "alone_s": alone["wall_s"],
                "limit_s": rounded(limit),
                "compiles": row["compiles"],
                "kept": row["wall_s"] <= limit
                and row["compiles"] == row["shapes"]
                and not (row["eager_calls"] or row["failed_calls"] or row["hung"]),
            }
        )
    return rows


def run(arguments: argparse.Namespace) -> Path:
    """Makes all runs, writing the results after each configuration; returns their file."""
    env = environment()
    say(environment_line(env))
    out = Path(arguments.out) if arguments.out else result_path("cold_start", env)
    table: list[dict[str, Any]] = []
    timelines: dict[str, Any] = {}
    for backend in arguments.backends.split(","):
        for shapes in map(int, arguments.shapes.split(",")):
            for threads in map(int, arguments.threads.split(",")):
                for variant in arguments.variants.split(","):
                    if variant == "alone" and any(
                        (r["variant"], r["backend"], r["shapes"]) == (variant, backend, shapes) for r in table
                    ):
                        continue
                    config = {
                        "backend": backend,
                        "shapes": shapes,
                        "variant": variant,
                        "threads": 1 if variant == "alone" else threads,
                    }
                    more = {"staged_s": arguments.staged_s, "time_limit_s": arguments.time_limit}
                    runs = [
                        run_child(
                            "benchmarks._cold_child",
                            {**config, **more, "watch": number == 0},
                            time_limit_s=arguments.time_limit + 60,
                        )
                        for number in range(arguments.runs)
                    ]
                    row = summary(config, runs)
                    table.append(row)
                    if variant in ("plain", "safe") and threads <= 8:
                        timelines[f"{backend} {shapes} {threads} {variant}"] = runs[0].get("timeline")
                    errors = sorted({error for one in runs for error in one.get("errors", [])})
                    if errors:
                        row["errors"] = errors[:2]
                    data = {
                        "benchmark": "cold_start",
                        "environment": env,
                        "staged_s": arguments.staged_s,
                        "must_hold": judged(table),
                        "table": table,
                        "timelines": timelines,
                    }
                    write_json(out, data)
                    say(
                        f"{backend}, {config['threads']} threads x {shapes}, {variant}: {row.get('wall_s')} s, "
                        f"{row['compiles']} compiles, {row['eager_calls']} eager, {row['failed_calls']} failed "
                        f"{errors[:1] or ''}"
                    )
    return out


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--threads", default="8,32")
    add("--shapes", default="1,6")
    add("--backends", default="staged,eager,aot_eager,inductor")
    add("--variants", default=",".join(VARIANTS))
    add("--runs", type=int, default=3)
    add("--staged-s", type=float, default=5.0, help="how long a compile of the staged backend takes")
    add("--time-limit", type=float, default=300.0)
    add("--out")
    return parser.parse_args(given)


if __name__ == "__main__":
    say(f"results: {run(arguments()).name}")

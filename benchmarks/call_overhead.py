"""What a warm call costs: its instructions, and its time in interleaved blocks in one process.

Two functions: the smallest one (backend ``eager``: the call is all there is), and a module with flex_attention and a
block mask. One thread and eight. ``--blocks`` timed blocks of each variant, ``--samples`` of the count of instructions
(0 leaves it out), ``--time-limit`` seconds for a function. ``python -m benchmarks.call_overhead --blocks 200``
"""

from __future__ import annotations

import argparse
import gc
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from . import _instructions
from ._common import begin, bootstrap, held, main, parsed, rounded, run_child, say, write_json
from ._variants import NAMES, Switch, wrapped

#: Calls in a timed block, and before it, by function and number of threads.
CALLS = {
    "function": [{"threads": 1, "calls": 200, "warm_calls": 100}, {"threads": 8, "calls": 40, "warm_calls": 15}],
    "module": [{"threads": 1, "calls": 60, "warm_calls": 10}, {"threads": 8, "calls": 15, "warm_calls": 4}],
}
BACKENDS = {"function": "eager", "module": "inductor"}


class Team:
    """Threads that make calls together: each block begins when all are ready and ends when the last is done."""

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size + 1)
        self._work: tuple[Callable[..., Any], tuple[Any, ...], int]  # set between barriers only
        for _ in range(size):
            threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            while True:
                self._barrier.wait()
                fn, arguments, calls = self._work
                for _ in range(calls):
                    fn(*arguments)
                self._barrier.wait()
        except BaseException:
            self._barrier.abort()  # the main thread raises instead of waiting for ever
            raise

    def time(self, fn: Callable[..., Any], arguments: tuple[Any, ...], calls: int) -> float:
        """Returns the seconds in which every thread makes ``calls`` calls."""
        self._work = fn, arguments, calls
        self._barrier.wait()
        began = time.perf_counter()
        self._barrier.wait()
        return time.perf_counter() - began


def measure(fn: Callable[..., Any], arguments: tuple[Any, ...], switch: Switch, settings: dict[str, Any]) -> Any:
    """Times all variants in shuffled order, block by block; returns a row for each, compared with plain torch."""
    threads, calls, warm = settings["threads"], settings["calls"], settings["warm_calls"]
    callers = {name: wrapped(name, fn) for name in NAMES}
    samples: dict[str, list[float]] = {name: [] for name in NAMES}
    team, rng = Team(threads), random.Random(0)
    for block in range(settings["blocks"] + 2):
        for name in rng.sample(NAMES, len(NAMES)):
            # The patches move before every variant, the same way round: CPython's inline caches then start alike.
            switch.turn(on=name != "safe")
            team.time(fn, arguments, warm)
            switch.turn(on=name == "safe")
            team.time(callers[name], arguments, warm)
            wall = team.time(callers[name], arguments, calls)
            if block >= 2:
                samples[name].append(wall / (calls * threads) * 1e9)
    rows = []
    for name, values in samples.items():
        ratios = [one / other for one, other in zip(values, samples["plain"], strict=True)]
        row = {"function": settings["function"], "threads": threads, "variant": name, "blocks": len(values)}
        row |= {"ns_per_call": rounded(median(values)), "ratio": rounded(median(ratios), 5)}
        rows.append({**row, "ratio_95": [rounded(bound, 5) for bound in bootstrap(ratios)]})
    return rows


def child(settings: dict[str, Any]) -> dict[str, Any]:
    """Measures one function with each number of threads."""
    import torch

    from . import _functions

    torch.set_num_threads(1)
    switch = Switch()
    fn, arguments = _functions.build(settings["function"], settings["backend"])
    fn(*arguments)  # no argument and no parameter requires a gradient: all threads find this one compile
    gc.collect()
    gc.disable()
    rows = [row for team in CALLS[settings["function"]] for row in measure(fn, arguments, switch, {**settings, **team})]
    switch.turn(on=False)
    return {"rows": rows, "is_torchs_own_when_off": switch.is_torchs_own()}


def instructions(samples: int) -> dict[str, Any]:
    """Counts the smallest function's warm call, plain and safe; nothing where callgrind is missing."""
    if not samples or not _instructions.is_available():
        return {}
    settings = {"function": "function", "backend": "eager", "samples": samples}
    counted = {**_instructions.count({**settings, "safe": False}), **_instructions.count({**settings, "safe": True})}
    for values in counted.values():
        for name in ("plain", "all taken out"):
            values[f"ratio to {name}"] = round(values["median"] / counted[name]["median"], 5)
    return counted


def judged(data: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns what must hold of the instructions and of the times."""
    rows = []
    if safe := data["instructions"].get("safe"):
        measured = "{:.4f}; beside the same process with the patches taken out {:.4f}"
        measured = measured.format(safe["ratio to plain"], safe["ratio to all taken out"])
        kept = min(safe["ratio to plain"], safe["ratio to all taken out"]) <= 1.005
        rows.append(held("instructions of a warm call, plain torch = 1", "at most 1.005", measured, kept))
    again = {(row["function"], row["threads"]): row for row in data["table"] if row["variant"] == "plain again"}
    for row in data["table"]:
        if row["variant"] == "safe":
            threads = "1 thread" if row["threads"] == 1 else f"{row['threads']} threads"
            what = f"time of a warm call of the {row['function']}, {threads}, plain torch = 1"
            measured = "{:.3f} [{:.3f}, {:.3f}]".format(row["ratio"], *row["ratio_95"])
            measured += "; plain again [{:.3f}, {:.3f}]".format(*again[row["function"], row["threads"]]["ratio_95"])
            rows.append(held(what, "95 % interval holds 1.01 or is below", measured, row["ratio_95"][0] <= 1.01))
    return rows


def run(arguments: argparse.Namespace) -> Path:
    """Measures everything; returns the file of the results."""
    data, out = begin("call_overhead", arguments)
    data["instructions"], data["table"], data["errors"] = instructions(arguments.samples), [], []
    for name, values in data["instructions"].items():
        say(f"{name}: {values}")
    for function in arguments.functions.split(","):
        settings = {"function": function, "backend": BACKENDS[function], "blocks": arguments.blocks}
        answer = run_child("benchmarks.call_overhead", settings, time_limit_s=arguments.time_limit)
        data["table"] += answer.get("rows", [])
        data["errors"] += answer.get("errors", [])
        data["must_hold"] = judged(data)
        write_json(out, data)
        for row in answer.get("rows", [answer]):
            say(f"{row}")
    return out


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """Parses the command line."""
    return parsed(__doc__, given, blocks=200, samples=25, functions="function,module", time_limit=1800.0)


if __name__ == "__main__":
    main(child, run, arguments)

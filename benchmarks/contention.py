"""What a warm thread feels while other threads compile and trace: the latency of its calls.

One thread calls a function that is compiled, all the time, for the seconds of each scene; in the scenes other
threads do nothing (``quiet``), compile the same function for new shapes (``same function``), compile other functions
(``other functions``), make symbolic traces (``traces``) or call ``torch.compiler.reset()`` every 100 ms (``resets``:
the warm thread compiles again after each). Each scene and variant has a process of its own, for ``--seconds``; one that
crashes says so.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ._common import begin, held, main, parsed, percentile, run_child, say, told, write_json
from ._variants import Call, compiler_of, wrapped
from .cold_start import Recorder

SCENES = ("quiet", "same function", "other functions", "traces", "resets")
VARIANTS = ("plain", "safe", "rlock in every call")


def child(settings: dict[str, Any]) -> dict[str, Any]:
    """Plays one scene; returns the percentiles of the warm thread's latencies, in microseconds."""
    import torch

    from ._functions import smallest

    torch.set_num_threads(1)
    compile_ = compiler_of(settings["variant"])
    backend = Recorder("staged", settings["staged_s"])
    fn = wrapped(settings["variant"], compile_(smallest, backend=backend, dynamic=False))
    x = torch.randn(4)
    fn(x)
    end = time.perf_counter() + settings["seconds"]
    done: list[None] = []
    errors: list[str] = []

    def noise(number: int) -> None:
        make = _noise(settings["scene"], fn, compile_, backend, settings["variant"])
        for count in itertools.count(number * 1000):
            if time.perf_counter() >= end:
                return
            try:
                make(count)
                done.append(None)
            except Exception as error:  # noqa: BLE001 - counted, whatever it is
                errors.append(told(error))

    for number in range(0 if settings["scene"] == "quiet" else 2):
        threading.Thread(target=noise, args=(number,), daemon=True).start()
    latencies, failed = [], 0
    while time.perf_counter() < end:
        began = time.perf_counter()
        try:
            fn(x)
        except Exception as error:  # noqa: BLE001 - counted, whatever it is
            failed += 1
            errors.append(f"warm call: {told(error)}")
        latencies.append(time.perf_counter() - began)
        time.sleep(0.0002)  # the interpreter's lock goes round: a loop that never lets go measures that lock alone
    microseconds = {f"p{p}": round(percentile(latencies, p) * 1e6, 1) for p in (50, 95, 99)}
    return {
        **microseconds,
        "max": round(max(latencies) * 1e6, 1),
        "calls": len(latencies),
        "failed_calls": failed,
        "done_by_others": len(done),
        "failed_others": len(errors) - failed,
        "errors": sorted(set(errors))[:2],
    }


def _noise(scene: str, fn: Call, compile_: Call, backend: Any, variant: str) -> Callable[[int], None]:
    """Returns what the other threads do, again and again."""
    import torch

    def same_function(number: int) -> None:
        if number % 1000 >= 3:  # two threads, three shapes each: the limit of versions per function is eight
            sys.exit()
        fn(torch.randn(10 + number % 1000 + number // 1000 * 3))

    def other_functions(number: int) -> None:
        space: dict[str, Any] = {}
        exec(f"def other_{number}(x): return x * {number}.5 + 1", space)
        wrapped(variant, compile_(space[f"other_{number}"], backend=backend))(torch.randn(4))

    def traces(_: int) -> None:
        torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()))

    def resets(_: int) -> None:
        time.sleep(0.1)
        torch.compiler.reset()

    return {"same function": same_function, "other functions": other_functions, "traces": traces, "resets": resets}[
        scene
    ]


def run(arguments: argparse.Namespace) -> Path:
    """Plays all scenes; returns the file of the results."""
    head, out = begin("contention", arguments)
    data: dict[str, Any] = {**head, "seconds": arguments.seconds, "table": []}
    for scene, variant in itertools.product(SCENES, arguments.variants.split(",")):
        staged_s = 0.01 if scene == "resets" else 0.5
        settings = {"scene": scene, "variant": variant, "seconds": arguments.seconds, "staged_s": staged_s}
        one = run_child("benchmarks.contention", settings, time_limit_s=arguments.seconds + 120)
        data["table"].append({"scene": scene, "variant": variant, **one})
        failed = sum(row.get("failed_calls", 1) for row in data["table"] if row["variant"] == "safe")
        what = "warm calls that fail beside compiles, traces and resets"
        data["must_hold"] = [held(what, "0", str(failed), failed == 0)]
        write_json(out, data)
        say(f"{scene}, {variant}: {one}")
    return out


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """Parses the command line."""
    return parsed(__doc__, given, seconds=6.0, variants=",".join(VARIANTS))


if __name__ == "__main__":
    main(child, run, arguments)

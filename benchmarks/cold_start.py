"""Cold starts: N threads call one function with K shapes at the same moment, in a fresh process each time.

Variants: one thread alone (``alone``), plain torch, the locks that people write, safe_compile, and a warm-up on the
main thread (``warmup``). Backends: eager, aot_eager, inductor, and ``staged``, which sleeps and so shows the waits
without the noise of a busy machine (``--staged-s``). ``--runs`` processes for each, ``--time-limit`` seconds.

    python -m benchmarks.cold_start --threads 32 --shapes 6 --backends staged       # the README's picture
"""

from __future__ import annotations

import argparse
import itertools
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from ._common import begin, held, main, parsed, rounded, run_child, say, told, write_json
from ._host import backend_named
from ._variants import compiler_of, wrapped

VARIANTS = ("alone", "plain", "rlock in first call", "rlock in every call", "safe", "warmup")
LIMIT = "a compile for each shape, none eager, 1.1 x one thread + 0.3 s"


class Recorder:
    """A backend that counts its compiles and the calls of what it compiled, and passes all else on.

    ``compiles`` and ``runs`` are only appended to.
    """

    def __init__(self, name: str, staged_s: float) -> None:
        self.staged_s = staged_s if name == "staged" else 0.0
        self.backend = backend_named("eager" if name == "staged" else name)
        self.compiles: list[None] = []
        self.runs: list[None] = []

    def __call__(self, graph: Any, inputs: Any) -> Callable[..., Any]:
        self.compiles.append(None)
        time.sleep(self.staged_s)
        compiled = self.backend(graph, inputs)

        def counted(*arguments: Any) -> Any:
            self.runs.append(None)
            return compiled(*arguments)

        return counted


def child(settings: dict[str, Any]) -> dict[str, Any]:
    """Makes one run; returns wall time, compiles, calls that ran eager, and when the threads had a first result."""
    import torch

    def function(x: Any, weight: Any) -> Any:
        return torch.nn.functional.gelu(x @ weight).softmax(-1) + x.sin()

    torch.set_num_threads(1)
    variant, threads = settings["variant"], settings["threads"]
    recorder = Recorder(settings["backend"], settings["staged_s"])
    fn = wrapped(variant, compiler_of(variant)(function, backend=recorder, dynamic=False))
    weight = torch.randn(16, 16)
    inputs = [torch.randn(4 + shape, 16) for shape in range(settings["shapes"])]
    wanted = [function(x, weight) for x in inputs]
    firsts: list[float] = []
    errors: list[str] = []
    start = threading.Barrier(threads + 1)

    def caller() -> None:
        start.wait()
        try:
            for number, (x, value) in enumerate(zip(inputs, wanted, strict=True)):
                result = fn(x, weight)
                if number == 0:
                    firsts.append(time.perf_counter() - began)
                torch.testing.assert_close(result, value, atol=1e-5, rtol=1e-5)
        except Exception as error:  # noqa: BLE001 - counted, whatever it is
            errors.append(told(error))

    team = [threading.Thread(target=caller, daemon=True) for _ in range(threads)]
    for thread in team:
        thread.start()
    began = time.perf_counter()
    for x in inputs if variant == "warmup" else ():
        fn(x, weight)
    start.wait()
    for thread in team:
        thread.join(max(0.0, settings["time_limit_s"] - (time.perf_counter() - began)))
    calls = (threads + (variant == "warmup")) * len(inputs)
    return {
        "hung": any(thread.is_alive() for thread in team),
        "errors": errors[:3],
        "failed_calls": len(errors),
        "wall_s": rounded(time.perf_counter() - began),
        "compiles": len(recorder.compiles),
        "eager_calls": calls - len(recorder.runs) - len(errors),
        "last_first_result_s": rounded(max(firsts, default=0.0)),
    }


def summary(config: dict[str, Any], runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the medians of the runs that ended, and the worst of what must not happen."""
    ended = [one for one in runs if not one["hung"] and "wall_s" in one]
    row = {**config, "runs": len(runs), "hung": sum(one["hung"] for one in runs)}
    if ended:
        walls = [one["wall_s"] for one in ended]
        row |= {"wall_s": rounded(median(walls)), "wall_s_range": [min(walls), max(walls)]}
        row["last_first_result_s"] = rounded(median(one["last_first_result_s"] for one in ended))
        row |= {name: max(one[name] for one in ended) for name in ("compiles", "eager_calls", "failed_calls")}
    errors = sorted({error for one in runs for error in one["errors"]})
    return {**row, "errors": errors[:2]} if errors else row


def judged(row: dict[str, Any], alone: dict[str, Any]) -> dict[str, Any]:
    """Returns whether a safe cold start kept to its limit, beside that of one thread."""
    what = f"{row['threads']} cold threads, {row['shapes']} shapes, backend {row['backend']}"
    if "wall_s" not in row:
        return held(what, LIMIT, "no result", kept=False)
    kept = row["compiles"] == row["shapes"] and not (row["eager_calls"] or row["failed_calls"] or row["hung"])
    measured = f"{row['compiles']} compiles, {row['eager_calls']} eager, {row['wall_s']:.3g} s"
    measured += f"; one thread {alone['wall_s']:.3g} s"
    return held(what, LIMIT, measured, kept and row["wall_s"] <= 1.1 * alone["wall_s"] + 0.3)


def run(arguments: argparse.Namespace) -> Path:
    """Makes all runs, writing the results after each configuration; returns their file."""
    head, out = begin("cold_start", arguments)
    data = {**head, "staged_s": arguments.staged_s, "must_hold": [], "table": []}
    split = (getattr(arguments, name).split(",") for name in ("backends", "shapes", "threads", "variants"))
    alone: dict[tuple[str, str], dict[str, Any]] = {}
    for backend, shapes, threads, variant in itertools.product(*split):
        if variant == "alone" and (backend, shapes) in alone:
            continue
        count = 1 if variant == "alone" else int(threads)
        config = {"backend": backend, "shapes": int(shapes), "threads": count, "variant": variant}
        settings = {**config, "staged_s": arguments.staged_s, "time_limit_s": arguments.time_limit}
        limit = arguments.time_limit + 60
        runs = [run_child("benchmarks.cold_start", settings, time_limit_s=limit) for _ in range(arguments.runs)]
        data["table"].append(summary(config, runs))
        if variant == "alone":
            alone[backend, shapes] = data["table"][-1]
        elif variant == "safe" and "wall_s" in alone.get((backend, shapes), {}):
            data["must_hold"].append(judged(data["table"][-1], alone[backend, shapes]))
        write_json(out, data)
        say(f"{data['table'][-1]}")
    return out


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """Parses the command line."""
    some = {"threads": "8,32", "shapes": "1,6", "backends": "staged,eager,aot_eager,inductor"}
    return parsed(__doc__, given, **some, variants=",".join(VARIANTS), runs=3, staged_s=5.0, time_limit=300.0)


if __name__ == "__main__":
    main(child, run, arguments)

"""A cold server: 32 threads answer requests of mixed batch sizes with one model, and the latency of each answer.

Each way to serve has a process of its own: eager, plain torch, a lock by hand, safe_compile, and safe_compile with
``max_wait_s`` 1 and 0. Then, in one process and in turns, *beside a compile*: 31 threads that call a cold function
with ``max_wait_s=0`` while the 32nd compiles it, against 31 that call it eagerly beside a thread that makes the same
compile: what the limit costs, where the share of the interpreter's lock is the same.

``--seconds`` for which each way serves, ``--rounds`` beside a compile, ``--variants`` divided by ``|``, and a
``--note`` for the result: what else the machine did.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from ._common import begin, main, parsed, percentile, run_child, say, told, write_json
from ._variants import compiler_of, wrapped

VARIANTS = ("eager", "plain", "rlock in every call", "safe", "safe, max_wait_s=1", "safe, max_wait_s=0")
BATCHES = (1, 2, 3, 5, 8, 13)
WIDTH = 256
LAYERS = 12
#: Seconds between two requests of a thread: the interpreter's lock must not be what they all wait for.
PAUSE_S = 0.1
#: The same beside a compile: what a process can answer meanwhile, and ten times as many requests, which it can't.
BESIDE_PAUSES_S = (1.0, 0.1)


def _model(scale: float = 1.0) -> Any:
    """Returns a model that takes about a millisecond; ``scale`` is in its kernels, so that each is compiled anew."""
    import torch

    class Layer(torch.nn.Module):
        def __init__(self, number: int) -> None:
            super().__init__()
            self.linear, self.scale = torch.nn.Linear(WIDTH, WIDTH), scale + number % 3 / 100

        def forward(self, x: Any) -> Any:
            return torch.nn.functional.gelu(self.linear(x)) * self.scale

    torch.manual_seed(0)
    return torch.nn.Sequential(*map(Layer, range(LAYERS))).eval()


def _compiled(variant: str, model: Any, **keywords: Any) -> Callable[..., Any]:
    if variant == "eager":
        return model  # type: ignore[no-any-return]
    if variant.startswith("safe, "):
        keywords["max_wait_s"] = float(variant.partition("=")[2])
    return wrapped(variant, compiler_of(variant.partition(",")[0])(model, **keywords))


def child(settings: dict[str, Any]) -> dict[str, Any]:
    """Serves in one way, or measures beside a compile; returns latencies in milliseconds."""
    import torch

    torch.set_num_threads(1)
    torch.compile(lambda x: x + 1)(torch.ones(3))  # what Inductor checks once for each machine
    return _beside(settings) if settings["variant"] == "beside" else _serve(settings)


def _serve(settings: dict[str, Any]) -> dict[str, Any]:
    import torch

    model = _model()
    inputs = [torch.randn(size, WIDTH) for size in BATCHES]
    with torch.no_grad():
        expected = [model(x) for x in inputs]
    serve = _compiled(settings["variant"], model, dynamic=True)
    uncompiled: list[Any] = []
    if settings["variant"].startswith("safe"):
        from safecompile._common import events

        events.subscribe(lambda miss: uncompiled.append(miss) if miss.outcome == "uncompiled" else None)
    threads, began = settings["threads"], time.perf_counter()
    answers: list[list[tuple[float, float]]] = [[] for _ in range(threads)]
    errors: list[str] = []

    def work(index: int) -> None:
        turn = index
        while time.perf_counter() < began + settings["seconds"]:
            turn += 1
            asked = time.perf_counter()
            try:
                with torch.no_grad():
                    out = serve(inputs[turn % len(inputs)])
                torch.testing.assert_close(out, expected[turn % len(inputs)])
            except Exception as error:  # noqa: BLE001 - counted, whatever it is
                errors.append(told(error))
            answers[index].append((asked - began, (time.perf_counter() - asked) * 1e3))
            time.sleep(PAUSE_S)

    _together([partial(work, index) for index in range(threads)])
    every = [one for each in answers for one in each]
    first = sorted(each[0][1] for each in answers)
    points = sorted(every, key=lambda one: -one[1])[:200] + every[:: max(1, len(every) // 600)]
    return {
        "answers": len(every),
        **{f"p{p}_ms": round(percentile([ms for _, ms in every], p), 2) for p in (50, 95, 99)},
        "first": {f"p{p}_ms": round(percentile(first, p), 1) for p in (50, 95, 99)},
        "longest_first_ms": round(first[-1], 1),
        "longest_ms": round(max(ms for _, ms in every), 1),
        "uncompiled": len(uncompiled),
        "failed": len(errors),
        "errors": sorted(set(errors))[:2],
        "points": [[round(at, 2), round(ms, 2)] for at, ms in sorted(points)],
    }


def _together(works: list[Callable[[], None]]) -> None:
    team = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in team:
        thread.start()
    for thread in team:
        thread.join()


def _beside(settings: dict[str, Any]) -> dict[str, Any]:
    import torch._inductor.config

    torch._inductor.config.force_disable_caches = True
    medians: dict[str, Any] = {}
    scale, names, all_rounds = 1.0, ("p50_ms", "p99_ms", "compile_s", "answers"), {}
    for pause_s in BESIDE_PAUSES_S:
        rounds: dict[str, list[dict[str, float]]] = {"eager": [], "max_wait_s=0": []}
        for _ in range(settings["rounds"]):
            for way, found in rounds.items():
                torch.compiler.reset()
                scale += 1e-3
                found.append(_one_round(way, settings["threads"], scale, pause_s))
        load = f"{(settings['threads'] - 1) / pause_s:.0f} requests a second"
        all_rounds[load] = rounds
        row = {way: {name: median(one[name] for one in found) for name in names} for way, found in rounds.items()}
        row["ratio"] = {name: row["max_wait_s=0"][name] / row["eager"][name] for name in names}
        medians |= {f"{load}, {way}": {name: round(x, 2) for name, x in each.items()} for way, each in row.items()}
    return {"medians": medians, "rounds": all_rounds}


def _one_round(way: str, threads: int, scale: float, pause_s: float) -> dict[str, float]:
    """Has one thread compile while the others call; returns what the others' calls took meanwhile."""
    import torch

    x, model, other = torch.randn(8, WIDTH), _model(scale), _model(scale)
    serve = _compiled("safe, max_wait_s=0", model, dynamic=False)
    compiles = serve if way != "eager" else _compiled("safe", other, dynamic=False)
    began, ended = threading.Event(), threading.Event()
    took: list[float] = []
    seconds: list[float] = []

    def lead() -> None:
        at = time.perf_counter()
        threading.Timer(0.2, began.set).start()  # the compile is under way by then
        with torch.no_grad():
            compiles(x)
        seconds.append(time.perf_counter() - at)
        ended.set()

    def follow(index: int) -> None:
        began.wait()
        time.sleep(pause_s * index / threads)
        call = serve if way != "eager" else model
        while not ended.is_set():
            at = time.perf_counter()
            with torch.no_grad():
                call(x)
            if not ended.is_set():
                took.append((time.perf_counter() - at) * 1e3)
            time.sleep(pause_s)

    _together([lead, *(partial(follow, index) for index in range(1, threads))])
    return {
        "p50_ms": percentile(took, 50),
        "p99_ms": percentile(took, 99),
        "compile_s": seconds[0],
        "answers": len(took),
    }


def run(arguments: argparse.Namespace) -> Path:
    """Serves in each way, one after the other; returns the file of the results."""
    head, out = begin("serving", arguments)
    data: dict[str, Any] = {**head, "threads": arguments.threads, "table": []}
    if arguments.note:
        data["note"] = arguments.note
    for variant in [*arguments.variants.split("|"), "beside"]:
        settings = {"variant": variant, **{name: getattr(arguments, name) for name in ("threads", "seconds", "rounds")}}
        one = run_child("benchmarks.serving", settings, time_limit_s=arguments.seconds + 120 * arguments.rounds + 120)
        if variant == "beside":
            data["beside"] = one
        else:
            data["table"].append({"variant": variant, **one})
        write_json(out, data)
        say(f"{variant}: { ({name: value for name, value in one.items() if name not in ('points', 'rounds')}) }")
    return out


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """Parses the command line."""
    return parsed(__doc__, given, threads=32, seconds=30.0, rounds=5, variants="|".join(VARIANTS), note="")


if __name__ == "__main__":
    main(child, run, arguments)

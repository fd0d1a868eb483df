"""One cold start: N threads call one compiled function with K shapes, all at once, in a process of its own."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ._common import anonymous, rounded
from ._host import backend_named
from ._variants import compiler_of, wrapped
from ._watch import Watch


class Recorder:
    """A backend that counts its compiles and the calls of what it compiled, and passes all else on.

    ``compiles`` and ``runs`` are only appended to.
    """

    def __init__(self, name: str, staged_s: float) -> None:
        self.staged_s = staged_s if name == "staged" else 0.0
        self.backend = backend_named("eager" if name == "staged" else name)
        self.compiles: list[str] = []
        self.runs: list[None] = []

    def __call__(self, graph: Any, inputs: Any) -> Callable[..., Any]:
        self.compiles.append(threading.current_thread().name)
        time.sleep(self.staged_s)
        compiled = self.backend(graph, inputs)

        def counted(*arguments: Any) -> Any:
            self.runs.append(None)
            return compiled(*arguments)

        return counted


def function(x: Tensor, weight: Tensor) -> Tensor:
    """A small layer: enough for a trace, a lowering and a kernel."""
    return torch.nn.functional.gelu(x @ weight).softmax(-1) + x.sin()


def run(settings: dict[str, Any]) -> dict[str, Any]:
    """Makes the run; returns wall time, CPU time, compiles, fallbacks and when each thread had its first result."""
    torch.set_num_threads(1)
    variant, threads = settings["variant"], settings["threads"]
    compile_ = compiler_of(variant)
    recorder = Recorder(settings["backend"], settings["staged_s"])
    fn = wrapped(variant, compile_(function, backend=recorder, dynamic=False))
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
                if not torch.allclose(result, value, atol=1e-5):
                    errors.append("wrong result")
        except Exception as error:  # noqa: BLE001 - counted, whatever it is
            errors.append(anonymous(f"{type(error).__name__}: {str(error).strip()[:200]}"))

    team = [threading.Thread(target=caller, name=f"caller-{n}", daemon=True) for n in range(threads)]
    for thread in team:
        thread.start()
    cpu, began = time.process_time(), time.perf_counter()
    watch = Watch(("caller", "MainThread"), every_s=0.05) if settings.get("watch") else None
    if variant == "warmup":
        for x in inputs:
            fn(x, weight)
    start.wait()
    for thread in team:
        thread.join(max(0.0, settings["time_limit_s"] - (time.perf_counter() - began)))
    wall = time.perf_counter() - began
    if watch is not None:
        watch.stop()
    calls = threads * len(inputs) + (len(inputs) if variant == "warmup" else 0)
    return {
        "hung": any(thread.is_alive() for thread in team),
        "errors": errors[:3],
        "failed_calls": len(errors),
        "wall_s": rounded(wall),
        "cpu_s": rounded(time.process_time() - cpu),
        "compiles": len(recorder.compiles),
        "eager_calls": calls - len(recorder.runs) - len(errors),
        "first_result_s": rounded(min(firsts)) if firsts else None,
        "last_first_result_s": rounded(max(firsts)) if firsts else None,
        "timeline": {name: spans[:20] for name, spans in sorted(watch.spans.items())} if watch else None,
    }


if __name__ == "__main__":
    print(json.dumps(run(json.loads(sys.argv[1]))), flush=True)
    os._exit(0)

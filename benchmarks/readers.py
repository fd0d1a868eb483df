"""What the isolation costs those who only read: ``is_compiling()`` and a call of an ``nn.Module``, in nanoseconds.

Plain torch, the library, and the library beside another thread that traces symbolically or compiles; the best of 15.
``python -m benchmarks.readers``
"""

from __future__ import annotations

import threading
import timeit
from collections.abc import Callable
from typing import Any

import torch
import torch.fx

import safecompile

from ._common import environment, environment_line, result_path, say, write_json

CALLS = 200_000


def best(call: Callable[[], Any]) -> float:
    """Returns the nanoseconds that one call takes, with the loop's own."""
    return round(min(timeit.repeat(call, number=CALLS, repeat=15)) / CALLS * 1e9, 1)


def beside(start: Callable[[Callable[[], None]], Any], measure: Callable[[], Any]) -> Any:
    """Returns what ``measure`` returns while another thread is parked inside what ``start`` does."""
    inside, go = threading.Event(), threading.Event()

    def park() -> None:
        inside.set()
        go.wait(120)

    thread = threading.Thread(target=start, args=(park,))
    thread.start()
    try:
        if not inside.wait(30):
            msg = "the other thread has not come to where it was to wait"
            raise RuntimeError(msg)
        return measure()
    finally:
        go.set()
        thread.join()


def tracing(park: Callable[[], None]) -> None:
    """Traces a module symbolically, and parks in its forward."""

    class Parked(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            park()
            return x + 1

    torch.fx.symbolic_trace(Parked())


def compiling(park: Callable[[], None]) -> None:
    """Compiles a function, and parks in the backend."""

    def backend(graph: Any, _: Any) -> Any:
        park()
        return graph.forward

    torch.compile(lambda x: x * 3, backend=backend)(torch.ones(2))


def run() -> None:
    """Measures, and writes the results."""
    module, x, is_compiling = torch.nn.Identity(), torch.zeros(1), torch.compiler.is_compiling
    torch.compile(lambda x: x + 1, backend="eager")(x)

    def measure() -> dict[str, float]:
        return {"is_compiling_ns": best(is_compiling), "module_ns": best(lambda: module(x))}

    found = {"plain": measure()}
    safecompile.install()
    torch.compile(lambda x: x + 2, backend="eager")(x)
    found["safe"] = measure()
    found["safe, beside a trace"] = beside(tracing, measure)
    found["safe, beside a compile"] = beside(compiling, measure)
    env = environment()
    say(environment_line(env))
    for name, row in found.items():
        say(f"{name}: {row}")
    write_json(result_path("readers", env), {"benchmark": "readers", "environment": env, "table": found})


if __name__ == "__main__":
    run()

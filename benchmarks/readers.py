"""What the isolation costs those who only read: ``is_compiling()`` and a call of an ``nn.Module``, in nanoseconds.

In turns in one process: plain torch, plain torch once more (the noise), safecompile, and safecompile beside another
thread that is parked in a symbolic trace or in a compile. Each is compared with plain torch's of the same round:
``--rounds`` blocks of each kind, of ``--calls`` calls, of which the best of three counts.

    python -m benchmarks.readers --rounds 40
"""

from __future__ import annotations

import argparse
import random
import threading
import timeit
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median
from typing import Any

from ._common import begin, below, bootstrap, held, parsed, rounded, say, write_json
from .costs import new_functions

NAMES = ("plain", "plain again", "safe", "safe, beside a trace", "safe, beside a compile")
#: What a call of a module runs, and what a trace exchanges.
METHODS = ("__call__", "_wrapped_call_impl", "_call_impl", "__getattr__")


@contextmanager
def beside(work: Callable[[Callable[[], None]], Any]) -> Iterator[None]:
    """Keeps another thread parked inside what ``work`` does."""
    inside, go = threading.Event(), threading.Event()

    def park() -> None:
        inside.set()
        go.wait(120)

    thread = threading.Thread(target=work, args=(park,))
    thread.start()
    try:
        if not inside.wait(30):
            msg = "the other thread has not come to where it was to wait"
            raise RuntimeError(msg)
        yield
    finally:
        go.set()
        thread.join()


def trace(park: Callable[[], None]) -> None:
    """Traces a module symbolically, and parks in its forward."""
    import torch
    import torch.fx

    class Parked(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            park()
            return x + 1

    torch.fx.symbolic_trace(Parked())


def compile_one(park: Callable[[], None]) -> None:
    """Compiles a function, and parks in the backend."""
    import torch

    def backend(graph: Any, _: Any) -> Any:
        park()
        return graph.forward

    torch.compile(new_functions("parked", 1)[0], backend=backend)(torch.ones(2))


def run(arguments: argparse.Namespace) -> Path:
    """Measures, and writes the results."""
    import torch

    from ._variants import Switch

    head, out = begin("readers", arguments)
    module, x, is_compiling = torch.nn.Identity(), torch.zeros(1), torch.compiler.is_compiling
    compile_one(lambda: None)  # imports what it needs

    def code() -> list[Any]:
        functions = [vars(torch.nn.Module)[name] for name in METHODS]
        return [*functions, *(function.__code__ for function in functions)]

    before, switch, rng = code(), Switch(), random.Random(0)
    calls: dict[str, Callable[[], Any]] = {"is_compiling": is_compiling, "module": lambda: module(x)}
    others = {NAMES[3]: trace, NAMES[4]: compile_one}
    taken: dict[str, dict[str, list[float]]] = {key: {name: [] for name in NAMES} for key in calls}
    for number in range(arguments.rounds + 1):
        for name in rng.sample(NAMES, len(NAMES)):
            switch.turn(name.startswith("plain"))  # the patches move before every block, the same way round
            switch.turn(not name.startswith("plain"))
            with beside(others[name]) if name in others else nullcontext():
                for key, call in calls.items():
                    timeit.timeit(call, number=arguments.calls // 10)
                    best = min(timeit.repeat(call, number=arguments.calls, repeat=3)) / arguments.calls * 1e9
                    if number:
                        taken[key][name].append(best)
    switch.turn(True)
    own = all(now is then for now, then in zip(code(), before, strict=True))
    table = [{"call": key, "variant": name, **summary(taken[key], name)} for key in calls for name in NAMES]
    settings = {"rounds": arguments.rounds, "calls": arguments.calls}
    data = {**head, "settings": settings, "modules_code_is_torchs_own": own, "table": table}
    write_json(out, {**data, "must_hold": judged(data)})
    for row in table:
        say(f"{row}")
    return out


def judged(data: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns what must hold of each reader's cost."""
    rows = {(row["call"], row["variant"]): row for row in data["table"]}
    release = data["environment"]["torch"].partition("+")[0]

    def row(call: str, variant: str, limit_ns: float) -> dict[str, Any]:
        one, again = rows[call, variant], rows[call, "plain again"]
        measured = "{:+.0f} [{:+.0f}, {:+.0f}] ns".format(one["added_ns"], *one["added_ns_95"])
        measured += "; plain again [{:+.0f}, {:+.0f}]".format(*again["added_ns_95"])
        what = f"{call}: {variant}, torch {release}"
        return held(what, f"at most +{limit_ns:g} ns", measured, below(one["added_ns_95"], limit_ns))

    quiet = row("module", "safe", 0)
    # No interval of a noisy measure ends at 0: with torch's own code it is kept if it is not measurably slower.
    quiet |= {"limit": "torch's own code", "kept": data["modules_code_is_torchs_own"] and quiet["kept"] is not False}
    return [*(row("is_compiling", name, 100) for name in NAMES[2:]), quiet, row("module", NAMES[3], 400)]


def summary(taken: dict[str, list[float]], name: str) -> dict[str, Any]:
    """Returns the median of a call's nanoseconds, and of those added to plain torch's of the same round."""
    added = [ns - plain for ns, plain in zip(taken[name], taken["plain"], strict=True)]
    return {
        "ns": rounded(median(taken[name])),
        "added_ns": rounded(median(added)),
        "added_ns_95": [rounded(bound) for bound in bootstrap(added)],
    }


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """Parses the command line."""
    return parsed(__doc__, given, rounds=40, calls=50_000)


if __name__ == "__main__":
    say(f"results: {run(arguments()).name}")

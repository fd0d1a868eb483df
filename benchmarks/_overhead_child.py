"""One process of the warm-call benchmark: ``python -m benchmarks._overhead_child '<settings>'`` prints its results."""

from __future__ import annotations

import gc
import json
import random
import sys
import threading
import time
from collections.abc import Callable
from statistics import median
from types import FunctionType
from typing import Any

from . import _functions
from ._common import bootstrap, rounded
from ._variants import NAMES, Switch, wrapped


class Team:
    """Threads that make calls together: each block begins when all are ready and ends when the last is done."""

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size + 1)
        self._work: tuple[Callable[..., Any], tuple[Any, ...], int] | None = None  # set between barriers only
        for number in range(size):
            threading.Thread(target=self._run, name=f"caller-{number}", daemon=True).start()

    def _run(self) -> None:
        try:
            while True:
                self._barrier.wait()
                if self._work is None:
                    return
                fn, arguments, calls = self._work
                for _ in range(calls):
                    fn(*arguments)
                self._barrier.wait()
        except BaseException:
            self._barrier.abort()  # the main thread raises instead of waiting for ever
            raise

    def time(self, fn: Callable[..., Any], arguments: tuple[Any, ...], calls: int) -> tuple[float, float]:
        """Returns the seconds, and the CPU seconds, in which every thread makes ``calls`` calls."""
        self._work = fn, arguments, calls
        self._barrier.wait()
        began, cpu = time.perf_counter(), time.process_time()
        self._barrier.wait()
        return time.perf_counter() - began, time.process_time() - cpu

    def dismiss(self) -> None:
        """Ends the threads."""
        self._work = None
        self._barrier.wait()


def measure(fn: Callable[..., Any], arguments: tuple[Any, ...], switch: Switch, settings: dict[str, Any]) -> Any:
    """Times all variants in shuffled order, block by block; returns each one's ratio to plain."""
    threads, calls, warm = settings["threads"], settings["calls"], settings["warm_calls"]
    callers = {name: wrapped(name, fn) for name in NAMES}
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in NAMES}
    team, rng = Team(threads), random.Random(0)
    gc.collect()
    gc.disable()
    for block in range(settings["blocks"] + 2):
        order = rng.sample(NAMES, len(NAMES))
        for name in order:
            # The patches move before every variant, the same way round: CPython's inline caches then start alike.
            switch.turn(name != "safe")
            team.time(fn, arguments, warm)
            switch.turn(name == "safe")
            team.time(callers[name], arguments, warm)
            wall, cpu = team.time(callers[name], arguments, calls)
            if block >= 2:
                samples[name].append((wall / (calls * threads) * 1e9, cpu / (calls * threads) * 1e9))
    gc.enable()
    team.dismiss()
    return {name: _compared(values, samples["plain"]) for name, values in samples.items()}


def _compared(values: list[tuple[float, float]], plain: list[tuple[float, float]]) -> dict[str, Any]:
    """Returns wall time (what a user sees) and CPU time (what other processes disturb less) against plain torch's."""
    result = {}
    for index, kind in enumerate(("wall", "cpu")):
        pairs = [(one[index], other[index]) for one, other in zip(values, plain, strict=True)]
        ratios, added = [one / other for one, other in pairs], [one - other for one, other in pairs]
        result[kind] = {
            "ns_per_call": rounded(median(one for one, _ in pairs)),
            "ratio": rounded(median(ratios), 5),
            "ratio_95": [rounded(bound, 5) for bound in bootstrap(ratios)],
            "added_ns": round(median(added), 1),
            "added_ns_95": [round(bound, 1) for bound in bootstrap(added)],
        }
    return result


def identity(name: str, backend: str, switch: Switch) -> dict[str, Any]:
    """Compares what ``safe_compile`` returns with what plain ``torch.compile`` returns, part by part."""
    from safecompile import safe_compile

    switch.turn(False)
    plain_object, _ = _functions.build(name, backend)
    plain = _wrapper_of(plain_object)
    plain_code, own = plain.__code__, switch.is_torchs_own()
    switch.turn(True)
    safe_object = safe_compile(_functions.smallest if name == "function" else _functions.Attention(32, 2))
    safe = _wrapper_of(safe_object)
    context_plain, context_safe = (_cells(one)["self"] for one in (plain, safe))
    return {
        "same type": type(plain_object) is type(safe_object),
        "same code object": safe.__code__ is plain_code,
        "bytes of code": [len(plain_code.co_code), len(safe.__code__.co_code)],
        "same names and types of cells": {k: type(v) for k, v in _cells(plain).items()}
        == {k: type(v) for k, v in _cells(safe).items()},
        "same code of hooks": [h.__code__ for h in context_plain.enter_exit_hooks]
        == [h.__code__ for h in context_safe.enter_exit_hooks],
        "torch's own code when the patches are out": own,
    }


def _wrapper_of(compiled: Any) -> FunctionType:
    wrapper = compiled if isinstance(compiled, FunctionType) else compiled.forward
    assert isinstance(wrapper, FunctionType)
    return wrapper


def _cells(function: FunctionType) -> dict[str, Any]:
    return dict(zip(function.__code__.co_freevars, (c.cell_contents for c in function.__closure__ or ()), strict=True))


def run(settings: dict[str, Any]) -> dict[str, Any]:
    """Measures one function with each number of threads."""
    import torch

    torch.set_num_threads(1)
    switch = Switch()
    fn, arguments = _functions.build(settings["function"], settings["backend"])
    fn(*arguments)  # no argument and no parameter requires a gradient: all threads find this one compile
    results = {}
    for team in settings["teams"]:
        results[str(team["threads"])] = measure(fn, arguments, switch, {**settings, **team})
    return {"threads": results, "identity": identity(settings["function"], settings["backend"], switch)}


if __name__ == "__main__":
    print(json.dumps(run(json.loads(sys.argv[1]))), flush=True)

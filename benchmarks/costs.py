"""What the library costs beside the warm call: ``torch.compile()``, ``with set_stance``, a miss, imports, eager flex.

Fresh processes, plain torch and safecompile in turns, each measured in CPU time: a busy machine moves that less than
wall time. ``--rounds`` pairs of processes are compared. The miss is counted by callgrind as well, in
``--counted-rounds`` pairs of processes of its own, a minute each. ``--time-limit`` seconds for one process.

    python -m benchmarks.costs --rounds 11 --counted-rounds 3
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from . import _instructions
from ._common import begin, below, bootstrap, held, parsed, rounded, run_child, say, write_json

#: What is measured: its unit, and how many of that a second or an instruction has.
UNITS = {
    "import torch": ("CPU s", 1.0),
    "import torch._dynamo": ("CPU s", 1.0),
    "first eager flex_attention": ("CPU s", 1.0),
    "torch.compile()": ("us", 1e6),
    "with set_stance, small function": ("us", 1e6),
    "with set_stance, large function": ("us", 1e6),
    "a miss": ("ms", 1e3),
    "a miss, counted": ("instructions", 1.0),
}
#: The limits: of what is added, or of the ratio to plain torch's.
LIMITS = {
    "torch.compile()": ("added", 20),
    "with set_stance, large function": ("added", 5),
    "import torch._dynamo": ("added", 0.1),
    "a miss, counted": ("ratio", 1.03),
}
#: Small frames of which each misses once, after those that have everything imported.
FRAMES, FIRST_FRAMES = 120, 10
CALLS = 200
#: Lines of the large function before its block: a long forward.
LINES = 150


def import_torch(*, safe: bool) -> dict[str, float]:
    """Imports, as the first thing that a process does; returns the CPU seconds, added up."""
    began = time.process_time()
    if safe:
        import safecompile.patch_all  # noqa: F401
    import torch

    torch_there = time.process_time()
    import torch._dynamo  # noqa: F401 - its import is the cost

    dynamo_there = time.process_time()
    return {"import torch": torch_there - began, "import torch._dynamo": dynamo_there - began}


def eager_flex() -> float:
    """Returns the CPU seconds of the first flex_attention, its import with it."""
    import torch

    x = torch.ones(1, 1, 16, 8)
    began = time.process_time()
    from torch.nn.attention.flex_attention import flex_attention

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is called eagerly is the point
        flex_attention(x, x, x)
    return time.process_time() - began


def add_one(x: Any) -> Any:
    """Has its code copied under other names: equal code objects would share what Dynamo keeps by code."""
    return x + 1


def new_functions(prefix: str, count: int) -> list[Callable[..., Any]]:
    """Returns functions of which no two have equal code."""
    codes = (add_one.__code__.replace(co_name=f"{prefix}{n}") for n in range(count))
    return [types.FunctionType(code, globals()) for code in codes]


def per_call(work: Callable[[int], Any], calls: int) -> float:
    """Returns the CPU seconds of one of ``calls`` calls: the best of five blocks."""
    work(calls // 10 + 1)
    taken = []
    for _ in range(5):
        began = time.thread_time()
        work(calls)
        taken.append((time.thread_time() - began) / calls)
    return min(taken)


def stance_blocks(lines: int) -> Callable[[int], None]:
    """Returns a function that enters a block a number of times, and has ``lines`` lines before it."""
    import torch

    body = "".join(f"        count = count + {n}\n" for n in range(lines))
    source = (
        "def blocks(count):\n    if count < 0:\n        pass\n" + body + "    for _ in range(count):\n"
        "        with set_stance('default'):\n            pass\n"
    )
    names: dict[str, Any] = {"set_stance": torch.compiler.set_stance}
    exec(source, names)
    blocks: Callable[[int], None] = names["blocks"]
    return blocks


def compiled_functions(prefix: str, count: int) -> list[Callable[..., Any]]:
    """Returns compiled functions that were never called, with a backend that does nothing."""
    import torch

    def trivial(graph: Any, _: Any) -> Any:
        return graph.forward

    return [torch.compile(function, backend=trivial) for function in new_functions(prefix, count)]


def miss_all(functions: list[Callable[..., Any]], x: Any) -> None:
    """Calls each once."""
    for function in functions:
        function(x)


def measure(settings: dict[str, Any]) -> dict[str, float]:
    """Measures in this process, which is fresh."""
    found = import_torch(safe=settings["safe"])
    import torch

    torch.set_num_threads(1)
    found["first eager flex_attention"] = eager_flex()
    found["torch.compile()"] = per_call(lambda count: [torch.compile(add_one) for _ in range(count)], CALLS)
    found["with set_stance, small function"] = per_call(stance_blocks(0), CALLS)
    found["with set_stance, large function"] = per_call(stance_blocks(LINES), CALLS)
    x = torch.ones(2)
    miss_all(compiled_functions("first", FIRST_FRAMES), x)
    functions = compiled_functions("next", FRAMES)
    gc.collect()
    gc.disable()
    began = time.thread_time()
    miss_all(functions, x)
    found["a miss"] = (time.thread_time() - began) / FRAMES
    return found


def count(settings: dict[str, Any]) -> None:
    """Has callgrind count the misses in this process, which runs under it."""
    from ._host import do_not_time_guards, start_counting, write_count

    import_torch(safe=settings["safe"])
    import torch

    do_not_time_guards()
    torch.set_num_threads(1)
    x = torch.ones(2)
    miss_all(compiled_functions("first", FIRST_FRAMES), x)
    functions = compiled_functions("next", FRAMES)
    gc.collect()
    gc.freeze()
    gc.disable()
    _instructions.switch_on()
    start_counting()
    miss_all(functions, x)
    write_count()
    print(json.dumps([FRAMES]), flush=True)


def compared(samples: dict[str, dict[str, list[float]]]) -> list[dict[str, Any]]:
    """Returns for each measure both medians, the least of each, and what the library adds, pair by pair."""
    table = []
    for name, both in samples.items():
        unit, many = UNITS[name]
        plain, safe = ([value * many for value in both[mode]] for mode in ("plain", "safe"))
        added = [s - p for s, p in zip(safe, plain, strict=True)]
        ratios = [s / p for s, p in zip(safe, plain, strict=True)]
        row = {
            "name": name,
            "unit": unit,
            "plain": rounded(median(plain)),
            "safe": rounded(median(safe)),
            "least": [rounded(min(plain)), rounded(min(safe))],
            "added": rounded(median(added)),
            "added_95": [rounded(bound) for bound in bootstrap(added)],
            "ratio": rounded(median(ratios)),
            "ratio_95": [rounded(bound) for bound in bootstrap(ratios)],
            "pairs": len(plain),
        }
        table.append(row)
    return table


def judged(table: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns what must hold of the costs that have a limit."""
    rows = []
    for row in table:
        if row["name"] in LIMITS:
            key, limit = LIMITS[row["name"]]
            unit = row["unit"] if key == "added" else "x plain torch"
            measured = "{:.4g} [{:.4g}, {:.4g}] {}".format(row[key], *row[f"{key}_95"], unit)
            rows.append(held(row["name"], f"at most {limit} {unit}", measured, below(row[f"{key}_95"], limit)))
    return rows


def run(arguments: argparse.Namespace) -> Path:
    """Measures everything; returns the file of the results."""
    head, out = begin("costs", arguments)
    samples: dict[str, dict[str, list[float]]] = {}
    data: dict[str, Any] = {**head, "frames": FRAMES, "lines": LINES, "errors": []}

    def take(safe: bool, found: dict[str, float]) -> None:
        for name, value in found.items():
            samples.setdefault(name, {"plain": [], "safe": []})["safe" if safe else "plain"].append(value)

    for number in range(arguments.rounds):
        pair = {}
        for safe in (False, True) if number % 2 else (True, False):
            pair[safe] = run_child("benchmarks.costs", {"safe": safe}, time_limit_s=arguments.time_limit)
        failed = [error for answer in pair.values() for error in answer.get("errors", [])]
        data["errors"] += failed
        for safe, answer in pair.items():
            take(safe, {} if failed else answer)
        say(f"round {number + 1} of {arguments.rounds}{': ' * bool(failed)}{'; '.join(failed)}")
    for _ in range(arguments.counted_rounds if _instructions.is_available() else 0):
        for safe in (False, True):
            _, totals = _instructions.counted("benchmarks.costs", {"safe": safe, "counted": True})
            take(safe, {"a miss, counted": totals[0] / FRAMES})
    data["table"] = compared(samples)
    write_json(out, {**data, "must_hold": judged(data["table"])})
    for row in data["table"]:
        say("{name}: {plain:,} -> {safe:,} {unit}, added {added:+,}, x {ratio:.4f}".format(**row))
    return out


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """Parses the command line."""
    return parsed(__doc__, given, rounds=11, counted_rounds=3, time_limit=600.0)


if __name__ == "__main__":
    if sys.argv[1:] and sys.argv[1].startswith("{"):
        told = json.loads(sys.argv[1])
        count(told) if told.get("counted") else print(json.dumps(measure(told)), flush=True)
    else:
        say(f"results: {run(arguments()).name}")

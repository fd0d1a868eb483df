"""What a warm call costs: wall time in interleaved blocks, instructions, and how the callable differs from torch's own.

Two functions: the smallest one (backend ``eager``: the call is all there is), and a module with flex_attention and a
block mask. One thread and eight. ``python -m benchmarks.call_overhead --blocks 200``
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from . import _instructions
from ._common import environment, environment_line, result_path, run_child, say, write_json

#: Calls in a timed block, and before it, by function and number of threads.
CALLS = {
    "function": [{"threads": 1, "calls": 200, "warm_calls": 100}, {"threads": 8, "calls": 40, "warm_calls": 15}],
    "module": [{"threads": 1, "calls": 60, "warm_calls": 10}, {"threads": 8, "calls": 15, "warm_calls": 4}],
}
BACKENDS = {"function": "eager", "module": "inductor"}


def instructions(samples: int) -> dict[str, Any]:
    """Counts the smallest function's warm call, plain and safe; says why not where callgrind is missing."""
    if not _instructions.is_available():
        return {"missing": "valgrind, or a torch that can talk to it"}
    settings = {"function": "function", "backend": "eager", "samples": samples}
    counted = {
        **_instructions.count({**settings, "safe": False}),
        **_instructions.count({**settings, "safe": False, "imported": True}),
        **_instructions.count({**settings, "safe": True}),
    }
    plain, imported = counted["plain"]["median"], counted["plain, safecompile imported"]["median"]
    taken_out = counted[list(counted)[-1]]["median"]
    for values in counted.values():
        values["ratio"] = round(values["median"] / plain, 5)
        values["ratio_to_imported"] = round(values["median"] / imported, 5)
        values["ratio_to_taken_out"] = round(values["median"] / taken_out, 5)
    return counted


def run(arguments: argparse.Namespace) -> Path:
    """Measures everything; returns the file of the results."""
    env = environment()
    say(environment_line(env))
    out = Path(arguments.out) if arguments.out else result_path("call_overhead", env)
    data: dict[str, Any] = {"benchmark": "call_overhead", "environment": env, "blocks": arguments.blocks}
    data["instructions"] = instructions(arguments.samples) if arguments.samples else {"missing": "not asked for"}
    write_json(out, data)
    for name, values in data["instructions"].items():
        if isinstance(values, dict):
            ratios = f"{values['ratio']:.4f}, {values['ratio_to_imported']:.4f}, {values['ratio_to_taken_out']:.4f}"
            say(f"{name}: {values['median']:,} instructions, x {ratios}")
    data["functions"] = {}
    for function in arguments.functions.split(","):
        backend = arguments.module_backend if function == "module" else BACKENDS[function]
        settings = {"function": function, "backend": backend, "blocks": arguments.blocks, "teams": CALLS[function]}
        answer = run_child("benchmarks._overhead_child", settings, time_limit_s=arguments.time_limit)
        data["functions"][function] = {"backend": backend, **answer}
        write_json(out, data)
        for threads, table in answer.get("threads", {}).items():
            for name, kinds in table.items():
                shown = ", ".join(
                    "{} {:,.0f} ns x {:.4f} [{:.4f}, {:.4f}]".format(k, r["ns_per_call"], r["ratio"], *r["ratio_95"])
                    for k, r in kinds.items()
                )
                say(f"{function}, {threads} threads, {name}: {shown}")
        if "threads" not in answer:
            say(f"{function}: {answer['errors']} {answer.get('stderr', '')[-500:]}")
    return out


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--blocks", type=int, default=200)
    add("--samples", type=int, default=25, help="samples of the count of instructions; 0 leaves it out")
    add("--functions", default="function,module")
    add("--module-backend", default=BACKENDS["module"])
    add("--time-limit", type=float, default=1800.0, help="seconds for one function")
    add("--out")
    return parser.parse_args(given)


if __name__ == "__main__":
    say(f"results: {run(arguments()).name}")

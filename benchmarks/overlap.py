"""An experiment, not part of the library: the compile lock is given up while Inductor waits for its kernels.

torch holds its compile lock over a whole compile, also while other processes compile the kernels. Here each of N
threads compiles a function of its own with Inductor, cold: with the lock held, as torch and the library do, and with
the lock given up around ``AsyncCompile.wait``, so that another thread traces meanwhile; and the same with what torch
keeps of one compile in variables of the process put aside for that time.
``python -m benchmarks.overlap --runs 3``
"""

from __future__ import annotations

import argparse
import threading
import time
import traceback
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from ._common import anonymous, environment, environment_line, main, result_path, rounded, run_child, say, write_json
from ._host import give_lock_up_while_kernels_compile, phases

PUT_ASIDE = "given up, state put aside"


def function(number: int) -> Any:
    """Returns the ``number``-th of a row of functions, each of code and kernels of its own."""
    space: dict[str, Any] = {"torch": torch}
    terms = " + ".join(f"(x * {number + 2 + i}).sin().softmax({i % 2})" for i in range(3))
    exec(f"def layer_{number}(x, w):\n    return torch.nn.functional.gelu(x @ w) + {terms}", space)
    return space[f"layer_{number}"]


def child(settings: dict[str, Any]) -> dict[str, Any]:
    """Compiles in threads; returns the wall time, the errors, and the phases of each compile."""
    from safecompile import safe_compile

    if settings["lock"] != "held":
        give_lock_up_while_kernels_compile(put_aside=settings["lock"] == PUT_ASIDE)
    torch.set_num_threads(1)
    weight, x = torch.randn(64, 64), torch.randn(64, 64)
    errors: list[str] = []
    start = threading.Barrier(settings["threads"] + 1)

    def work(number: int) -> None:
        plain = function(number)
        compiled = safe_compile(plain, dynamic=False)
        start.wait()
        try:
            result: Tensor = compiled(x, weight)
            if not torch.allclose(result, plain(x, weight), atol=1e-4):
                errors.append(f"layer_{number}: wrong result")
        except Exception as error:  # noqa: BLE001 - counted, whatever it is
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = anonymous(f"{last.filename}:{last.lineno} in {last.name}")
            errors.append(f"layer_{number}: {type(error).__name__}: {str(error).strip()[:200]} ({where})")

    team = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(settings["threads"])]
    for thread in team:
        thread.start()
    start.wait()
    began = time.perf_counter()
    for thread in team:
        thread.join(settings["time_limit_s"])
    hung = any(thread.is_alive() for thread in team)
    return {"wall_s": rounded(time.perf_counter() - began), "hung": hung, "errors": errors, "phases": phases()}


def run(arguments: argparse.Namespace) -> Path:
    """Makes all runs; returns their file."""
    env = environment()
    say(environment_line(env))
    out = Path(arguments.out) if arguments.out else result_path("overlap", env)
    table = []
    for threads in map(int, arguments.threads.split(",")):
        for lock in ("held", "given up", PUT_ASIDE):
            settings = {"threads": threads, "lock": lock, "time_limit_s": 120.0}
            runs = [run_child("benchmarks.overlap", settings, time_limit_s=200.0) for _ in range(arguments.runs)]
            walls = [one["wall_s"] for one in runs if "wall_s" in one]
            errors = [error for one in runs for error in one.get("errors", [])]
            row = {"threads": threads, "lock": lock, "wall_s": rounded(median(walls)) if walls else None}
            table.append({**row, "runs": len(runs), "hung": sum(one["hung"] for one in runs), "errors": errors[:5]})
            write_json(
                out, {"benchmark": "overlap", "environment": env, "table": table, "last_phases": runs[-1]["phases"]}
            )
            say(f"{threads} threads, lock {lock}: {walls} s, {len(errors)} errors {errors[:1]}")
    return out


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", default="1,2,4")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out")
    return parser.parse_args(given)


if __name__ == "__main__":
    main(child, run, arguments)

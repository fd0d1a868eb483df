"""Instructions of a warm call, counted by callgrind: a number that a noisy machine does not change.

``count`` runs this module as a child under valgrind, with a fixed hash seed. The child compiles with the counting off,
switches it on, and has callgrind write the count after each run of N1 and of N2 calls; the difference divided by
N2 - N1 is what a call takes, whatever the loop and the dump cost. Plain torch and safecompile are separate
processes; the plain one never imports safecompile. What a process has imported moves a count by 2 to 3 % on CPython
3.11 (caches of types and attributes collide otherwise): so the safe one takes its patches out and counts once more.
"""

from __future__ import annotations

import gc
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from ._common import ROOT, anonymous, fresh_caches

N1, N2 = 10, 30
VALGRIND = ("valgrind", "--tool=callgrind", "--instr-atstart=no", "--collect-atstart=no")


def is_available() -> bool:
    """Tells whether valgrind is there, and a torch that can talk to it."""
    from ._host import can_count_instructions

    return all(shutil.which(one) for one in ("valgrind", "callgrind_control")) and can_count_instructions()


def count(settings: dict[str, Any], *, time_limit_s: float = 900.0) -> dict[str, Any]:
    """Returns, for each variant that the child measures, the instructions of one call: median, least and most.

    Args:
        settings: ``{"safe": bool, "function": str, "backend": str, "samples": int}``.
        time_limit_s: seconds after which the child is killed.

    Raises:
        RuntimeError: the child failed.
    """
    named, totals = counted("benchmarks._instructions", settings, time_limit_s=time_limit_s)
    result, at = {}, 0
    for name, samples in named:
        pairs = [totals[at + 2 * i : at + 2 * i + 2] for i in range(samples)]
        values = [(second - first) / (N2 - N1) for first, second in pairs]
        result[name] = {"median": round(median(values)), "least": round(min(values)), "most": round(max(values))}
        at += 2 * samples
    return result


def counted(module: str, settings: dict[str, Any], *, time_limit_s: float = 900.0) -> tuple[Any, list[int]]:
    """Runs ``python -m module`` with ``settings`` under callgrind; returns the list it prints last, and all its counts.

    Raises:
        RuntimeError: the child failed.
    """
    with fresh_caches() as env, tempfile.TemporaryDirectory(prefix="bench-") as folder:
        counts = Path(folder, "counts")
        command = [*VALGRIND, f"--callgrind-out-file={counts}", sys.executable, "-m", module, json.dumps(settings)]
        where = {"env": {**env, "OMP_NUM_THREADS": "1"}, "cwd": ROOT, "timeout": time_limit_s, "errors": "replace"}
        child = subprocess.run(command, capture_output=True, check=False, **where)  # type: ignore[call-overload]
        lines = [line for line in child.stdout.splitlines() if line.startswith("[")]
        if child.returncode != 0 or not lines:
            raise RuntimeError(anonymous(child.stderr[-2000:]))
        files = sorted(Path(folder).glob("counts.*"), key=lambda file: int(file.suffix[1:]))
        return json.loads(lines[-1]), [
            int(re.findall(r"^(?:totals|summary): (\d+)", file.read_text(), re.MULTILINE)[0]) for file in files
        ]


def switch_on() -> None:
    """Has callgrind look from here on: only then can it count."""
    subprocess.run(["callgrind_control", "-i", "on", str(os.getpid())], check=True, capture_output=True)


def _child(settings: dict[str, Any]) -> None:
    import torch

    from ._functions import build
    from ._variants import NAMES, Switch, wrapped

    torch.set_num_threads(1)
    switch = Switch() if settings["safe"] else None
    fn, arguments = build(settings["function"], settings["backend"])
    fn(*arguments)
    gc.collect()
    gc.freeze()
    gc.disable()
    switch_on()
    names = ["safe"] if switch else [name for name in NAMES if name not in ("safe", "plain again")]
    for name in names:
        _counted(wrapped(name, fn), arguments, settings["samples"])
    if switch:
        switch.turn(on=False)
        names.append("all taken out")
        _counted(fn, arguments, settings["samples"])
    print(json.dumps([(name, settings["samples"]) for name in names]), flush=True)


def _counted(fn: Callable[..., Any], arguments: tuple[Any, ...], samples: int) -> None:
    from ._host import start_counting, write_count

    for _ in range(100):
        fn(*arguments)
    for _ in range(samples):
        for calls in (N1, N2):
            start_counting()
            for _ in range(calls):
                fn(*arguments)
            write_count()


if __name__ == "__main__":
    _child(json.loads(sys.argv[1]))

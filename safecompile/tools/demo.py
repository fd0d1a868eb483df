"""``python -m safecompile demo``: the same work with plain ``torch.compile`` and with ``safe_compile``."""

from __future__ import annotations

import json
import platform
import shutil
import sys
import tempfile
import textwrap
from dataclasses import replace
from pathlib import Path

from ._child import Plan, Row, run_child
from ._table import WIDTH, Progress, conclusion, table

#: The first to be shown is the one that fails every time in plain torch.
WORKLOADS = ("tracing", "server", "drafters")
SIDES = ("plain", "safe")


def run(
    *,
    workload: str = "all",
    side: str = "both",
    device: str | None = None,
    threads: int = 12,
    time_limit_s: float | None = None,
    as_json: bool = False,
) -> int:
    """Runs the demo and prints what came of it.

    Args:
        workload: one of ``WORKLOADS``, or ``"all"``.
        side: one of ``SIDES``, or ``"both"``.
        device: for example ``"cuda:1"``; None for every CUDA device there is, else the CPU.
        threads: how many threads call at once.
        time_limit_s: seconds for each child; None for 40 on the CPU and 60 on CUDA.
        as_json: print JSON in place of the table.

    Returns:
        0 if the safe side was right in every workload (and ran at all, unless ``side`` is ``"plain"``), else 1.

    Raises:
        ValueError: there is no such device.
    """
    import torch

    import safecompile

    devices = devices_for(device)
    limit = time_limit_s or (60.0 if devices[0].startswith("cuda") else 40.0)
    folder = Path(tempfile.mkdtemp(prefix="safecompile-demo-"))
    plan = Plan(devices, threads, limit, folder)
    progress = Progress()
    where = f"torch {torch.__version__}, Python {platform.python_version()}, {', '.join(devices)}"
    print(f"safecompile {safecompile.__version__} demo: {where}, {threads} threads", file=sys.stderr)
    rows: list[Row] = []
    keep = False
    try:
        workloads = WORKLOADS if workload == "all" else (workload,)
        if set(workloads) != {"tracing"}:
            progress.begin("  warming up the C++ or Triton compiler, not counted ...")
            # On a fresh machine this builds what Inductor builds once: it may take longer than a workload.
            ready = run_child("warm-up", "plain", replace(plan, time_limit_s=max(limit, 60.0)), progress)
            progress.end(f"  warm-up: {ready.outcome}")
        for name in workloads:
            sides = SIDES if side == "both" else (side,)
            for one in (*sides, "no wait") if name == "server" and side != "plain" else sides:
                progress.begin(f"  {name}, {one} ...")
                row = run_child(name, one, plan, progress)
                rows.append(row)
                progress.end(f"  {name}, {one}: {row.outcome}, {row.seconds:.1f} s")
        keep = any(row.log for row in rows)
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    right = all(row.right for row in rows if row.side == "safe")
    if as_json:
        document = {
            "safecompile": safecompile.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "devices": list(devices),
            "threads": threads,
            "time_limit_s": limit,
            "rows": [row.as_dict() for row in rows],
            "safe_side_right": right,
            "conclusion": conclusion(rows),
        }
        print(json.dumps(document, indent=2))
    else:
        print(f"\n{table(rows)}\n\n{textwrap.fill(conclusion(rows), WIDTH)}")
    return 0 if right else 1


def devices_for(device: str | None) -> tuple[str, ...]:
    """Returns the devices to run on: the one that was asked for, else every CUDA device, else the CPU.

    Raises:
        ValueError: there is no such device; the message is one sentence.
    """
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device is None:
        return tuple(f"cuda:{index}" for index in range(count)) or ("cpu",)
    kind, _, index = device.partition(":")
    if device == "cpu":
        return ("cpu",)
    if kind != "cuda" or (index and not index.isdecimal()) or device.endswith(":"):
        msg = f"the device must be cpu, cuda or cuda:N, not {device!r}."
        raise ValueError(msg)
    if int(index or 0) >= count:
        there = f"torch sees {count} of them" if count else "torch sees no CUDA device here"
        msg = f"the device {device!r} can't be used: {there}."
        raise ValueError(msg)
    return (f"cuda:{int(index)}",) if index else tuple(f"cuda:{i}" for i in range(count))

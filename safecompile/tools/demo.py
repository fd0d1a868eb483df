"""``python -m safecompile demo``: the same work with plain ``torch.compile`` and with ``safe_compile``."""

from __future__ import annotations

import json
import platform
import shutil
import sys
import tempfile
import textwrap
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import _stdout
from ._child import Plan, Row, run_child
from ._sizes import sizes_for
from ._table import WIDTH, Progress, advice, conclusion, table

#: The first to be shown is the one that fails every time in plain torch.
WORKLOADS = ("tracing", "server", "drafters")
SIDES = ("plain", "safe")
#: Seconds after which a child that still works is ended. One that has stopped is ended long before.
TIME_LIMIT_S = 600.0


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
        time_limit_s: seconds for each child that still works; None for ``TIME_LIMIT_S``.
        as_json: print JSON in place of the table.

    Returns:
        0 if the safe side was right in every workload (and ran at all, unless ``side`` is ``"plain"``), else 1.

    Raises:
        ValueError: there is no such device.
    """
    import safecompile

    devices = devices_for(device)
    folder = Path(tempfile.mkdtemp(prefix="safecompile-demo-"))
    plan = Plan(devices, threads, time_limit_s or TIME_LIMIT_S, folder)
    progress = Progress()
    where = f"torch {_torch().__version__}, Python {platform.python_version()}, {', '.join(devices)}"
    print(f"safecompile {safecompile.__version__} demo: {where}, {threads} threads", file=sys.stderr)
    rows: list[Row] = []
    keep = False
    try:
        workloads: tuple[str, ...] = WORKLOADS if workload == "all" else (workload,)
        plan, workloads, torch_fails = _warmed_up(plan, workloads, progress)
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
    right = not torch_fails and all(row.right for row in rows if row.side == "safe")
    if as_json:
        _stdout.say(json.dumps(_document(plan, rows, torch_fails, right=right), indent=2))
    else:
        next_ = textwrap.fill(f"What to do next: {advice(rows, torch_fails)}", WIDTH)
        _stdout.say(f"\n{table(rows)}\n\n{textwrap.fill(conclusion(rows), WIDTH)}\n{next_}")
    return 0 if right else 1


def _warmed_up(plan: Plan, workloads: tuple[str, ...], progress: Progress) -> tuple[Plan, tuple[str, ...], str | None]:
    """Measures one small compile; returns the plan with sizes for it, what can be run, and how the compile failed."""
    if set(workloads) == {"tracing"}:
        return plan, workloads, None
    progress.begin("  warming up the C++ or Triton compiler, not counted ...")
    # On a fresh machine this builds what Inductor builds once: it may take longer than a workload.
    limit = max(plan.time_limit_s, TIME_LIMIT_S)
    ready = run_child("warm-up", "plain", replace(plan, time_limit_s=limit), progress)
    plan = replace(plan, sizes=sizes_for(ready.measured_s))
    if ready.outcome == "finished":
        progress.end(f"  warm-up: one small compile takes {ready.measured_s:.1f} s; sizes: {plan.sizes.words}")
        return plan, workloads, None
    progress.end(f"  warm-up: {ready.outcome}")
    return plan, tuple(name for name in workloads if name == "tracing"), ready.first_error or f"it {ready.outcome}"


def _document(plan: Plan, rows: list[Row], torch_fails: str | None, *, right: bool) -> dict[str, Any]:
    import safecompile

    return {
        "safecompile": safecompile.__version__,
        "torch": _torch().__version__,
        "python": platform.python_version(),
        "devices": list(plan.devices),
        "threads": plan.threads,
        "time_limit_s": plan.time_limit_s,
        "sizes": plan.sizes._asdict(),
        "rows": [row.as_dict() for row in rows],
        "safe_side_right": right,
        "conclusion": conclusion(rows),
        "next": advice(rows, torch_fails),
    }


def _torch() -> Any:
    # What torch says at its import, of a missing NumPy for example, is not the demo's matter.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch
    return torch


def devices_for(device: str | None) -> tuple[str, ...]:
    """Returns the devices to run on: the one that was asked for, else every CUDA device, else the CPU.

    Raises:
        ValueError: there is no such device; the message is one sentence.
    """
    torch = _torch()
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

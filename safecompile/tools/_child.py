"""One workload on one side, in a process of its own: started, watched, and killed at its time limit."""

from __future__ import annotations

import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

#: Seconds that a child gets, over its limit, to write its stacks and end by itself.
GRACE_S = 5.0


@dataclass(frozen=True)
class Plan:
    """What every child of one demo is told, and the folder for their logs and caches."""

    devices: tuple[str, ...]
    threads: int
    time_limit_s: float
    folder: Path


@dataclass
class Row:
    """What came of one workload on one side.

    ``outcome`` is ``"finished"``, ``"raised"``, ``"hung"``, ``"wrong numbers"`` or ``"crashed"``; ``eager`` counts the
    calls of a compiled function that torch ran uncompiled without a word; the ``_ms`` tell how long calls took, and
    the longest of the threads' first ones.
    """

    workload: str
    side: str
    outcome: str = "hung"
    calls: int = 0
    raised: int = 0
    wrong: int = 0
    eager: int = 0
    compiles: int = 0
    seconds: float = 0.0
    first_error: str | None = None
    hung_at: str | None = None
    log: str | None = None
    p50_ms: float = 0.0
    p95_ms: float = 0.0
    p99_ms: float = 0.0
    longest_first_ms: float = 0.0

    @property
    def right(self) -> bool:
        """Every call came back, with the right numbers, from compiled code."""
        return self.outcome == "finished" and self.calls > 0 and self.eager == 0

    def as_dict(self) -> dict[str, Any]:
        """Returns the row as it is printed by ``--json``."""
        return asdict(self)


def run_child(workload: str, side: str, plan: Plan, progress: Callable[[Row], None]) -> Row:
    """Runs one child to its end, or to its time limit, and returns the row.

    ``progress`` is called several times a second with what is known so far. Whatever ends this function, Ctrl-C
    included, ends the child and the processes that the child has started.
    """
    row = Row(workload, side)
    cache = plan.folder / f"{workload}-{side}.cache"
    log = plan.folder / f"{workload}-{side}.log"
    ready = plan.folder / "warm-up-plain.cache"
    if ready.exists() and ready != cache:
        shutil.copytree(ready, cache)
    command = [sys.executable, "-m", "safecompile.tools._workloads", side, workload]
    command += ["--threads", str(plan.threads), "--time-limit", str(plan.time_limit_s), "--devices", *plan.devices]
    with log.open("wb") as errors:
        child = subprocess.Popen(  # noqa: S603  this interpreter, with arguments that were checked
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache)},
            start_new_session=True,
        )
    begin = time.monotonic()
    try:
        finished = _follow(child, row, begin + plan.time_limit_s + GRACE_S, progress)
    finally:
        _kill(child)
    text = log.read_text(errors="replace")
    if finished:
        row.outcome = "raised" if row.raised else "wrong numbers" if row.wrong else "finished"
    elif "Timeout (" in text or time.monotonic() - begin > plan.time_limit_s:
        row.outcome, row.seconds, row.hung_at = "hung", plan.time_limit_s, where_it_hung(text)
    else:
        row.outcome = "raised" if child.returncode > 0 else "crashed"
        row.first_error = row.first_error or _last_line(text) or f"the process ended with code {child.returncode}"
    if row.outcome in ("hung", "crashed"):
        row.log = str(log)
    shutil.rmtree(cache, ignore_errors=True) if cache != ready else None
    return row


def _follow(child: subprocess.Popen[bytes], row: Row, deadline: float, progress: Callable[[Row], None]) -> bool:
    """Reads the child's counts into ``row`` until it ends; tells whether it came to its own end."""
    lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def read() -> None:
        assert child.stdout is not None
        with child.stdout:
            for line in child.stdout:
                lines.put(line)
        lines.put(None)

    threading.Thread(target=read, name="reader", daemon=True).start()
    while time.monotonic() < deadline:
        try:
            line = lines.get(timeout=0.5)
        except queue.Empty:
            progress(row)
            continue
        if line is None:
            child.wait(timeout=GRACE_S)
            return False
        counts = json.loads(line)
        state = counts.pop("state")
        vars(row).update(counts)
        progress(row)
        if state == "done":
            return True
    return False


def _kill(child: subprocess.Popen[bytes]) -> None:
    # Inductor's compile workers are children of the child: the whole session goes.
    if sys.platform == "win32":
        child.kill()
    else:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def where_it_hung(stacks: str) -> str:
    """Returns where most of the threads were, out of what ``faulthandler`` wrote.

    Threads that only wait for others (the main one, helpers of the standard library) are left out.
    """
    places: Counter[str] = Counter()
    for stack in re.split(r"\n(?=(?:Current thread|Thread) 0x)", stacks):
        frames = re.findall(r'File "([^"]+)", line (\d+) in (\S+)', stack)
        names = [name for _, _, name in frames]
        inside = [f for f in frames if "/torch/" in f[0] or "/safecompile/_" in f[0]]
        if inside and "main" not in names and "report" not in names:
            path, line, name = inside[0]
            places[f"{name} ({'/'.join(Path(path).parts[-2:])}:{line})"] += 1
    if not places:
        return "no thread was inside torch"
    return ", ".join(f"{count} in {place}" for place, count in places.most_common(2))


def _last_line(text: str) -> str | None:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else None

"""One workload on one side, in a process of its own: started, watched, and killed when it has stopped."""

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

from . import _vitals
from ._sizes import USUAL, Sizes

#: Seconds that a child gets to write its stacks, or to end by itself after its last line.
GRACE_S = 5.0


@dataclass(frozen=True)
class Plan:
    """What every child of one demo is told, and the folder for their logs and caches.

    ``time_limit_s`` ends a child that still works; ``patience_s`` is for one that has stopped (None: what fits the
    system).
    """

    devices: tuple[str, ...]
    threads: int
    time_limit_s: float
    folder: Path
    sizes: Sizes = USUAL
    patience_s: float | None = None


@dataclass
class Row:
    """What came of one workload on one side.

    ``outcome`` is ``"finished"``, ``"raised"``, ``"hung"`` (it had stopped), ``"too slow"`` (it still worked at its
    limit), ``"wrong numbers"`` or ``"crashed"``; ``eager`` counts the calls of a compiled function that torch ran
    uncompiled without a word; the ``_ms`` tell how long calls took, and the longest of the threads' first ones.
    """

    workload: str
    side: str
    outcome: str = "crashed"
    calls: int = 0
    raised: int = 0
    wrong: int = 0
    eager: int = 0
    compiles: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0
    first_error: str | None = None
    hung_at: str | None = None
    log: str | None = None
    measured_s: float | None = None
    p50_ms: float = 0.0
    p95_ms: float = 0.0
    p99_ms: float = 0.0
    longest_first_ms: float = 0.0
    compiling = ""  # what the live line says; no field, and not printed

    @property
    def right(self) -> bool:
        """Every call came back, with the right numbers, from compiled code."""
        return self.outcome == "finished" and self.calls > 0 and self.eager == 0

    def as_dict(self) -> dict[str, Any]:
        """Returns the row as it is printed by ``--json``."""
        return asdict(self)


def run_child(workload: str, side: str, plan: Plan, progress: Callable[[Row, float], None]) -> Row:
    """Runs one child to its end, until it stops, or to its time limit, and returns the row.

    ``progress`` is called several times a second with what is known so far, and the seconds since anything was done.
    Whatever ends this function, Ctrl-C included, ends the child and the processes that the child has started.
    """
    row = Row(workload, side)
    name = f"{workload}-{side}".replace(
        " ", "-"
    )  # a space in the cache's path is more than Inductor's C++ compile can do
    cache, log = plan.folder / f"{name}.cache", plan.folder / f"{name}.log"
    ready = plan.folder / "warm-up-plain.cache"
    if ready.exists() and ready != cache:
        shutil.copytree(ready, cache)
    command = [sys.executable, "-m", "safecompile.tools._workloads", side, workload]
    command += ["--threads", str(plan.threads), "--sizes", *map(str, plan.sizes), "--devices", *plan.devices]
    with log.open("wb") as errors:
        child = subprocess.Popen(  # noqa: S603  this interpreter, with arguments that were checked
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache)},
            start_new_session=True,
        )
    try:
        end = _follow(child, row, plan, progress)
        stacks = _stacks(child, log) if end in ("hung", "too slow") else ""
    finally:
        _kill(child)
    if end == "done":
        row.outcome = "raised" if row.raised else "wrong numbers" if row.wrong else "finished"
    elif end == "ended":
        text = log.read_text(errors="replace")
        row.outcome = "raised" if child.returncode > 0 else "crashed"
        row.first_error = row.first_error or _last_line(text) or f"the process ended with code {child.returncode}"
    else:
        row.outcome, row.hung_at = end, where_it_hung(stacks) if end == "hung" else None
    if row.outcome in ("hung", "too slow", "crashed"):
        row.log = str(log)
    shutil.rmtree(cache, ignore_errors=True) if cache != ready else None
    return row


def _follow(child: subprocess.Popen[bytes], row: Row, plan: Plan, progress: Callable[[Row, float], None]) -> str:
    """Reads the child's counts into ``row``; returns ``"done"``, ``"ended"``, ``"hung"`` or ``"too slow"``."""
    lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def read() -> None:
        assert child.stdout is not None
        with child.stdout:
            for line in child.stdout:
                lines.put(line)
        lines.put(None)

    threading.Thread(target=read, name="reader", daemon=True).start()
    begin = now = time.monotonic()
    seen = _vitals.session_s(child.pid) is not None
    patience = plan.patience_s or (_vitals.PATIENCE_S if seen else _vitals.PATIENCE_OF_ONE_S)
    watch = _vitals.Watch((lambda: _vitals.session_s(child.pid) or 0.0) if seen else lambda: row.cpu_s, patience, now)
    while True:
        with suppress(queue.Empty):
            line = lines.get(timeout=0.5)
            if line is None:
                child.wait(timeout=GRACE_S)
                return "ended"
            counts = json.loads(line)
            state = counts.pop("state")
            vars(row).update(counts)
            if state == "done":
                return "done"
        now = time.monotonic()
        row.seconds = now - begin
        if watch.stopped((row.calls, row.raised, row.compiles), now):
            return "hung"
        if row.seconds > plan.time_limit_s:
            return "too slow"
        progress(row, now - watch.quiet_since)


def _stacks(child: subprocess.Popen[bytes], log: Path) -> str:
    """Has the child write the stack of each of its threads into its log, and returns the log."""
    if hasattr(signal, "SIGUSR1"):
        child.send_signal(signal.SIGUSR1)
        deadline, size = time.monotonic() + GRACE_S, -1
        while time.monotonic() < deadline and (not log.stat().st_size or log.stat().st_size != size):
            size = log.stat().st_size
            time.sleep(0.5)
    return log.read_text(errors="replace")


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

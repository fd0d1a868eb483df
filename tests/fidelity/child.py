"""Runs one program in this process, and writes down what it did."""

from __future__ import annotations

import atexit
import json
import os
import re
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

from . import companions, faults, observe, table

TEMPORARY = re.compile(r"/tmp/[\w./-]*")


def main(module: str, name: str, column: str, record: str, *, terminal: str = "", fault: str = "") -> None:
    """Runs a program, and writes the record of it to a file; the process then ends as Python ends.

    Args:
        terminal: the name of the terminal to run on.
        fault: a known fault, brought back on purpose (see ``faults``).
    """
    if terminal:
        for number in (0, 1, 2):
            os.dup2(os.open(terminal, os.O_RDWR), number)
    companions.start(column)
    if (utils := sys.modules.get("torch._dynamo.utils")) is not None:
        utils.counters.clear()
    observe.seed()
    recorder = observe.Recorder()
    seen = Record(Path(record), recorder)
    chosen = table.one(module, name)
    if fault:
        chosen = faults.bring_back(fault, chosen)
    lacks = "" if chosen.fresh else chosen.lacks()
    try:
        seen.says = {"absent": lacks} if lacks else chosen.function(*chosen.arguments)
    except Exception:
        seen.says, seen.raised = None, traceback.format_exc()
    leave = seen.says if isinstance(seen.says, Leaving) else None
    if leave is not None:
        seen.says = leave.says
    seen.write()
    del seen, recorder
    print("end of the program", flush=True)
    if leave is not None:
        leave.how()
    elif not (chosen.fresh or chosen.ends):
        _end()


def _end() -> None:
    """Ends the process with what Python does at its end, but for the taking apart of all modules."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


class Leaving:
    """What a program returns that is about its end: what it saw, and how it leaves then."""

    def __init__(self, says: Any, how: Any) -> None:
        self.says, self.how = says, how


class Record:
    """What one run of a program did."""

    def __init__(self, path: Path, recorder: observe.Recorder) -> None:
        self.path, self.recorder = path, recorder
        self.says: Any = None
        self.raised = ""

    def write(self) -> None:
        """Writes the record, without what is another in each process."""
        parts = {
            "says": self.says,
            "raised": self.raised,
            "compiles": observe.counters(),
            "seeds": observe.seeds(),
            "state": observe.state(),
            "warnings": self.recorder.warnings,
            "log": self.recorder.log,
        }
        self.path.write_text(json.dumps(parts, default=str))


def without_chance(text: str) -> str:
    """Returns a text without addresses, numbers of processes and threads, and names of temporary files."""
    text = text.replace(observe.ROOT, "…")
    text = re.sub(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "…", text)
    text = re.sub(r"0x[0-9a-f]{4,}", "0x…", text)
    text = re.sub(r"\b\d{12,}\b", "…", text)
    return TEMPORARY.sub("/tmp/…", text)

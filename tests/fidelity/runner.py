"""Runs a program on both sides, plain and with the library, and tells what differs."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.helpers.nursery import Nursery
from tests.helpers.threads import Hung, in_fresh_process

from .child import without_chance
from .table import ALONE, COMPANIONS, INDUCTOR, OPTIMIZED, STRICT_WARNINGS, TERMINAL, Program

PLAIN, SAFE = "plain", "safe"
Result = dict[str, Any]
FLAGS = {OPTIMIZED: ("-O",), STRICT_WARNINGS: ("-W", "error")}
#: Variables that make two runs alike: one thread for numpy, no colours, an order of sets.
ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "TORCHINDUCTOR_COMPILE_THREADS": "2",
    "NO_COLOR": "1",
}
IMPORTS = ("torch", "torch._dynamo", "tests.fidelity.child")
#: What a first compile imports, so that not each fork does. With warnings as errors Inductor can't be imported.
LATER = (
    "torch._inductor.compile_fx",
    "torch._inductor.async_compile",
    "torch.export",
    "torch._dynamo.backends.debugging",
)
STAMP = re.compile(
    r"[VIWEC]\d{4} \d\d:\d\d:\d\d\.\d+ \d+|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d( \d+:\d+)?|\b\d+(\.\d+)? ?(s|ms|us|seconds)\b"
)


class Runner:
    """Runs programs; has one process for each kind of column that forks for each of them.

    Args:
        fresh: start each program in an interpreter of its own.
    """

    def __init__(self, *, fresh: bool = False) -> None:
        self._fresh = fresh
        self._nurseries: dict[tuple[str, ...], Nursery] = {}
        self._locks: dict[str, threading.Lock] = {PLAIN: threading.Lock(), SAFE: threading.Lock()}
        self._folder = tempfile.TemporaryDirectory(prefix="fidelity-", ignore_cleanup_errors=True)
        self._environment = ENVIRONMENT | {"TORCHINDUCTOR_CACHE_DIR": self._folder.name}
        self._warm = False
        self._alone: dict[str, Result] = {}

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        for nursery in self._nurseries.values():
            nursery.close()
        self._folder.cleanup()

    def alone(self, program: Program) -> Result:
        """Returns what a program does in plain torch, alone."""
        if program.name not in self._alone:
            self._alone[program.name] = self.run(program, PLAIN, ALONE)
        return self._alone[program.name]

    def run(self, program: Program, side: str, column: str, fault: str = "") -> Result:
        """Runs one program in one process, and returns all that is compared."""
        with self._locks[side], _terminal() as (terminal, shown):
            on = terminal if column == TERMINAL else ""
            with tempfile.NamedTemporaryFile("r", dir=self._folder.name) as record:
                arguments = f"{program.module!r}, {program.name!r}, {column!r}, {record.name!r}"
                call = f"main({arguments}, terminal={on!r}, fault={fault!r})"
                try:
                    done = self._start(program, side, column, call)
                except Hung as error:
                    return {"hung": str(error)}
                written = Path(record.name).read_text()
        out = _told(done.stdout) + (_told(shown()) if on else "")
        found = {"status": done.returncode, "ended": "end of the program" in out, "out": out, "err": _told(done.stderr)}
        return (_each_text(json.loads(written)) if written else {}) | found

    def _start(self, program: Program, side: str, column: str, call: str) -> subprocess.CompletedProcess[str]:
        if column == INDUCTOR and not self._warm:
            self._warm = True
            in_fresh_process(
                "from tests.fidelity.companions import compile_once; compile_once()", timeout_s=300, **self._environment
            )
        first = "import safecompile.patch_all\n" if side == SAFE else ""
        if program.fresh or self._fresh:
            code = f"{first}from tests.fidelity.child import main\n{call}\n"
            return in_fresh_process(code, timeout_s=program.timeout_s, flags=FLAGS.get(column, ()), **self._environment)
        return self._nursery(side, column).run(
            f"from tests.fidelity.child import main\n{call}", timeout_s=program.timeout_s
        )

    def _nursery(self, side: str, column: str) -> Nursery:
        modules = IMPORTS if column == STRICT_WARNINGS else (*IMPORTS, *LATER)
        flags = FLAGS.get(column, ())
        key = (side, *flags)
        if key not in self._nurseries:
            own = ("safecompile.patch_all",) if side == SAFE else ()
            self._nurseries[key] = Nursery((*own, *modules), "import gc; gc.freeze()", flags, self._environment)
        return self._nurseries[key]


def differences(plain: Result, safe: Result) -> list[str]:
    """Returns what differs, one line each."""
    told: list[str] = []
    if not plain.get("ended") and "hung" not in plain:
        told.append("plain: the program has not come to its end")
    for part in sorted(plain.keys() | safe.keys()):
        _compare(part, plain.get(part), safe.get(part), told)
    return told


def _compare(path: str, plain: Any, safe: Any, told: list[str]) -> None:
    if plain == safe:
        return
    if path.endswith(".frames") and isinstance(plain, int) and isinstance(safe, int) and plain <= safe <= plain + 2:
        return
    if isinstance(plain, dict) and isinstance(safe, dict):
        for key in sorted(plain.keys() | safe.keys()):
            _compare(f"{path}.{key}", plain.get(key), safe.get(key), told)
    elif isinstance(plain, list) and isinstance(safe, list) and len(plain) == len(safe) <= 8:
        for i, (a, b) in enumerate(zip(plain, safe, strict=True)):
            _compare(f"{path}[{i}]", a, b, told)
    elif isinstance(plain, list) and isinstance(safe, list) and max(len(plain), len(safe)) > 8:
        less, more = ([x for x in a if x not in b] for a, b in ((plain, safe), (safe, plain)))
        told.append(f"{path}: without the library {_short(less)}, with it {_short(more)}")
    else:
        told.append(f"{path}: without the library {_short(plain)}, with it {_short(safe)}")


def cell(runner: Runner, program: Program, column: str) -> tuple[str, list[str]]:
    """Runs a program on both sides of a column, and returns a verdict with the lines that tell why.

    ``absent``, ``broken`` (the program, not the library), ``equal`` or ``differs``.
    """
    with ThreadPoolExecutor(2) as both:
        waiting = both.submit(runner.alone, program), both.submit(runner.run, program, SAFE, column)
        alone, safe = (side.result() for side in waiting)
    plain = alone
    if column != ALONE and (column not in COMPANIONS or differences(alone, safe)):
        plain = runner.run(program, PLAIN, column)
        if column in COMPANIONS and not program.matters and (found := differences(alone, plain)):
            return "broken", [f"plain torch is another beside a thread: {line}" for line in found]
    if why := absent(plain) or (column == STRICT_WARNINGS and warns(plain)):
        return "absent", [why]
    if why := broken(plain):
        return "broken", [why]
    found = differences(plain, safe)
    return ("differs" if found else "equal"), found


def broken(plain: Result) -> str:
    """Returns why a program can't be judged: it must come to its end in plain torch, and raise nothing."""
    if "hung" in plain:
        return "hangs in plain torch"
    if plain.get("raised"):
        return "raises in plain torch: " + plain["raised"].strip().splitlines()[-1]
    return "" if plain.get("ended") else f"does not come to its end in plain torch: {_short(plain.get('err'), 400)}"


def warns(plain: Result) -> str:
    """Returns the warning that ends a program where warnings are errors."""
    found = re.search(r"\b\w*Warning: .*", plain.get("raised", ""))
    return found[0] if found else ""


def absent(result: Result) -> str:
    """Returns what this release of torch lacks for the program."""
    says = result.get("says")
    return says["absent"] if isinstance(says, dict) and set(says) == {"absent"} else ""


def _each_text(value: Any) -> Any:
    if isinstance(value, dict):
        return {without_chance(key): _each_text(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_each_text(part) for part in value]
    return without_chance(value) if isinstance(value, str) else value


def _told(text: str) -> str:
    return _without_two_frames(STAMP.sub("…", without_chance(text)))


def _without_two_frames(text: str) -> str:
    """Takes the library's frames out of printed tracebacks, where no more than two stand together."""
    frame = r'[^\n]*File "…/safecompile/[^\n]*\n(?:(?![^\n]*File ")[^\n]*(?:    )[^\n]*\n){0,2}'
    return re.sub(f"(?:{frame})+", lambda found: found[0] if found[0].count("File ") > 2 else "", text)


def _short(value: Any, limit: int = 200) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= limit else f"{text[:limit]}…{text[-60:]}"


@contextlib.contextmanager
def _terminal() -> Iterator[tuple[str, Any]]:
    """Opens a pseudo-terminal; the second is called for what was shown on it."""
    master, slave = pty.openpty()
    chunks: list[bytes] = []

    def read() -> None:
        with contextlib.suppress(OSError):  # the end of a terminal is an error
            while chunk := os.read(master, 65536):
                chunks.append(chunk)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    closed: list[bool] = []

    def shown() -> str:
        if not closed:
            closed.append(True)
            os.close(slave)
            reader.join(10)
        return b"".join(chunks).decode(errors="replace").replace("\r\n", "\n")

    try:
        yield os.ttyname(slave), shown
    finally:
        shown()
        os.close(master)


def release() -> str:
    """Returns the release of torch, without the kind of its build."""
    return version("torch").partition("+")[0]


def here() -> str:
    """Returns what the results were found on."""
    return f"Python {sys.version.split()[0]}, torch {release()}"

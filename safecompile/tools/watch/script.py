"""``python -m safecompile watch``: runs a script in plain torch, and tells at its end what was found."""

from __future__ import annotations

import json
import os
import runpy
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Final

from . import watch

#: The exit code of a script that was interrupted.
_INTERRUPTED: Final = 130


def run(script: str, arguments: list[str], *, is_module: bool, provoke: bool, output: str | None) -> int:
    """Runs a script, or a module, as ``python`` would, and prints the findings on stderr.

    Returns:
        The script's exit code if that is not 0, else 1 if something was found, else 0.
    """
    os.environ["SAFECOMPILE_DISABLE"] = "1"  # for its child processes too
    sys.argv[:] = [script, *arguments]
    sys.path[0] = str(Path.cwd()) if is_module else str(Path(script).resolve().parent)
    watched_process = os.getpid()
    with watch(provoke=provoke) as watched:
        code = _run(script, is_module=is_module)
    if os.getpid() != watched_process:
        return code  # a forked child has come to its end: it is not watched, and the parent reports
    print(f"\n{'-' * 100}\n{watched}", file=sys.stderr)
    if output is not None:
        found = [{**asdict(one), "meaning": one.meaning, "cure": one.cure} for one in watched.findings]
        Path(output).write_text(json.dumps(found, indent=2), encoding="utf-8")
    return code or (1 if watched.findings else 0)


def _run(script: str, *, is_module: bool) -> int:
    if is_module:
        code = _code_of(lambda: runpy.run_module(script, run_name="__main__", alter_sys=True))
    else:
        code = _code_of(lambda: runpy.run_path(script, run_name="__main__"))
    if code == _INTERRUPTED:
        return code
    ended = _code_of(_join)
    return code or ended


def _join() -> None:
    """Waits for the threads that Python waits for at its end, however the script has ended."""
    # First of all Python has the workers of pools that nobody has shut down, as Inductor's, do what is left and end.
    for name in ("thread", "process"):
        pools = sys.modules.get(f"concurrent.futures.{name}")
        getattr(pools, "_python_exit", lambda: None)()
    me = threading.current_thread()
    while left := [one for one in threading.enumerate() if one is not me and one.is_alive() and not one.daemon]:
        for thread in left:
            thread.join()


def _code_of(run: Callable[[], object]) -> int:
    """Runs something of the script's, and returns the exit code that Python would give for it."""
    try:
        run()
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; what was found so far:", file=sys.stderr)
        return _INTERRUPTED
    except BaseException:  # noqa: BLE001 - what the script raises is told as Python does
        traceback.print_exc()
        return 1
    return 0

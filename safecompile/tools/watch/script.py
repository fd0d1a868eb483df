"""``python -m safecompile watch``: runs a script in plain torch, and tells at its end what was found."""

from __future__ import annotations

import json
import os
import runpy
import sys
import threading
import traceback
from dataclasses import asdict
from pathlib import Path

from . import watch


def run(script: str, arguments: list[str], *, is_module: bool, provoke: bool, output: str | None) -> int:
    """Runs a script, or a module, as ``python`` would, and prints the findings on stderr.

    Returns:
        The script's exit code if that is not 0, else 1 if something was found, else 0.
    """
    os.environ["SAFECOMPILE_DISABLE"] = "1"  # for its child processes too
    sys.argv[:] = [script, *arguments]
    sys.path[0] = str(Path.cwd()) if is_module else str(Path(script).resolve().parent)
    with watch(provoke=provoke) as watched:
        code = _run(script, is_module=is_module)
    print(f"\n{'-' * 100}\n{watched}", file=sys.stderr)
    if output is not None:
        found = [{**asdict(one), "meaning": one.meaning, "cure": one.cure} for one in watched.findings]
        Path(output).write_text(json.dumps(found, indent=2), encoding="utf-8")
    return code or (1 if watched.findings else 0)


def _run(script: str, *, is_module: bool) -> int:
    try:
        if is_module:
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(script, run_name="__main__")
        for thread in threading.enumerate():  # as Python does at its end
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; what was found so far:", file=sys.stderr)
        return 130
    except BaseException:  # noqa: BLE001 - what the script raises is told as Python does
        traceback.print_exc()
        return 1
    return 0

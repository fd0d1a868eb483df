"""Programs that must pass in a process of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from functools import lru_cache

from tests.helpers.threads import ROOT, in_fresh_process

from .snapshots import PATCHED_MODULES

# Imports torch once and forks for each program: nothing is installed, compiled or started before, so the fork is as
# good as a fresh process, which costs seconds more.
NURSERY = f"""
import importlib, json, os, signal, sys, tempfile, traceback
import torch
for name in {PATCHED_MODULES!r}:
    importlib.import_module(name)
torch.compile(lambda x: x, backend="eager")  # imports what it needs
for line in sys.stdin:
    code, variables, limit_s = json.loads(line)
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if not child:
            signal.alarm(limit_s)
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            os.environ.update(variables)
            status = 1
            try:
                exec(compile(code, "<program>", "exec"), {{"__name__": "__main__"}})
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        status = os.waitpid(child, 0)[1]
        output.seek(0)
        print(json.dumps([status, output.read().decode(errors="replace")]), flush=True)
"""


@lru_cache(maxsize=1)
def _nursery() -> subprocess.Popen[str]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("SAFECOMPILE_")}
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), variables.get("PYTHONPATH"))))
    return subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-c", NURSERY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=variables,
        cwd=ROOT,
    )


def passes(code: str, *, limit_s: int = 60, **env: str) -> str:
    """Runs ``code`` where torch is imported and nothing else has happened; it must pass. Returns what it printed."""
    nursery = _nursery()
    assert nursery.stdin is not None
    assert nursery.stdout is not None
    nursery.stdin.write(json.dumps([textwrap.dedent(code), env, limit_s]) + "\n")
    nursery.stdin.flush()
    status, output = json.loads(nursery.stdout.readline())
    assert status == 0, f"wait status {status}\n{output}"
    return str(output)


def passes_without_torch(code: str, *, timeout_s: float = 90.0, **env: str) -> str:
    """Runs ``code`` in a process that has not imported torch; it must pass. Returns what it printed."""
    done = in_fresh_process(code, timeout_s=timeout_s, **env)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout

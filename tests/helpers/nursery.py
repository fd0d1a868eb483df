"""A process that has imported what a program needs, and forks for each: seconds less than a fresh process each time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import IO

from .threads import ROOT, Hung, child_environment

# Nothing is installed, compiled or started before the fork, so the fork is as good as a fresh process. It runs the
# program as its main module, and ends as Python ends: with the threads, the exit handlers, the status.
PROGRAM = """
import contextlib, importlib, json, os, signal, sys, time, types
for name in {modules!r}:
    importlib.import_module(name)
{prepare}
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
for line in sys.stdin:
    code, variables, timeout_s, out, err = json.loads(line)
    child = os.fork()
    if not child:
        break
    limits = [(time.monotonic() + timeout_s, os.kill, signal.SIGABRT),  # faulthandler prints every thread's stack
              (time.monotonic() + timeout_s + 5, os.killpg, signal.SIGKILL)]
    hung = False
    try:
        while not os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if limits and time.monotonic() > limits[0][0]:
                _, kill, number = limits.pop(0)
                kill(child, number)
                hung = True
            time.sleep(0.01)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # and what it has left running
            os.killpg(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps([hung, status]), flush=True)
else:
    os._exit(0)
signal.signal(signal.SIGTERM, signal.SIG_DFL)
os.setsid()
for number, path in enumerate((os.devnull, out, err)):
    os.dup2(os.open(path, os.O_RDWR), number)
os.environ.update(variables)
main = sys.modules["__main__"] = types.ModuleType("__main__")
exec(compile(code, "<program>", "exec"), vars(main))
"""


class Nursery:
    """Starts the process, with ``flags`` of Python's; ``modules`` are imported there, then ``prepare`` runs."""

    def __init__(
        self, modules: Iterable[str], prepare: str = "", flags: Iterable[str] = (), env: Mapping[str, str] | None = None
    ) -> None:
        program = PROGRAM.format(modules=tuple(modules), prepare=prepare)
        self._process = subprocess.Popen(
            [sys.executable, *flags, "-X", "faulthandler", "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=child_environment() | dict(env or {}),
            cwd=ROOT,
        )

    def close(self) -> None:
        """Ends the process: it does so when nothing more can come."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()

    def run(self, code: str, *, timeout_s: float, **env: str) -> subprocess.CompletedProcess[str]:
        """Runs ``code``, indented as it stands in the test, in a fork.

        Raises:
            Hung: it has not ended after ``timeout_s``; the message holds the stack of each of its threads.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with tempfile.NamedTemporaryFile("r") as out, tempfile.NamedTemporaryFile("r") as err:
            job = [textwrap.dedent(code), env, timeout_s, out.name, err.name]
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
            assert answer, f"the process that forks has ended: {self._process.poll()}"
            hung, status = json.loads(answer)
            said, complaint = _text(out), _text(err)
        if hung:
            raise Hung(f"the process has not ended after {timeout_s:g} s\n--- stdout\n{said}\n--- stderr\n{complaint}")
        return subprocess.CompletedProcess(code, status, said, complaint)


def _text(file: IO[str]) -> str:
    with open(file.name, errors="replace") as again:  # noqa: PTH123 - by its name: the child's offset is its own
        return again.read()


@lru_cache(maxsize=1)
def _with_dynamo() -> Nursery:
    return Nursery(("torch", "torch._dynamo"))


def in_forked_process(code: str, *, timeout_s: float = 90.0, **env: str) -> subprocess.CompletedProcess[str]:
    """Like ``in_fresh_process``, where torch and Dynamo are imported and nothing else has happened.

    For programs that begin by importing them anyway, and with no variable that torch reads while it is imported. Not
    for those that look at a code's list of entries: with torch 2.7.1 it was empty in a fork (why is not known).
    """
    if not hasattr(os, "fork") or not hasattr(os, "waitid"):
        from .threads import in_fresh_process

        return in_fresh_process(code, timeout_s=timeout_s, **env)
    return _with_dynamo().run(code, timeout_s=timeout_s, **env)

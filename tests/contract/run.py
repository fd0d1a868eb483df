"""PyTorch's own tests as a contract: run plain and with ``safecompile.patch_all``, they must end the same.

``python tests/contract/run.py --snapshot FOLDER``; the README beside this file tells where FOLDER comes from. The exit
status is 1 if a test differs each time that it was looked at.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from judging import DIED, STARTED, Difference, differences, passed, verdict

HERE = Path(__file__).resolve().parent
DYNAMO = """functions repros misc higher_order_ops modules decorators recompiles hooks subgraphs ctx_manager unspec
            autograd_function compile activation_checkpointing"""
FILES = ["test_fx.py", *(f"dynamo/test_{name}.py" for name in DYNAMO.split())]

Outcomes = dict[str, tuple[str, str]]


class Runner:
    """Runs files of tests in fresh processes, one at a time."""

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self._given, self._folder, self._count = arguments, folder, 0

    def outcomes(self, files: list[str], *, safe: bool, tests: tuple[str, ...] = ()) -> Outcomes:
        """Runs ``files``, or only ``tests`` of them. A test that ends its process is noted; the rest go on without."""
        found: Outcomes = {}
        limit_s = self._given.file_limit * len(files)
        while limit_s > 0:
            began = time.monotonic()
            said, log = self._process(files, safe=safe, tests=tests, done=list(found), limit_s=limit_s)
            limit_s -= time.monotonic() - began
            found.update({name: (outcome, why) for name, outcome, why in said if name and outcome != "all done"})
            culprits = [name for name, (outcome, _) in found.items() if outcome == STARTED]
            for name in culprits:
                found[name] = DIED, f"the stacks are in {log}"
            if not culprits:
                if not any(outcome == "all done" for _, outcome, _ in said):
                    found[f"{files[0]}::process"] = DIED, f"outside of a test; see {log}"
                break
        return found

    def _process(self, files: list[str], **settings: Any) -> tuple[list[list[str]], Path]:
        self._count += 1
        limit_s = settings.pop("limit_s")
        out, log = (self._folder / f"{self._count}.{kind}" for kind in ("jsonl", "log"))
        out.touch()
        told = {"snapshot": self._given.snapshot, "files": files, "out": str(out), **settings}
        told |= {"test_limit_s": self._given.test_limit, "idle_thread": self._given.idle_thread}
        env = {
            **os.environ,
            "PYTHONPATH": str(HERE.parent.parent),
            "OMP_NUM_THREADS": "1",
            # Empty each time: where nothing is to be compiled Inductor starts no threads, and a test may be alone.
            "TORCHINDUCTOR_CACHE_DIR": str(self._folder / f"inductor-{self._count}"),
        }
        settings_file = self._folder / f"{self._count}.json"
        settings_file.write_text(json.dumps(told))
        command = [self._given.python, str(HERE / "child.py"), str(settings_file)]
        with log.open("w") as said:
            child = subprocess.Popen(command, env=env, stdout=said, stderr=said, start_new_session=True)
            try:
                child.wait(limit_s)
            except subprocess.TimeoutExpired:
                child.send_signal(signal.SIGABRT)  # faulthandler writes all stacks
                time.sleep(5)
            finally:
                if child.poll() is None:
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        return [json.loads(line) for line in out.read_text().splitlines()], log


def judged(runner: Runner, files: list[str], found: list[Difference]) -> list[tuple[Difference, str]]:
    """Looks at each difference again: the test alone, and if that does not show it, its whole process once more."""
    alone: list[Difference] = []
    for one in found:
        file = one.test.partition("::")[0]
        both = (runner.outcomes([file], safe=safe, tests=(one.test,)) for safe in (False, True))
        alone += differences(*both)
    again: list[Difference] = []
    if any(verdict(one, alone, ()) == "flaky" for one in found):
        again = differences(*(runner.outcomes(files, safe=safe) for safe in (False, True)))
    return [(one, verdict(one, alone, again)) for one in found]


def versions(python: str) -> dict[str, str]:
    """Returns what the reader of a result must know."""
    asked = "import torch, sys; print(torch.__version__, sys.version.split()[0])"
    torch, version = subprocess.check_output([python, "-c", asked], text=True).split()
    git = ["git", "-C", str(HERE), "describe", "--always", "--dirty", "--exclude=*"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    return {"torch": torch, "python": version, "commit": commit, "date": time.strftime("%Y-%m-%d")}


def main(given: list[str] | None = None) -> int:
    """Runs the contract and prints its result; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--snapshot", required=True, help="folder that has test/test_fx.py and test/dynamo in it")
    parser.add_argument("--python", default=sys.executable, help="interpreter with the torch to be looked at")
    parser.add_argument("--only", nargs="+", default=FILES, metavar="FILE", help="such as dynamo/test_misc.py")
    parser.add_argument("--together", action="store_true", help="one process for all files, not one for each")
    parser.add_argument("--idle-thread", action="store_true", help="beside a thread that only sleeps")
    parser.add_argument("--json", type=Path, help="where to write the result")
    parser.add_argument("--file-limit", type=float, default=1800.0, help="seconds for one file")
    parser.add_argument("--test-limit", type=float, default=300.0, help="seconds for one test")
    arguments = parser.parse_args(given)
    arguments.snapshot = str(Path(arguments.snapshot).resolve())
    os.nice(10)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the child ends, too
    folder = Path(tempfile.mkdtemp(prefix="contract-"))
    runner = Runner(arguments, folder)
    data: dict[str, Any] = {
        **versions(arguments.python),
        "together": arguments.together,
        "idle thread": arguments.idle_thread,
        "files": {},
        "tests": [],
    }
    print(f"torch {data['torch']}, Python {data['python']}, commit {data['commit']}; logs in {folder}", flush=True)
    for files in [arguments.only] if arguments.together else [[file] for file in arguments.only]:
        plain, safe = (runner.outcomes(files, safe=safe) for safe in (False, True))
        found = differences(plain, safe)
        for file in files:
            counts = {
                "tests": sum(name.startswith(f"{file}::") for name in plain),
                "passed plain": passed({k: v for k, v in plain.items() if k.startswith(f"{file}::")}),
                "passed safe": passed({k: v for k, v in safe.items() if k.startswith(f"{file}::")}),
            }
            data["files"][file] = counts
            print(f"{file}: {counts}", flush=True)
        for one, what in judged(runner, files, found):
            row = {"test": one.test, "kind": one.kind, "plain": one.plain, "safe": one.safe, "verdict": what}
            data["tests"].append(row)
            print(f"  {one.kind}, {what}: {one.test}\n    plain {one.plain}\n    safe  {one.safe}", flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(data, indent=1) + "\n")
    totals = {name: sum(row[name] for row in data["files"].values()) for name in ("passed plain", "passed safe")}
    differ = [row["test"] for row in data["tests"] if row["verdict"] != "flaky"]
    print(f"{totals}; {len(differ)} test(s) differ, {len(data['tests']) - len(differ)} flaky", flush=True)
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())

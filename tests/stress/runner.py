"""Runs each script of this folder in a process of its own: exit code 0 is a pass, 77 a skip, anything else a failure.

python tests/stress/runner.py [seconds] [part of a name]
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
SKIP = 77


def scripts(part: str = "") -> list[Path]:
    """Returns the scripts whose name has ``part`` in it."""
    return [path for path in sorted(FOLDER.glob("stress_*.py")) if part in path.name]


def run(script: Path, seconds: float, limit_s: float = 300.0) -> tuple[int, str]:
    """Runs one script and returns its exit code (124 if it hung) and its output."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    try:
        done = subprocess.run(
            [sys.executable, "-X", "faulthandler", str(script), str(seconds)],
            capture_output=True,
            text=True,
            timeout=seconds + limit_s,
            env=os.environ | {"PYTHONPATH": path},
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return 124, f"hung: {error.stdout!r}"
    return done.returncode, done.stdout + done.stderr


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 5.0
    failed = 0
    for script in scripts(sys.argv[2] if len(sys.argv) > 2 else ""):
        code, output = run(script, seconds)
        word = {0: "pass", SKIP: "skip"}.get(code, f"FAIL ({code})")
        print(f"{word:10} {script.name}  {output.strip().splitlines()[-1] if output.strip() else ''}", flush=True)
        if code not in (0, SKIP):
            failed += 1
            print(output)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

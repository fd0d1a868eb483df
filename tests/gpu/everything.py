"""All suites that need a GPU, one after the other, within a time limit; run it again, and it goes on where it was.

``python tests/gpu/everything.py RESULTS [--only streams,drafters] [--half] [--budget-s 540]``

RESULTS gets one file of JSON for each suite, and ``versions.json``. A suite with a file there is not run again. What
did not fit is told as not run. ``--half``: half as many runs, for an older torch.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = """
import json, platform, torch
try:
    import triton
except ImportError:
    triton = None
import datetime
names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
print(json.dumps({"torch": torch.__version__, "triton": getattr(triton, "__version__", None),
    "cuda": torch.version.cuda, "python": platform.python_version(), "gpus": names,
    "utc": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="minutes")}))
"""


def suites(half):
    """Returns, by name, the command (without where its results go) and the seconds that it needs."""

    def runs(number):
        return str((number + 1) // 2 if half else number)

    def own(script, *arguments):
        return [sys.executable, str(ROOT / "tests" / "gpu" / script), *arguments]

    three = runs(3)
    drafters = f"single:1x1*{three},safe:1x4*{three},safe:1x6:separate*{three}"
    return {
        "streams": (
            own("streams.py", "--steps", "streams", "--modes", "safe", "--repeats", runs(10), "--at-once", "5"),
            60,
        ),
        "streams-plain": (own("streams.py", "--steps", "streams", "--modes", "plain", "--repeats", "2"), 40),
        "ro": (own("streams.py", "--steps", "reduce_overhead", "--modes", "safe", "--repeats", three), 40),
        "graphs": (own("cuda_graphs.py", "--modes", "safe"), 90),
        "real": (own("real_programs.py", "--modes", "safe"), 90),
        "real-plain": (own("real_programs.py", "--modes", "plain"), 90),
        "drafters": (
            [
                sys.executable,
                "-m",
                "tests.gpu.drafters",
                "--configs",
                drafters,
                "--time-limit",
                "60",
                "--least-s",
                "70",
            ],
            150,
        ),
        "autotune": (own("streams.py", "--steps", "four_threads_two_graphs", "--modes", "safe"), 120),
        "autotune-alone": (own("streams.py", "--steps", "one_thread_two_graphs", "--modes", "plain"), 80),
        "autotune-beside-captures": (own("streams.py", "--steps", "autotune", "--modes", "safe"), 120),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--only", help="comma-separated names of suites, in this order; default: all")
    parser.add_argument("--half", action="store_true")
    parser.add_argument("--budget-s", type=float, default=1e9)
    arguments = parser.parse_args()
    out = arguments.results.resolve()
    out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + arguments.budget_s
    there = suites(arguments.half)
    told = subprocess.run([sys.executable, "-c", VERSIONS], capture_output=True, text=True, check=True).stdout
    (out / "versions.json").write_text(told)
    print(told, flush=True)
    not_run = []
    for name in (arguments.only or ",".join(there)).split(","):
        command, needs_s = there[name]
        file = out / f"{name}.json"
        if file.exists():
            continue
        left = deadline - time.monotonic()
        if left < needs_s:
            not_run.append(f"{name} (needs {needs_s} s, {left:.0f} s are left)")
            continue
        partial = file.with_suffix(".partial")
        began = time.monotonic()
        print(f"== {name}", flush=True)
        where = ["--out" if "-m" in command else "--json", str(partial), "--budget-s", f"{left - 5:.0f}"]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(ROOT)]).strip(os.pathsep),
        }
        done = subprocess.run([*command, *where], cwd=ROOT, env=environment, check=False)
        print(f"== {name}: exit {done.returncode}, {time.monotonic() - began:.0f} s", flush=True)
        if done.returncode == 0 and partial.exists():
            data = json.loads(partial.read_text())
            file.write_text(
                json.dumps({"command": command[1:], "versions": json.loads(told), "results": data}, indent=1) + "\n"
            )
    for one in not_run:
        print(f"NOT RUN: {one}", flush=True)


if __name__ == "__main__":
    main()

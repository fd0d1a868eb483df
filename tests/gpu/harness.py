"""What the scripts for GPUs share: steps in processes of their own, with plain torch and with the library.

Each step runs with empty caches and a time limit. One line each: PASS or FAIL, the step, which of the two, and what
was seen.
"""

import argparse
import concurrent.futures
import faulthandler
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from pathlib import Path

LIMIT_S = 60.0
LONGER_S = {"triton_first_launch": 110.0, "triton_cold": 110.0}  # 20 compiles each
STEPS: dict = {}
SCRIPT = ""


def step(function):
    STEPS[function.__name__] = function
    return function


lock = threading.Lock()
compiles: list = []  # (device of the first tensor, thread), one for each call of the backend
runs: Counter = Counter()  # runs of compiled code by device


def devices():
    import torch

    return [torch.device("cuda", i) for i in range(torch.cuda.device_count())] or [torch.device("cpu")]


def device_of(arguments):
    import torch

    return next((str(a.device) for a in arguments if isinstance(a, torch.Tensor)), "none")


def in_threads(count, work, limit=50.0):
    """``work(i)`` in ``count`` threads; raises with all errors, shortened."""
    errors = []

    def run(i):
        try:
            work(i)
        except BaseException as error:
            traceback.print_exc()
            where = traceback.extract_tb(error.__traceback__)[-1]
            errors.append(f"{type(error).__name__}: {str(error)[:200]!r} at {Path(where.filename).name}:{where.name}")

    threads = [threading.Thread(target=run, args=(i,), name=f"worker-{i}", daemon=True) for i in range(count)]
    for t in threads:
        t.start()
    end = time.monotonic() + limit
    for t in threads:
        t.join(max(0.0, end - time.monotonic()))
    stuck = [t.name for t in threads if t.is_alive()]
    if stuck:
        faulthandler.dump_traceback(all_threads=True)
    parts = [f"{n} of {count} threads: {e}" for e, n in Counter(errors).most_common()]
    if stuck:
        parts.insert(0, f"HUNG: {stuck}")
    assert not parts, " | ".join(parts)


def seen():
    """What the counters say, for the line."""
    import torch._dynamo.utils as utils

    return {
        "compiles": len(compiles),
        "compiles_by_device": dict(Counter(d for d, _ in compiles)),
        "compiled_runs": dict(runs),
        "graph_breaks": sum(utils.counters["graph_break"].values()),
    }


def child(name, mode):
    if mode == "safe":
        import safecompile.patch_all  # noqa: F401
    import torch

    os.environ.setdefault("OMP_NUM_THREADS", "2")
    torch.set_num_threads(2)
    faulthandler.dump_traceback_later(LONGER_S.get(name, LIMIT_S) - 6, exit=False)
    import torch._dynamo
    import torch._inductor.compile_fx

    faulthandler.enable()
    start = time.monotonic()
    try:
        details = STEPS[name]() or seen()
        verdict = "PASS"
    except BaseException as error:
        verdict = "FAIL"
        text = " ".join(str(error).split())
        cut = text if len(text) < 700 else text[:350] + " … " + text[-350:]
        details = {"error": f"{type(error).__name__}: {cut}"}
        if compiles:
            details.update(seen())
        traceback.print_exc()
    if mode == "safe":
        from safecompile._installing import installer

        off = {k: v for k, v in installer.state().items() if v not in ("on", "waiting")}
        if off:
            details["families_not_on"] = off
    print(
        "RESULT "
        + json.dumps({"verdict": verdict, "seconds": round(time.monotonic() - start, 1), **details}, default=repr)
    )
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


# --------------------------------------------------------------------------------------------- in the parent


def one_run(name, mode, repeat, deadline, logs):
    limit = min(LONGER_S.get(name, LIMIT_S), deadline - time.monotonic())
    if limit < 20:
        return {"step": name, "mode": mode, "repeat": repeat, "verdict": "NOT RUN", "error": "no time left"}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        environment = dict(
            os.environ,
            TORCHINDUCTOR_CACHE_DIR=f"{folder}/inductor",
            TRITON_CACHE_DIR=f"{folder}/triton",
            TORCHINDUCTOR_COMPILE_THREADS=os.environ.get("TORCHINDUCTOR_COMPILE_THREADS", "3"),
            OMP_NUM_THREADS="2",
        )
        command = [sys.executable, SCRIPT, "--child", name, mode]
        process = subprocess.Popen(
            command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        try:
            out, err = process.communicate(timeout=limit)
            hung = False
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            out, err = process.communicate()
            hung = True
    if logs:
        (Path(logs) / f"{name}-{mode}-{repeat}.log").write_text(out + "\n--- stderr\n" + err[-200_000:])
    found = [line for line in out.splitlines() if line.startswith("RESULT ")]
    result = json.loads(found[-1][7:]) if found else {"verdict": "FAIL", "error": f"exit {process.returncode}"}
    if hung and not found:
        result["error"] = f"HUNG: killed after {limit:.0f} s"
    if not found and not hung:
        result["error"] += ": " + " ".join(err.split())[-200:]
    return {"step": name, "mode": mode, "repeat": repeat, **result}


def main(script, description):
    """Runs the steps of ``script``, or the one that a child is told."""
    global SCRIPT
    SCRIPT = script
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--child", nargs=2)
    parser.add_argument("--steps", default=",".join(STEPS))
    parser.add_argument("--modes", default="plain,safe")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--budget-s", type=float, default=420.0)
    parser.add_argument("--json")
    parser.add_argument("--logs")
    arguments = parser.parse_args()
    if arguments.child:
        child(*arguments.child)
    deadline = time.monotonic() + arguments.budget_s
    if arguments.logs:
        Path(arguments.logs).mkdir(parents=True, exist_ok=True)
    jobs = [
        (name, mode, repeat)
        for repeat in range(arguments.repeats)
        for name in arguments.steps.split(",")
        for mode in arguments.modes.split(",")
    ]
    results = []
    with concurrent.futures.ThreadPoolExecutor(arguments.at_once) as pool:
        waiting = [pool.submit(one_run, *job, deadline, arguments.logs) for job in jobs]
        for done in concurrent.futures.as_completed(waiting):
            r = done.result()
            results.append(r)
            rest = {k: v for k, v in r.items() if k not in ("step", "mode", "repeat", "verdict")}
            line = (
                f"{r['verdict']:8}{r['step']:32}{r['mode']:6}#{r['repeat'] + 1}  {json.dumps(rest, ensure_ascii=False)}"
            )
            print(line, flush=True)
            if arguments.json:
                Path(arguments.json).write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")

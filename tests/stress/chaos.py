"""Sixteen threads do at random what a program may do; every result is compared with eager, and at the end all state.

    python -m tests.stress.chaos [--seconds 60] [--seed 1] [--threads 16] [--only call,reset] [--interrupts] [--plain]

A round is a plan: for each thread a list of operations with their seeds. Between rounds all is quiet: there the library
is taken out, torch is compared with what it was, and it is put in again. Exit code 0: nothing was wrong. A failed plan
is shrunk and written as a short script. ``--interrupts`` raises an exception into the threads from outside: then the
residues that known issues name are counted, and all else is a failure. ``--plain`` shows what plain torch makes of it.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import faulthandler
import json
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
Plan = list[list[tuple[str, int]]]
#: Operations of a thread in one round.
LENGTH = 12
#: Seconds without a finished operation, and without CPU time: hung.
PATIENCE_S = 45.0
HUNG = 3
DYNAMOS_OWN = ("__compiled_fn", "__resume_at", "torch_dynamo_resume")


class Interrupted(BaseException):
    """Raised from outside, between any two instructions."""


def make_plan(seed: int, number: int, threads: int, names: list[str], weights: dict[str, int]) -> Plan:
    rng = random.Random(f"{seed}/{number}")
    counts = [weights[name] for name in names]
    return [[(name, rng.randrange(1 << 30)) for name in rng.choices(names, counts, k=LENGTH)] for _ in range(threads)]


class Chaos:
    """Runs plans and keeps what they came to."""

    def __init__(self, *, interrupts: bool = False) -> None:
        from safecompile.tools._vitals import Watch

        from . import chaos_operations

        self.operations = chaos_operations.operations
        self.interrupts = interrupts
        self.done: collections.Counter[str] = collections.Counter()
        self.residues: collections.Counter[str] = collections.Counter()
        self.errors: list[str] = []
        self._lock = threading.Lock()  # guards what stands above
        self._watch = Watch(time.process_time, PATIENCE_S, time.monotonic())

    def run(self, plan: Plan) -> None:
        threads = [threading.Thread(target=self._work, args=(steps,), daemon=True) for steps in plan]
        for thread in threads:
            thread.start()
        rng = random.Random(0)
        while alive := [thread for thread in threads if thread.is_alive()]:
            faulthandler.dump_traceback_later(
                3 * PATIENCE_S, exit=True
            )  # if this thread never gets Python's lock again
            alive[0].join(0.05)
            if self.interrupts and rng.random() < 0.5:
                _raise_in(rng.choice(alive))
            if self._watch.stopped(self.done.total(), time.monotonic()):
                print(f"HUNG: {len(alive)} threads, {self.done.total()} operations", flush=True)
                faulthandler.dump_traceback(all_threads=True)
                os._exit(HUNG)
        faulthandler.cancel_dump_traceback_later()

    def _work(self, steps: list[tuple[str, int]]) -> None:
        for name, seed in steps:
            try:
                self._step(name, seed)
            except Interrupted:
                with self._lock:
                    self.residues["interrupts between two operations"] += 1

    def _step(self, name: str, seed: int) -> None:
        try:
            self.operations[name](random.Random(seed))
        except Interrupted:
            with self._lock:
                self.residues["interrupts"] += 1
        except BaseException as error:
            if self.interrupts and isinstance(error, Exception) and "Interrupted" in traceback.format_exc():
                with self._lock:
                    self.residues[f"interrupts that came out as {type(error).__name__}"] += 1
                return
            with self._lock:
                self.errors.append(f"{name}, {seed}: {traceback.format_exc()}")
        with self._lock:
            self.done[name] += 1


def _raise_in(thread: threading.Thread) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Interrupted))


def state() -> dict[str, object]:
    """Returns what is once for the process and should be at a quiet moment as it was at another."""
    import builtins
    import gc
    import math

    import torch
    import torch._dynamo.convert_frame
    import torch.fx._symbolic_trace as symbolic

    lock = torch._dynamo.convert_frame.compile_lock
    free = lock.acquire(timeout=5)
    if free:
        lock.release()
    module = torch.nn.Module
    return {
        "compile lock is free": free,
        "default dtype": torch.get_default_dtype(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "grad": torch.is_grad_enabled(),
        "autograd's own threads": torch.autograd.is_multithreading_enabled(),
        "compiling": torch.compiler.is_compiling(),
        "exporting": torch.compiler.is_exporting() if hasattr(torch.compiler, "is_exporting") else False,
        "tracing": symbolic.is_fx_tracing(),
        "modes": torch._C._len_torch_dispatch_stack(),
        "nn.Module": (module.__call__, module.__getattr__, module.__call__.__code__),
        "math": tuple(vars(math).items()),
        "builtins": tuple(vars(builtins).items()),
        "stance": torch._dynamo.eval_frame._stance.stance,
        "dynamo config": str(sorted(torch._dynamo.config.get_config_copy().items(), key=lambda item: item[0])),
        "gc": gc.isenabled(),
        "switch interval": sys.getswitchinterval(),
        "flights": flights(),
    }


def flights() -> int:
    module = sys.modules.get("safecompile._engine.flights")
    return len(module.flights) if module else 0


def changed(before: dict[str, object], after: dict[str, object]) -> list[str]:
    return [
        f"{name}: was {before[name]!s:.200}, is {after[name]!s:.200}" for name in before if before[name] != after[name]
    ]


def warm_up(chaos: Chaos, names: list[str]) -> None:
    """Each operation once, alone: what is imported at a first use is there before anything forks."""
    for seed in range(2):
        for name in names:
            chaos.operations[name](random.Random(seed))


def quiet(
    before: dict[str, object], kept: object, residues: collections.Counter[str], *, interrupts: bool
) -> list[str]:
    """Compares the state, takes the library out, compares torch's code, puts the library in again."""
    import torch

    import safecompile
    from tests.patching.snapshots import PATCHED_MODULES, patches, snapshot

    if interrupts:  # a symbolic trace takes away what an interrupted one has left
        for name in changed(before, state()):
            residues[f"state: {name.partition(':')[0]}"] += 1
        torch.fx.symbolic_trace(torch.nn.Linear(2, 2))
        torch.autograd.set_multithreading_enabled(True)
    found = changed(before, state())
    if safecompile.is_installed():
        safecompile.uninstall()
        left = patches(kept, snapshot(PATCHED_MODULES.__contains__))
        if interrupts and any("_forward_from_src" in one for one in left):
            residues["torch's own mark of what a compile generates"] += 1  # set before the "try" that takes it away
            torch.fx.graph_module._forward_from_src = kept["torch.fx.graph_module", "_forward_from_src"]
            left = patches(kept, snapshot(PATCHED_MODULES.__contains__))
        # Dynamo puts what it compiles into the variables of the file.
        found += [f"torch is not as it was: {one}" for one in left if not any(name in one for name in DYNAMOS_OWN)]
        safecompile.install()
    return found


def run(options: argparse.Namespace, plans: list[Plan] | None = None) -> tuple[int, Plan | None, list[str]]:
    """Runs rounds until the time is over, or the plans; returns the operations, the plan that failed, and why."""
    prepare(plain=options.plain)
    import safecompile
    from tests.patching.snapshots import PATCHED_MODULES, snapshot

    from . import chaos_operations

    names = [name for name in chaos_operations.operations if not options.only or name in options.only]
    if options.interrupts:
        names = [name for name in names if name != "process_wide"]  # an interrupt may strike before it puts back
    chaos = Chaos(interrupts=options.interrupts)
    warm_up(chaos, names)
    safecompile.uninstall()
    kept = snapshot(PATCHED_MODULES.__contains__)
    if not options.plain:
        safecompile.install()
        warm_up(chaos, names)
    before = state()
    begin = said = time.monotonic()
    for number in range(1, 1 << 30):
        if number > len(plans) if plans is not None else time.monotonic() - begin > options.seconds:
            break
        weights = chaos_operations.weights
        plan = plans[number - 1] if plans else make_plan(options.seed, number, options.threads, names, weights)
        if plans is None and options.last_plan:
            Path(options.last_plan).write_text(json.dumps(plan))
        chaos.run(plan)
        found = chaos.errors + quiet(before, kept, chaos.residues, interrupts=options.interrupts)
        if found:
            return chaos.done.total(), plan, found
        if time.monotonic() - said > 60:
            said = time.monotonic()
            print(f"{said - begin:.0f} s, {number} rounds, {chaos.done.total()} operations", flush=True)
    print(f"{number - 1} rounds: " + ", ".join(f"{count} {name}" for name, count in chaos.done.most_common()))
    if options.interrupts:
        print("residues: " + (", ".join(f"{count} {what}" for what, count in chaos.residues.items()) or "none"))
    return chaos.done.total(), None, []


def prepare(*, plain: bool) -> None:
    os.environ["SAFECOMPILE_DISABLE"] = "1" if plain else ""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    sys.setswitchinterval(0.0005)
    threading.excepthook = lambda arguments: None
    import torch

    torch.set_num_threads(1)


def fails(plan: Plan, options: argparse.Namespace, repeats: int = 5) -> bool:
    """Tells whether the plan fails in a process of its own, run several times."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump([plan] * repeats, file)
        file.flush()
        command = [sys.executable, "-m", "tests.stress.chaos", "--plans", file.name]
        command += ["--interrupts"] * options.interrupts + ["--plain"] * options.plain
        done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=900, check=False)
    return done.returncode != 0


def shrink(plan: Plan, still_fails, limit_s: float = 600.0) -> Plan:
    """Leaves out threads, then kinds of operations, then single ones, for as long as the plan still fails."""
    end = time.monotonic() + limit_s

    def smaller(plan: Plan):
        size = len(plan)
        while size := size // 2:
            for first in range(0, len(plan), size):
                yield plan[:first] + plan[first + size :]
        for kind in sorted({name for steps in plan for name, _ in steps}):
            yield [[step for step in steps if step[0] != kind] for steps in plan]
        for index, steps in enumerate(plan):
            for number in range(len(steps)):
                yield [*plan[:index], steps[:number] + steps[number + 1 :], *plan[index + 1 :]]

    going = True
    while going:
        going = False
        for candidate in smaller(plan):
            candidate = [steps for steps in candidate if steps]
            if time.monotonic() > end or not candidate:
                break
            if still_fails(candidate):
                plan, going = candidate, True
                break
    return plan


SCRIPT = '''"""A plan of tests/stress/chaos.py that fails{how}. Run it in the root of the repository."""

from tests.stress.chaos import main

PLAN = {plan}

main(["--repeat", "20"{options}], PLAN)
'''


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--seconds", type=float, default=60.0)
    made.add_argument("--seed", type=int, default=1)
    made.add_argument("--threads", type=int, default=16)
    made.add_argument("--only", type=lambda text: text.split(","), default=[], help="names of operations")
    made.add_argument("--interrupts", action="store_true")
    made.add_argument("--plain", action="store_true")
    made.add_argument("--no-shrink", action="store_true")
    made.add_argument("--script", default="chaos_failure.py", help="where a failure's short script is written")
    made.add_argument("--plans", help="a file with plans, to be run in place of random ones")
    made.add_argument("--repeat", type=int, default=1, help="how often a given plan is run")
    made.add_argument("--last-plan", help="where the plan that runs is written, for a process that dies")
    return made


def main(arguments: list[str] | None = None, plan: Plan | None = None) -> int:
    options = parser().parse_args(arguments)
    plans = json.loads(Path(options.plans).read_text()) if options.plans else [plan] * options.repeat if plan else None
    inside = plans is not None or options.no_shrink
    if not inside:
        return outside(options, sys.argv[1:] if arguments is None else arguments)
    count, failed, found = run(options, plans)
    import torch

    for one in found[:3]:
        print(one[-3000:])
    print(f"torch {torch.__version__}, seed {options.seed}: {count} operations, {len(found)} wrong", flush=True)
    sys.stdout.flush()
    os._exit(1 if failed else 0)  # torch's own exit is not what is tried here


def outside(options: argparse.Namespace, arguments: list[str]) -> int:
    """Runs it in a child, which may crash or hang, and shrinks what failed."""
    with tempfile.TemporaryDirectory() as folder:
        last = Path(folder, "plan.json")
        command = [sys.executable, "-m", "tests.stress.chaos", *arguments, "--no-shrink", "--last-plan", str(last)]
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
        if code == 0:
            return 0
        word = {1: "was wrong", HUNG: "hung"}.get(code, f"ended with {code}")
        print(f"it {word}", flush=True)
        if not last.exists():
            return 1
        plan = json.loads(last.read_text())
    if fails(plan, options):
        plan = shrink(plan, lambda smaller: fails(smaller, options))
        how = ""
    else:
        how = " now and then: alone it did not fail in five runs"
    flags = "".join(f', "--{flag}"' for flag in ("interrupts", "plain") if getattr(options, flag))
    Path(options.script).write_text(SCRIPT.format(how=how, plan=plan, options=flags))
    print(f"written: {options.script}, {sum(map(len, plan))} operations in {len(plan)} threads{how}")
    return 1


if __name__ == "__main__":
    sys.exit(main())

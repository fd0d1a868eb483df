"""The training layout that asks for safecompile: frozen targets feed drafters, each in a thread of its own.

T target threads run a frozen transformer and pass hidden states through a bounded queue to D drafter threads. Each
drafter, on its own device or sharing one, compiles flex_attention for itself, builds a new block mask from random
anchors at each step, and makes a forward, a backward and an AdamW step. Each run is a fresh process with empty caches.
It runs on a CPU, too, with smaller sizes::

    python -m tests.gpu.drafters --runs 5 --configs single:1x1,safe:1x4,safe:1x4:separate,warmup:1x4,plain:1x4
    python -m tests.gpu.drafters --configs safe:5x3*10 --drafter-devices cuda:5,cuda:6,cuda:7 --budget-s 540

A configuration is ``mode:TxD[:objects][*runs]``. Modes: ``plain`` (torch.compile), ``safe`` (safe_compile), ``warmup``
(torch.compile, each drafter's first step made beforehand on the main thread), ``single`` (plain with one drafter).
Objects: ``shared``, one compiled object for all drafters, or ``separate``, one for each. ``--runs`` is for
configurations without a number of their own. Devices are used in turn, all that are there if none are named. A run
counts as hung after ``--time-limit`` seconds; none begins when less than ``--least-s`` of ``--budget-s`` are left.
"""

from __future__ import annotations

import argparse
import faulthandler
import itertools
import queue
import re
import sys
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks._common import begin, main, parsed, rounded, run_child, say, told, write_json
from benchmarks._host import graphs_compiled
from benchmarks._variants import compiler_of

from . import drafters_model as models

MODES = ("plain", "safe", "warmup", "single")


def configuration(text: str, runs: int) -> dict[str, Any]:
    """Returns the configuration that ``mode:TxD[:objects][*runs]`` names."""
    match = re.fullmatch(r"(\w+):(\d+)x(\d+)(?::(shared|separate))?(?:\*(\d+))?", text.strip())
    if match is None or match[1] not in MODES:
        msg = f"not a configuration: {text!r}; write mode:TxD[:shared|separate][*runs] with a mode of {MODES}"
        raise ValueError(msg)
    mode, targets, drafters, objects, own_runs = match.groups()
    return {
        "mode": mode,
        "targets": int(targets),
        "drafters": 1 if mode == "single" else int(drafters),
        "objects": objects or "shared",
        "runs": int(own_runs or runs),
    }


def devices(count: int, given: str, first: int) -> list[str]:
    """Returns ``count`` devices: the ``given`` ones in turn, else all there are, beginning with number ``first``."""
    there = torch.cuda.device_count()
    named = given.split(",") if given else [f"cuda:{(first + i) % there}" for i in range(there)] or ["cpu"]
    return [named[i % len(named)] for i in range(count)]


class Layout:
    """The threads, the queue between them, and what they measured.

    Each drafter writes its own entry of ``drafters`` alone; ``errors`` is only appended to.
    """

    def __init__(self, settings):
        self.settings = settings
        count = len(settings["drafter_devices"])
        self.drafters = [{"device": device, "cold_ends_s": []} for device in settings["drafter_devices"]]
        self.errors = []
        self.feed = queue.Queue(maxsize=2 * count)
        self.ready, self.hot = threading.Barrier(count + 1), threading.Barrier(count)
        self.go, self.stop = threading.Event(), threading.Event()
        self.shared = self.compiled() if settings["objects"] == "shared" else None

    def compiled(self):
        from torch.nn.attention.flex_attention import flex_attention

        return compiler_of(self.settings["mode"])(flex_attention, backend=self.settings["backend"])

    def target(self, index, device):
        """Runs the frozen model and passes on its hidden states until the drafters are done."""
        model = models.Target(device)
        while not self.stop.is_set():
            hidden = model.hidden()
            while not self.stop.is_set():
                try:
                    self.feed.put(hidden, timeout=0.1)
                    break
                except queue.Full:
                    continue

    def trainer(self, index, device):
        """Returns the function that makes one step of drafter ``index``."""
        step = models.trainer(self.shared or self.compiled(), device, index)
        return lambda: step(self.feed.get(timeout=self.settings["time_limit_s"]))

    def drafter(self, index, device):
        """Trains one drafter: cold steps, a meeting of all drafters, hot steps."""
        step, mine = self.trainer(index, device), self.drafters[index]
        self.ready.wait()
        self.go.wait()
        for _ in range(3):
            step()
            models.finish(device)
            mine["cold_ends_s"].append(rounded(time.perf_counter() - self.began))
        self.hot.wait()
        began = time.perf_counter()
        for _ in range(self.settings["steps"]):
            loss = step()
        models.finish(device)
        mine["hot_s"], mine["loss"] = time.perf_counter() - began, float(loss)

    def guarded(self, role, index, device):
        """Runs a role; an error in it ends the run instead of leaving the others waiting."""
        try:
            models.use(device)
            role(index, device)
        except threading.BrokenBarrierError:
            pass
        except BaseException as error:
            self.errors.append(f"{role.__name__} {index}: {told(error)}")
            self.hot.abort()
            self.ready.abort()

    def run(self):
        """Makes the run, for ``time_limit_s`` seconds at most; returns the drafters that have not ended by then."""
        settings = self.settings
        roles = [(self.target, *one) for one in enumerate(settings["target_devices"])]
        roles += [(self.drafter, *one) for one in enumerate(settings["drafter_devices"])]
        deadline, threads = time.perf_counter() + settings["time_limit_s"], []
        for role, index, name in roles:
            threads.append(threading.Thread(target=self.guarded, args=(role, index, torch.device(name)), daemon=True))
            threads[-1].start()
        try:
            self.ready.wait(settings["time_limit_s"])
        except threading.BrokenBarrierError:
            self.errors.append("the threads did not get ready")
        self.began = time.perf_counter()
        self.warm_up_s = None
        if settings["mode"] == "warmup":
            for index, name in enumerate(settings["drafter_devices"]):
                models.use(torch.device(name))
                self.trainer(index, torch.device(name))()
                models.finish(torch.device(name))
            self.warm_up_s = rounded(time.perf_counter() - self.began)
        self.go.set()
        drafters = threads[len(settings["target_devices"]) :]
        for thread in drafters:
            thread.join(max(0.0, deadline - time.perf_counter()))
        stuck = [f"drafter {number}" for number, thread in enumerate(drafters) if thread.is_alive()]
        if stuck:
            faulthandler.dump_traceback(sys.stderr, all_threads=True)
        self.stop.set()
        return stuck


def child(settings):
    """Makes one run in this process; returns what it measured, hung or not."""
    for name in dict.fromkeys([*settings["target_devices"], *settings["drafter_devices"]]):
        torch.ones(64, 64, device=name) @ torch.ones(64, 64, device=name)  # the device's own start is not measured
        models.finish(torch.device(name))
    layout = Layout(settings)
    stuck = layout.run()
    firsts = [one["cold_ends_s"][0] if one["cold_ends_s"] else None for one in layout.drafters]
    slowest = max(one.get("hot_s", 0.0) for one in layout.drafters)
    tokens = models.tokens_a_step(settings["drafter_devices"][0]) * settings["steps"] * len(firsts)
    return {
        "hung": bool(stuck),
        "stuck": stuck,
        "errors": layout.errors,
        "warm_up_s": layout.warm_up_s,
        "last_first_step_s": None if None in firsts else max(firsts),
        "hot_tokens_per_s": rounded(tokens / slowest) if slowest and not stuck and not layout.errors else None,
        "graphs": graphs_compiled(),
        "drafters": layout.drafters,
    }


def summary(config: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns what the runs of one configuration come to."""
    finished = [one for one in runs if not one["hung"] and not one["errors"]]
    row = {"config": config, "runs": len(runs), "finished": len(finished), "hung": sum(one["hung"] for one in runs)}
    if finished:
        firsts, hot = ([one[key] for one in finished] for key in ("last_first_step_s", "hot_tokens_per_s"))
        row |= {"last_first_step_s": {"median": rounded(median(firsts)), "worst": max(firsts)}}
        row |= {"hot_tokens_per_s": {"median": rounded(median(hot)), "worst": min(hot)}}
    return {**row, "graphs": sorted({one["graphs"] for one in finished})}


def run(arguments: argparse.Namespace) -> Path:
    """Makes all runs, writing the results after each; returns their file."""
    head, out = begin("drafters", arguments)
    data: dict[str, Any] = {**head, "settings": {}, "summary": [], "runs": []}
    ends = time.monotonic() + arguments.budget_s
    for text in arguments.configs.split(","):
        config = configuration(text, arguments.runs)
        settings = {
            **config,
            "backend": arguments.backend,
            "target_devices": devices(config["targets"], arguments.target_devices, 0),
            "drafter_devices": devices(config["drafters"], arguments.drafter_devices, config["targets"]),
            "steps": arguments.steps,
        }
        name = f"{config['mode']}:{config['targets']}x{config['drafters']}:{config['objects']}"
        data["settings"][name] = settings
        for number in itertools.count(1):
            left = ends - time.monotonic()
            if number > config["runs"] or left < arguments.least_s:
                break
            settings["time_limit_s"] = min(arguments.time_limit, left - 10)
            one = run_child("tests.gpu.drafters", settings, time_limit_s=settings["time_limit_s"] + 90)
            data["runs"].append({"config": name, **one})
            of_it = [other for other in data["runs"] if other["config"] == name]  # it may be named in turns
            data["summary"] = [s for s in data["summary"] if s["config"] != name] + [summary(name, of_it)]
            write_json(out, data)
            say(f"{name} run {number}: { ({key: value for key, value in one.items() if key != 'drafters'}) }")
    return out


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """Parses the command line."""
    some = {"configs": "single:1x1,plain:1x2,warmup:1x2,safe:1x2", "target_devices": "", "drafter_devices": ""}
    limits = {"time_limit": 120.0, "budget_s": 1e9, "least_s": 45.0}
    return parsed(__doc__, given, **some, **limits, backend="inductor", runs=1, steps=30)


if __name__ == "__main__":
    main(child, run, arguments)

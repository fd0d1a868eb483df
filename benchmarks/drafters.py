"""The training layout that asks for safecompile: frozen targets feed drafters, each in a thread of its own.

T target threads run a frozen transformer and pass hidden states through a bounded queue to D drafter threads. Each
drafter, on its own device or sharing one, compiles flex_attention for itself, builds a new block mask from random
anchors at each step, and makes a forward, a backward and an AdamW step. Each run is a fresh process with empty caches.

Examples::

    python -m benchmarks.drafters --runs 5                                  # plain, warmup, safe on what is there
    python -m benchmarks.drafters --configs safe:1x1,safe:1x4,safe:1x6:separate*10 --budget-s 540
    python -m benchmarks.drafters --configs safe:5x3 --drafter-devices cuda:5,cuda:6,cuda:7

A configuration is ``mode:TxD[:objects][*runs]``. Modes: ``plain`` (torch.compile), ``safe`` (safe_compile), ``warmup``
(torch.compile, each drafter's first step made beforehand on the main thread), ``single`` (plain with one drafter).
Objects: ``shared``, one compiled object for all drafters, or ``separate``, one for each.
"""

from __future__ import annotations

import argparse
import re
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from ._common import environment, environment_line, result_path, rounded, run_child, say, write_json

MODES = ("plain", "safe", "warmup", "single")


def parsed(text: str, runs: int, objects: str) -> dict[str, Any]:
    """Returns the configuration that ``mode:TxD[:objects][*runs]`` names."""
    match = re.fullmatch(r"(\w+)(?::(\d+)x(\d+))?(?::(shared|separate))?(?:\*(\d+))?", text.strip())
    if match is None or match[1] not in MODES:
        msg = f"not a configuration: {text!r}; write mode:TxD[:shared|separate][*runs] with a mode of {MODES}"
        raise argparse.ArgumentTypeError(msg)
    targets, drafters = int(match[2] or 1), int(match[3] or 1)
    if match[1] == "single":
        drafters = 1
    return {
        "mode": match[1],
        "targets": targets,
        "drafters": drafters,
        "objects": match[4] or objects,
        "runs": int(match[5] or runs),
    }


def devices(count: int, given: str | None, first: int, kind: str) -> list[str]:
    """Returns ``count`` devices: the ``given`` ones in turn, else all there are, beginning with number ``first``."""
    if given:
        named = given.split(",")
    elif kind == "cuda":
        there = torch.cuda.device_count()
        named = [f"cuda:{(first + i) % there}" for i in range(there)]
    else:
        named = ["cpu"]
    return [named[i % len(named)] for i in range(count)]


def name_of(config: dict[str, Any]) -> str:
    """Returns the configuration as it is written."""
    return f"{config['mode']}:{config['targets']}x{config['drafters']}:{config['objects']}"


def summary(name: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns what the runs of one configuration come to."""
    finished = [one for one in runs if not one["hung"] and not one["errors"]]
    firsts = [one["last_first_step_s"] for one in finished]
    hot = [one["hot_tokens_per_s"] for one in finished if one["hot_tokens_per_s"]]
    return {
        "config": name,
        "runs": len(runs),
        "finished": len(finished),
        "hung": sum(one["hung"] for one in runs),
        "failed": sum(bool(one["errors"]) and not one["hung"] for one in runs),
        "last_first_step_s": {"median": rounded(median(firsts)), "worst": max(firsts)} if firsts else None,
        "warm_up_s": rounded(median(one["warm_up_s"] for one in finished))
        if firsts and finished[0]["warm_up_s"]
        else None,
        "graphs": sorted({one["counts"]["graphs"] for one in finished}),
        "hot_tokens_per_s": {"median": rounded(median(hot)), "worst": min(hot)} if hot else None,
    }


def other_tokens_per_s(runs: list[dict[str, Any]], steps: int) -> tuple[float | None, float | None]:
    """Returns medians over the runs that ended: of all drafters in their cold steps, and of one drafter hot."""
    cold, each = [], []
    for run in runs:
        drafters = [one for one in run.get("drafters", ()) if one["hot_tokens_per_s"] and one["cold_ends_s"]]
        if run["hot_tokens_per_s"] and drafters:
            tokens_a_step = drafters[0]["hot_tokens_per_s"] * drafters[0]["hot_s"] / steps
            cold_steps = sum(len(one["cold_ends_s"]) for one in drafters)
            cold.append(cold_steps * tokens_a_step / max(one["cold_ends_s"][-1] for one in drafters))
            each += [one["hot_tokens_per_s"] for one in drafters]
    return (median(cold), median(each)) if cold else (None, None)


def run(arguments: argparse.Namespace) -> Path:
    """Makes all runs, writing the results after each; returns their file."""
    env = environment()
    say(environment_line(env))
    kind = arguments.preset or ("cuda" if torch.cuda.is_available() else "cpu")
    out = Path(arguments.out) if arguments.out else result_path("drafters", env)
    data: dict[str, Any] = {"benchmark": "drafters", "environment": env, "settings": {}, "summary": [], "runs": []}
    began = time.monotonic()
    for text in arguments.configs.split(","):
        config = parsed(text, arguments.runs, arguments.compile_objects)
        targets = devices(config["targets"], arguments.target_devices, 0, kind)
        settings = {
            **config,
            "preset": kind,
            "backend": arguments.backend,
            "target_devices": targets,
            "drafter_devices": devices(config["drafters"], arguments.drafter_devices, len(targets), kind),
            "steps": arguments.steps,
            "cold_steps": arguments.cold_steps,
            "time_limit_s": arguments.time_limit,
            "watch_s": arguments.watch_s,
        }
        name = name_of(config)
        data["settings"][name] = settings
        done = [one for one in data["runs"] if one["config"] == name]  # a configuration may be named in turns
        for number in range(len(done), len(done) + config["runs"]):
            left = arguments.budget_s - (time.monotonic() - began)
            if left < arguments.least_s:
                data["stopped"] = f"{name} run {number + 1}: only {left:.0f} s left"
                say(data["stopped"])
                break
            settings["time_limit_s"] = min(arguments.time_limit, left - 10)
            one = run_child("benchmarks._drafters_child", settings, time_limit_s=settings["time_limit_s"] + 90)
            if one["hung"] and settings["time_limit_s"] < arguments.time_limit:
                data["stopped"] = f"{name} run {number + 1}: cut when the time was used up, not counted"
                say(data["stopped"])
                break
            slowest = max((other["last_first_step_s"] or 0.0 for other in done), default=0.0)
            keep_timeline = one["hung"] or (one["last_first_step_s"] or 0.0) > slowest
            done.append({"config": name, **one, **({} if keep_timeline else {"timeline": None, "events": None})})
            data["runs"].append(done[-1])
            data["summary"] = [s for s in data["summary"] if s["config"] != name] + [summary(name, done)]
            write_json(out, data)
            say(_progress(name, number, one))
    return out


def _progress(name: str, number: int, one: dict[str, Any]) -> str:
    if one["hung"]:
        return f"{name} run {number + 1}: HUNG, stuck: {', '.join(one.get('stuck', ['?']))}"
    if one["errors"]:
        return f"{name} run {number + 1}: FAILED: {one['errors'][0]} {one.get('stderr', '')[-1500:]}"
    firsts = ", ".join(f"{d['first_step_s']:.1f}" for d in one["drafters"])
    warm_up = f" after {one['warm_up_s']:.1f} s of warm-up" if one["warm_up_s"] else ""
    return (
        f"{name} run {number + 1}: first steps {firsts} s{warm_up}, {one['counts']['graphs']} graphs, "
        f"{one['hot_tokens_per_s']:,.0f} tokens/s hot"
    )


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--configs", help="comma-separated mode:TxD[:objects][*runs]; default: --mode, --targets and --drafters")
    add("--mode", choices=MODES, help="one mode; default: single, plain, warmup and safe")
    add("--targets", type=int, default=1)
    add("--drafters", type=int, default=2)
    add("--compile-objects", choices=("shared", "separate"), default="shared")
    add("--target-devices", help="comma-separated, used in turn; default: all, from the first")
    add("--drafter-devices", help="comma-separated, used in turn; default: all, from where the targets end")
    add("--preset", choices=("cuda", "cpu"), help="the sizes; default: what is there")
    add("--backend", default="inductor")
    add("--runs", type=int, default=1, help="runs of each configuration without a number of its own")
    add("--steps", type=int, default=30, help="hot steps")
    add("--cold-steps", type=int, default=3)
    add("--time-limit", type=float, default=120.0, help="seconds after which a run counts as hung; stacks are kept")
    add("--budget-s", type=float, default=1e9, help="no run begins when this is nearly used up")
    add("--least-s", type=float, default=45.0, help="seconds that must be left for a run to begin")
    add("--watch-s", type=float, default=0.1, help="seconds between two looks at the stacks, for the timeline")
    add("--out", help="the JSON file; default: in benchmarks/results")
    parsed_arguments = parser.parse_args(given)
    if parsed_arguments.configs is None:
        shape = f"{parsed_arguments.targets}x{parsed_arguments.drafters}"
        modes = (parsed_arguments.mode,) if parsed_arguments.mode else MODES[-1:] + MODES[:1] + MODES[2:3] + MODES[1:2]
        parsed_arguments.configs = ",".join(f"{mode}:{shape}" for mode in modes)
    return parsed_arguments


if __name__ == "__main__":
    say(f"results: {run(arguments()).name}")

"""Hot training steps with safecompile and with a sequential warm-up, in turns, in one process.

Processes of one way differ by more among themselves than the two ways do, so ``drafters`` cannot show one per cent.
Here D drafter threads train sets of models: warmed up on the main thread with plain torch, or with
``safe_compile``. They go in turns, block by block: safecompile's patches are in for its own blocks, and torch is
torch's own for the others. "warmup again" is a second set of models after the same warm-up: the noise of the method.

    python -m benchmarks.hot --drafters 2 --blocks 40 --steps 10 --runs 2
"""

from __future__ import annotations

import argparse
import faulthandler
import random
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from ._common import bootstrap, environment, environment_line, main, result_path, rounded, run_child, say, write_json

NAMES = ("warmup", "warmup again", "safe")


class Crew:
    """Drafter threads, one for each device named, that all make the same number of steps and then meet."""

    def __init__(self, trainers: dict[str, list[Callable[[], None]]], finish: list[Callable[[], None]]) -> None:
        self._trainers, self._finish = trainers, finish
        self._barrier = threading.Barrier(len(finish) + 1)
        self._name, self._steps = "", 0  # set between barriers only
        for index in range(len(finish)):
            threading.Thread(target=self._run, args=(index,), name=f"drafter-{index}", daemon=True).start()

    def _run(self, index: int) -> None:
        try:
            while True:
                self._barrier.wait()
                step = self._trainers[self._name][index]
                for _ in range(self._steps):
                    step()
                self._finish[index]()
                self._barrier.wait()
        except threading.BrokenBarrierError:
            pass
        except BaseException:
            self._barrier.abort()  # the main thread raises instead of waiting for ever
            raise

    def time(self, name: str, steps: int) -> float:
        """Returns the seconds in which every drafter of the set ``name`` makes ``steps`` steps."""
        self._name, self._steps = name, steps
        self._barrier.wait()
        began = time.perf_counter()
        self._barrier.wait()
        return time.perf_counter() - began


def child(settings: dict[str, Any]) -> dict[str, Any]:
    """Makes one run; returns the tokens per second of each set and their ratios.

    It makes fewer blocks if the time is nearly used up; one that hangs says where all its threads are.
    """
    began = time.perf_counter()
    faulthandler.dump_traceback_later(max(settings["time_limit_s"] - 5, 1))
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    from . import _drafters_model as models
    from ._host import counts
    from ._variants import Switch, compiler_of

    shape = models.SHAPES[settings["preset"]]
    dtype, names = getattr(torch, shape.dtype), settings["devices"]
    if settings["preset"] == "cpu":
        torch.set_num_threads(1)
    switch = Switch()

    def trainer(name: str, index: int, attention: Callable[..., Any]) -> Callable[[], None]:
        device = torch.device(name)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        model = models.Drafter(shape, attention, trains_attention=device.type != "cpu").to(device, dtype)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        generator = torch.Generator(device).manual_seed(index)
        contexts = [
            torch.randn(1, shape.sequence, shape.hidden, device=device, dtype=dtype, generator=generator)
            for _ in range(4)
        ]

        def step() -> None:
            if device.type == "cuda":
                torch.cuda.set_device(device)
            context = contexts[0]
            contexts.append(contexts.pop(0))
            anchors = models.random_anchors(shape, device, generator)
            out = model(context, models.mask_for(shape, anchors))
            loss = torch.nn.functional.mse_loss(out, models.wanted(shape, context, anchors))
            torch.autograd.backward(loss)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return step

    def finish(name: str) -> Callable[[], None]:
        return (lambda: torch.cuda.synchronize(name)) if name.startswith("cuda") else (lambda: None)

    trainers, compiled = {}, {}
    for way in ("safe", "warmup") if settings["safe_first"] else ("warmup", "safe"):
        switch.turn(way == "safe")
        attention = compiler_of(way)(flex_attention, backend=settings["backend"])
        trainers[way] = [trainer(name, index, attention) for index, name in enumerate(names)]
        before = counts()["graphs"]
        if way == "warmup":
            for step in trainers[way]:
                step()
        else:
            Crew({way: trainers[way]}, [finish(name) for name in names]).time(way, 1)
        compiled[way] = counts()["graphs"] - before
        if way == "warmup":
            trainers["warmup again"] = [trainer(name, index, attention) for index, name in enumerate(names)]
    crew, rng = Crew(trainers, [finish(name) for name in names]), random.Random(0)
    seconds: dict[str, list[float]] = {name: [] for name in NAMES}
    compiled_while_hot = dict.fromkeys(NAMES, 0)
    for block in range(settings["blocks"] + 1):
        if block > 1 and time.perf_counter() - began > 0.8 * settings["time_limit_s"]:
            break
        for name in rng.sample(NAMES, len(NAMES)):
            switch.turn(name != "safe")  # the patches move before every block, the same way round
            switch.turn(name == "safe")
            graphs = counts()["graphs"]
            crew.time(name, settings["warm_steps"])
            taken = crew.time(name, settings["steps"])
            if block:
                seconds[name].append(taken)
                compiled_while_hot[name] += counts()["graphs"] - graphs
    tokens = shape.anchors * shape.block * settings["steps"] * len(names)
    pairs = {name: [w / t for w, t in zip(seconds["warmup"], seconds[name], strict=True)] for name in NAMES}
    return {
        "tokens_per_s": {name: rounded(tokens / median(taken)) for name, taken in seconds.items()},
        "ratios": {name: [rounded(ratio, 5) for ratio in pairs[name]] for name in NAMES},
        "compiled": compiled,
        "compiled_while_hot": compiled_while_hot,
    }


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns for each set the tokens per second, and their ratio to the warm-up's over the blocks of all runs.

    ``safe`` is compared with either of the warm-up's two blocks of the same round: both ratios count. (Their mean would
    not do: of two blocks it is one with a pause in it more often than a single one is.)
    """
    ended = [one for one in runs if "ratios" in one]
    rows = []
    for name in NAMES if ended else ():
        by_run = [_ratios(one, name) for one in ended]
        rounds = [one for ratios in by_run for one in ratios]
        rows.append(
            {
                "name": name,
                "tokens_per_s": rounded(median(one["tokens_per_s"][name] for one in ended)),
                "ratio": rounded(_median_of_all(rounds), 5),
                "ratio_95": [rounded(bound, 5) for bound in bootstrap(rounds, _median_of_all)],
                "ratio_by_run": [rounded(_median_of_all(ratios), 5) for ratios in by_run],
                "blocks": len(rounds),
            }
        )
    return rows


def _ratios(one: dict[str, Any], name: str) -> list[tuple[float, ...]]:
    ratios = one["ratios"][name]
    if name != "safe":
        return [(ratio,) for ratio in ratios]
    return [(ratio, ratio / again) for ratio, again in zip(ratios, one["ratios"]["warmup again"], strict=True)]


def _median_of_all(rounds: Sequence[tuple[float, ...]]) -> float:
    return median(ratio for ratios in rounds for ratio in ratios)


def run(arguments: argparse.Namespace) -> Path:
    """Makes all runs, in every second of which ``safe_compile`` comes first; returns the file of the results."""
    env = environment()
    say(environment_line(env))
    out = Path(arguments.out) if arguments.out else result_path("hot", env)
    kind = "cuda" if env["gpus"] else "cpu"
    there = [f"cuda:{number}" for number in range(len(env["gpus"]))] or ["cpu"]
    named = arguments.devices.split(",") if arguments.devices else there
    settings = {
        "preset": kind,
        "devices": [named[number % len(named)] for number in range(arguments.drafters)],
        "backend": arguments.backend,
        "blocks": arguments.blocks,
        "steps": arguments.steps,
        "warm_steps": arguments.warm_steps,
        "time_limit_s": arguments.time_limit,
    }
    data: dict[str, Any] = {"benchmark": "hot", "environment": env, "settings": settings, "summary": [], "runs": []}
    for number in range(arguments.runs):
        safe_first = number % 2 == 1
        one = run_child("benchmarks.hot", {**settings, "safe_first": safe_first}, time_limit_s=arguments.time_limit)
        data["runs"].append({"safe_first": safe_first, **one})
        data["summary"] = summary(data["runs"])
        write_json(out, data)
        say(f"run {number + 1}: {one.get('tokens_per_s') or one['errors']} {one.get('stderr', '')[-1500:]}")
    for row in data["summary"]:
        say("{name}: {tokens_per_s:,.0f} tokens/s, x {ratio:.4f} [{0:.4f}, {1:.4f}]".format(*row["ratio_95"], **row))
    return out


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--drafters", type=int, default=2)
    add("--devices", help="comma-separated, used in turn; default: all")
    add("--backend", default="inductor")
    add("--runs", type=int, default=2, help="processes; in every second one safe_compile comes first")
    add("--blocks", type=int, default=40, help="blocks of each set in a run")
    add("--steps", type=int, default=10, help="timed steps in a block")
    add("--warm-steps", type=int, default=3, help="steps before them")
    add("--time-limit", type=float, default=600.0, help="seconds for one run")
    add("--out", help="the JSON file; default: in benchmarks/results")
    return parser.parse_args(given)


if __name__ == "__main__":
    main(child, run, arguments)

"""The three workloads of the demo. Run by it in a process of their own: ``python -m safecompile.tools._workloads``."""

from __future__ import annotations

import argparse
import faulthandler
import itertools
import json
import logging
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn.attention.flex_attention import create_block_mask

from .._engine.progress import line
from . import _models
from ._sizes import Sizes
from ._tally import Tally

WIDTH = 64
LENGTH = 128
SHAPE = (1, 2, LENGTH, WIDTH)
BATCH_SIZES = (2, 3, 5, 8)
#: Eager calls beside one step of the drafters: a bound, so that they end beside a step that hangs.
CALLS_BESIDE_A_STEP = 200

#: Seconds after which a compile is named in the demo's live line.
SHOWN_AFTER_S = 3.0


@dataclass(frozen=True)
class Setting:
    """What a workload gets: how to compile, where, with how many threads, how much of it, and where to count."""

    compile: Callable[..., Any]
    devices: list[torch.device]
    threads: int
    sizes: Sizes
    tally: Tally

    @property
    def half(self) -> int:
        """Half of the threads, at least one: for workloads with two kinds of them."""
        return max(1, self.threads // 2)


def server(setting: Setting) -> None:
    """A thread pool shares one compiled model, per device, for requests of mixed batch sizes; all start cold."""
    tally, models = setting.tally, []
    backend = tally.backend("inductor")
    for device in setting.devices:
        model = _models.feed_forward(WIDTH, 2).to(device)
        inputs = [torch.randn(size, WIDTH, device=device) for size in BATCH_SIZES]
        with torch.no_grad():
            pairs = [(x, model(x)) for x in inputs]
        models.append((setting.compile(model, backend=backend, dynamic=True), pairs))

    def request(number: int) -> None:
        compiled, pairs = models[number % len(models)]
        x, expected = pairs[number // len(models) % len(pairs)]
        with torch.no_grad():
            tally.step(lambda: _models.close(compiled(x), expected), compiled=True)

    with ThreadPoolExecutor(setting.threads) as pool:
        list(pool.map(request, range(setting.sizes.requests)))


def tracing(setting: Setting) -> None:
    """One thread symbolically traces again and again, while others make warm compiled and eager calls."""
    tally = setting.tally
    traced = _models.feed_forward(WIDTH, 20)
    right_code = torch.fx.symbolic_trace(traced).code
    compiled = setting.compile(_models.scaled_tanh, backend=tally.backend("eager"), dynamic=False)
    model = {device: _models.feed_forward(WIDTH, 2).to(device) for device in setting.devices}
    x = {device: torch.randn(4, WIDTH, device=device) for device in setting.devices}
    tanh = {device: _models.scaled_tanh(x[device]) for device in setting.devices}
    eager = {device: model[device](x[device]) for device in setting.devices}
    for device in setting.devices:
        compiled(x[device])
    end = time.monotonic() + setting.sizes.tracing_s

    def call_compiled(device: torch.device) -> None:
        while time.monotonic() < end:
            tally.step(lambda: _models.close(compiled(x[device]), tanh[device]), compiled=True)

    def call_eager(device: torch.device) -> None:
        while time.monotonic() < end:
            tally.step(lambda: _models.close(model[device](x[device]), eager[device]), compiled=False)

    def trace() -> None:
        while time.monotonic() < end:
            tally.step(lambda: torch.fx.symbolic_trace(traced).code == right_code, compiled=False)

    _run_threads(
        [trace]
        + [partial(call_compiled, d) for d in _take(setting.devices, setting.half)]
        + [partial(call_eager, d) for d in _take(setting.devices, setting.half)]
    )


def drafters(setting: Setting) -> None:
    """Threads that compile flex attention and make a new block mask for each step, beside eager forwards."""
    tally, backend = setting.tally, setting.tally.backend("inductor")
    done = threading.Event()
    steps: list[None] = []

    def draft(device: torch.device) -> None:
        block = _models.Attention(WIDTH).to(device)
        compiled = setting.compile(block, backend=backend, dynamic=False)
        for _ in range(setting.sizes.steps):
            tally.step(lambda: _draft_step(block, compiled, device), compiled=True)
            steps.append(None)

    def target(device: torch.device) -> None:
        block = _models.Attention(WIDTH).to(device).eval()
        x = torch.randn(SHAPE, device=device)
        with torch.no_grad():
            expected, calls = block(x), 0
            # As requests come in; without the pause the compile would hardly get the interpreter.
            while not done.wait(0.05 if calls < CALLS_BESIDE_A_STEP * (len(steps) + 1) else 0.5):
                if calls < CALLS_BESIDE_A_STEP * (len(steps) + 1):
                    tally.step(lambda: _models.close(block(x), expected), compiled=False)
                    calls += 1

    count = max(setting.threads // 4, len(setting.devices))
    targets = [threading.Thread(target=target, args=(d,), daemon=True) for d in _take(setting.devices, count)]
    for thread in targets:
        thread.start()
    _run_threads([partial(draft, d) for d in _take(setting.devices, count)])
    done.set()
    for thread in targets:
        thread.join()


def warm_up(setting: Setting) -> None:
    """Compiles two small functions: with the first Inductor checks the machine, the second tells how fast it is."""
    for function in (lambda x: x + 1, lambda x: torch.tanh(x) * 2):
        begin = time.monotonic()
        compiled = setting.compile(function, backend="inductor")
        for device in setting.devices:
            compiled(torch.ones(8, device=device))
        setting.tally.measured_s = (time.monotonic() - begin) / len(setting.devices)


def _draft_step(block: Any, compiled: Any, device: torch.device) -> bool:
    # Compiled flex_attention has a backward on CUDA; on the CPU most releases of torch have none.
    backward = device.type == "cuda"
    mask_mod = _models.random_anchor_mask(LENGTH, device)
    mask = create_block_mask(mask_mod, None, None, LENGTH, LENGTH, device=str(device))
    positions = torch.arange(LENGTH, device=device)
    dense = mask_mod(positions, positions, positions[:, None], positions[None, :])
    x = torch.randn(SHAPE, device=device, requires_grad=backward)
    with torch.set_grad_enabled(backward):
        y, expected = compiled(x, mask), block(x, dense_mask=dense)
        right = _models.close(y, expected)
        if backward:
            (got,), (wanted,) = (torch.autograd.grad(out.sum(), x) for out in (y, expected))
            right = right and _models.close(got, wanted)
    return right


def _take(devices: list[torch.device], count: int) -> Iterator[torch.device]:
    return itertools.islice(itertools.cycle(devices), count)


def _run_threads(works: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


WORKLOADS: dict[str, Callable[[Setting], None]] = {
    "warm-up": warm_up,
    "server": server,
    "tracing": tracing,
    "drafters": drafters,
}


@contextmanager
def _progress(tally: Tally) -> Iterator[None]:
    """Prints the counts as one line of JSON, now and then and at the end."""
    begin, done = time.monotonic(), threading.Event()

    def say(state: str) -> None:
        compiling = "" if state == "done" else line(SHOWN_AFTER_S)  # of the side with safecompile
        times = {"seconds": time.monotonic() - begin, "cpu_s": time.process_time()}
        print(json.dumps({"state": state, **times, "compiling": compiling, **tally.snapshot()}), flush=True)

    def report() -> None:
        say("running")
        while not done.wait(0.5):
            say("running")

    reporter = threading.Thread(target=report, name="progress", daemon=True)
    reporter.start()
    yield
    done.set()
    reporter.join()
    say("done")


def main() -> None:
    """Runs one workload on one side and prints its counts."""
    parser = argparse.ArgumentParser(description="Run one workload of the demo by itself.")
    parser.add_argument("side", choices=["plain", "safe", "no wait"])
    parser.add_argument("workload", choices=list(WORKLOADS))
    parser.add_argument("--devices", nargs="+", default=["cpu"])
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--sizes", type=float, nargs=3, default=Sizes(), metavar=Sizes._fields)
    options = parser.parse_args()
    if hasattr(faulthandler, "register") and hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1)  # the demo asks a child that has stopped for its stacks
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    compile_here: Callable[..., Any] = torch.compile
    if options.side != "plain":
        from safecompile import safe_compile

        compile_here = safe_compile if options.side == "safe" else partial(safe_compile, max_wait_s=0.0)
    tally = Tally()
    requests, steps, tracing_s = options.sizes
    sizes = Sizes(int(requests), int(steps), tracing_s)
    setting = Setting(compile_here, [torch.device(d) for d in options.devices], options.threads, sizes, tally)
    with _progress(tally):
        WORKLOADS[options.workload](setting)
    # Not by the interpreter's long way: what a torch release does at exit is not the demo's matter.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()

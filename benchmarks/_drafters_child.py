"""One run of the training layout, in a process of its own: ``python -m benchmarks._drafters_child '<settings>'``."""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import queue
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

from . import _drafters_model as models
from ._common import anonymous, rounded
from ._host import counts, phases
from ._watch import Watch


class _Warnings(logging.Handler):
    """Keeps the first lines of what torch and safecompile warn of: a fallback to eager shows here."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if len(self.lines) < 10:
            self.lines.append(anonymous(record.getMessage().strip())[:300])


class Layout:
    """The threads, the queue between them, and what they measured.

    Each drafter writes its own entry of ``drafters`` alone; ``errors`` is only appended to.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings, self.shape = settings, models.SHAPES[settings["preset"]]
        self.dtype = getattr(torch, self.shape.dtype)
        self.drafters: list[dict[str, Any]] = []
        self.errors: list[str] = []
        self.feed: queue.Queue[Tensor] = queue.Queue(maxsize=2 * len(settings["drafter_devices"]))
        self.ready = threading.Barrier(len(settings["drafter_devices"]) + 1)
        self.hot = threading.Barrier(len(settings["drafter_devices"]))
        self.go, self.stop = threading.Event(), threading.Event()
        self.began = 0.0
        self.events: list[dict[str, Any]] = []
        self.shared = self._compiled() if settings["objects"] == "shared" else None

    def _compiled(self) -> Callable[..., Any]:
        if self.settings["mode"] == "safe":
            from safecompile import safe_compile
            from safecompile._common import events

            if not self.events and not events.listeners:
                events.subscribe(self._note)
            return safe_compile(flex_attention, backend=self.settings["backend"])
        return torch.compile(flex_attention, backend=self.settings["backend"])

    def _note(self, miss: Any) -> None:
        ended = time.perf_counter() - self.began
        kept = ("function", "device", "thread", "role", "outcome")
        event = {name: getattr(miss, name) for name in kept}
        times = {"waited_s": miss.waited_s, "compiled_s": miss.compiled_s, "ended_s": ended}
        self.events.append({**event, **{name: round(value, 3) for name, value in times.items()}})

    def target(self, index: int, device: torch.device) -> None:
        """Runs the frozen model and passes on its hidden states until the drafters are done."""
        _use(device)
        model = models.Target(self.shape).to(device, self.dtype)
        generator = torch.Generator(device).manual_seed(index)
        while not self.stop.is_set():
            x = torch.randn(1, self.shape.sequence, self.shape.hidden, device=device, generator=generator)
            with torch.no_grad():
                hidden = model(x.to(self.dtype))
            while not self.stop.is_set():
                try:
                    self.feed.put(hidden, timeout=0.1)
                    break
                except queue.Full:
                    continue

    def drafter(self, index: int, device: torch.device) -> None:
        """Trains one drafter: cold steps, a meeting of all drafters, hot steps."""
        _use(device)
        step = self.trainer(index, device)
        mine = self.drafters[index]
        self.ready.wait()
        self.go.wait()
        for _ in range(self.settings["cold_steps"]):
            step()
            mine["cold_ends_s"].append(rounded(time.perf_counter() - self.began))
        self.hot.wait()
        began = time.perf_counter()
        for _ in range(self.settings["steps"]):
            loss = step(wait=False)
        _finish(device)
        mine["hot_s"] = time.perf_counter() - began
        mine["loss"] = float(loss)

    def trainer(self, index: int, device: torch.device) -> Callable[..., Tensor]:
        """Returns the function that makes one step of drafter ``index``."""
        attention = self.shared or self._compiled()
        model = models.Drafter(self.shape, attention, trains_attention=device.type != "cpu").to(device, self.dtype)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        generator = torch.Generator(device).manual_seed(1000 + index)

        def step(hidden: Tensor | None = None, *, wait: bool = True) -> Tensor:
            if hidden is None:
                hidden = self.feed.get(timeout=self.settings["time_limit_s"])
            context = hidden.to(device)
            anchors = models.random_anchors(self.shape, device, generator)
            mask = models.mask_for(self.shape, anchors)
            loss = torch.nn.functional.mse_loss(model(context, mask), models.wanted(self.shape, context, anchors))
            torch.autograd.backward(loss)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if wait:
                _finish(device)
            return loss.detach()

        return step

    def warm_up(self) -> None:
        """Makes one step for each drafter on this thread, one after the other."""
        for index, name in enumerate(self.settings["drafter_devices"]):
            device = torch.device(name)
            _use(device)
            hidden = torch.randn(1, self.shape.sequence, self.shape.hidden, device=device, dtype=self.dtype)
            self.trainer(index, device)(hidden)

    def guarded(self, role: Callable[[int, torch.device], None], index: int, device: torch.device) -> None:
        """Runs a role; an error in it ends the run instead of leaving the others waiting."""
        try:
            role(index, device)
        except threading.BrokenBarrierError:
            pass
        except BaseException as error:  # noqa: BLE001 - reported, and ends the run
            where = traceback.extract_tb(error.__traceback__)[-1]
            first = (str(error).strip().splitlines() or [""])[0][:300]
            self.errors.append(
                anonymous(f"{role.__name__} {index}: {type(error).__name__}: {first} ({where.filename}:{where.lineno})")
            )
            self.hot.abort()
            self.ready.abort()


def _use(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_device(device)


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def run(settings: dict[str, Any]) -> dict[str, Any]:
    """Makes one run; returns what it measured, hung or not."""
    warned = _Warnings()
    for name in ("torch", "safecompile"):
        logging.getLogger(name).addHandler(warned)
    names = [*settings["target_devices"], *settings["drafter_devices"]]
    for name in dict.fromkeys(names):
        torch.ones(64, 64, device=name) @ torch.ones(64, 64, device=name)  # the device's own start is not measured
        _finish(torch.device(name))
    layout = Layout(settings)
    targets, drafters = len(settings["target_devices"]), len(settings["drafter_devices"])
    layout.drafters = [{"device": settings["drafter_devices"][i], "cold_ends_s": []} for i in range(drafters)]
    roles = [(layout.target, i) for i in range(targets)] + [(layout.drafter, i) for i in range(drafters)]
    threads = []
    for (role, index), name in zip(roles, names, strict=True):
        arguments = (role, index, torch.device(name))
        thread = threading.Thread(target=layout.guarded, args=arguments, name=f"{role.__name__}-{index}", daemon=True)
        thread.start()
        threads.append(thread)
    deadline = time.perf_counter() + settings["time_limit_s"]
    try:
        layout.ready.wait(settings["time_limit_s"])
    except threading.BrokenBarrierError:
        layout.errors.append("the threads did not get ready")
    watch = Watch(("drafter", "MainThread"), every_s=settings["watch_s"])
    layout.began = time.perf_counter()
    warm_up_s = None
    if settings["mode"] == "warmup":
        layout.warm_up()
        warm_up_s = rounded(time.perf_counter() - layout.began)
    layout.go.set()
    for thread in threads[targets:]:
        thread.join(max(0.0, deadline - time.perf_counter()))
    watch.stop()
    stuck = [thread.name for thread in threads[targets:] if thread.is_alive()]
    stacks = _all_stacks() if stuck else None
    layout.stop.set()
    return _answer(layout, warm_up_s, warned.lines, stuck, stacks, watch)


def _answer(
    layout: Layout, warm_up_s: float | None, warned: list[str], stuck: list[str], stacks: str | None, watch: Watch
) -> dict[str, Any]:
    settings, tokens = layout.settings, layout.shape.anchors * layout.shape.block * layout.settings["steps"]
    for one in layout.drafters:
        one["first_step_s"] = one["cold_ends_s"][0] if one["cold_ends_s"] else None
        one["hot_tokens_per_s"] = rounded(tokens / one["hot_s"]) if one.get("hot_s") else None
    firsts = [one["first_step_s"] for one in layout.drafters]
    slowest = max((one.get("hot_s") or 0.0 for one in layout.drafters), default=0.0)
    complete = not stuck and not layout.errors
    devices = {d for d in settings["drafter_devices"] if d.startswith("cuda")}
    return {
        "hung": bool(stuck),
        "stuck": stuck,
        "errors": layout.errors,
        "warm_up_s": warm_up_s,
        "last_first_step_s": max(firsts) if None not in firsts else None,
        "hot_tokens_per_s": rounded(tokens * len(firsts) / slowest) if complete and slowest else None,
        "counts": counts(),
        "drafters": layout.drafters,
        "peak_memory_gib": {d: round(torch.cuda.max_memory_allocated(d) / 2**30, 2) for d in sorted(devices)},
        "events": layout.events[:60],
        "phases": phases()[:20],
        "timeline": {name: spans[:60] for name, spans in sorted(watch.spans.items())},
        "warnings": warned,
        "stacks": stacks,
    }


def _all_stacks() -> str:
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        text = file.read()
    sys.stderr.write(text)
    return anonymous(text)[:20000]


if __name__ == "__main__":
    print(json.dumps(run(json.loads(sys.argv[1]))), flush=True)
    os._exit(0)  # threads that hang, and targets in the middle of a forward, are not waited for

"""What the engine sees of torch, made of plain Python, for the deterministic scheduler.

The engine (``miss``) is the real one. Its accessors in ``_torch`` are replaced, and :class:`FakeTorch` plays C's
part: look into the list, call back, publish, run. There are points between these steps.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from types import CodeType, SimpleNamespace
from typing import Any

import pytest

from safecompile._common import waits
from safecompile._engine import flights, frames, limits, miss, retry, returned
from safecompile._isolation import open_compiles
from safecompile._torch import cache, dynamo, eager, frame_rules, threads

from .scheduler import Scheduler


def waits_that_end(timeout: float | None) -> bool:
    """Tells whether this is not one of the looks around of a wait without a limit."""
    return timeout is not None and 0 < timeout < waits.TICK_S


class Lock:
    """Stands in for a reentrant lock."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler, self.owner, self.count = scheduler, 0, 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = threading.get_ident()
        if self.owner and self.owner != me and not (blocking and timeout):
            return False
        ends = waits_that_end(timeout)
        if self.owner != me and not self.scheduler.block(lambda: not self.owner, timeout, "the lock", may_end=ends):
            return False
        self.owner, self.count = me, self.count + 1
        return True

    def release(self) -> None:
        if self.owner != threading.get_ident():
            raise RuntimeError("cannot release un-acquired lock")
        self.count -= 1
        self.owner = self.owner if self.count else 0

    def _is_owned(self) -> bool:
        self.scheduler.trace_again()
        return self.owner == threading.get_ident()

    def __repr__(self) -> str:
        return f"<scheduler lock owner={self.owner} count={self.count}>"


class Event:
    """Stands in for :class:`threading.Event`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler, self.flag = scheduler, False

    def set(self) -> None:
        self.flag = True

    def is_set(self) -> bool:
        return self.flag

    def wait(self, timeout: float | None = None) -> bool:
        if self.flag or timeout == 0:
            return self.flag
        return self.scheduler.block(lambda: self.flag, timeout, "an event", may_end=waits_that_end(timeout))


class Barrier:
    """Threads meet here, inside compiled code."""

    def __init__(self, scheduler: Scheduler, parties: int) -> None:
        self.scheduler, self.parties, self.arrived = scheduler, parties, 0

    def wait(self) -> None:
        self.arrived += 1
        self.scheduler.block(lambda: self.arrived >= self.parties, None, "a barrier in compiled code")


class Guards:
    """Stands in for a guard manager: one integer decides."""

    def __init__(self, shape: int) -> None:
        self.shape = shape
        self.cache_entry: Any = None  # set by C when it publishes

    def check(self, f_locals: dict[str, Any]) -> bool:
        return bool(f_locals["shape"] == self.shape)


class Guarded:
    """Stands in for GuardedCode and, after publication, for a cache entry."""

    def __init__(self, code: Any, guard_manager: Guards, backend: Any) -> None:
        self.code, self.guard_manager, self.backend = code, guard_manager, backend


class FakeTorch:
    """The part of torch around the engine.

    Args:
        outcomes: by (function, shape): what each compile in turn does, an exception or "skip"; else it compiles.
    """

    def __init__(self, scheduler: Scheduler, patch: pytest.MonkeyPatch, outcomes: Any = None) -> None:
        self.scheduler, self.outcomes = scheduler, outcomes or {}
        self.lock = Lock(scheduler)
        self.lists: dict[CodeType, list[Guarded]] = {}
        self.multithreading: dict[int, bool] = {}
        self.backward: set[int] = set()
        self.compiles: list[tuple[str, int]] = []
        self.uncompiled: list[tuple[str, int]] = []
        self.side_effects = 0
        self.skipped: set[str] = set()
        self.tracing: list[int] = []
        self.checks_the_run = True
        self.in_compile: Callable[[str, int], None] = lambda name, shape: None
        self.in_run: Callable[[str, int], None] = lambda name, shape: None
        self.codes: dict[str, CodeType] = {}
        self._patch(patch)

    def _patch(self, patch: pytest.MonkeyPatch) -> None:
        get_ident = threading.get_ident
        for name, stand_in in {
            "compile_lock": lambda: self.lock,
            "is_skipped": lambda frame: False,
            "in_backward": lambda: get_ident() in self.backward,
            "autograd_multithreading": lambda: self.multithreading.get(get_ident(), True),
            "set_autograd_multithreading": lambda on: self.multithreading.__setitem__(get_ident(), on),
            "cache_entries": lambda code: list(self.lists.get(code, [])),
            "backend_of": lambda callback: callback,
            "region": lambda: -1,
            "is_module_call": lambda code: False,
            "is_frame_around_a_call": lambda frame: frame.f_code is FakeTorch._evaluate.__code__,
            "compile_events": dict,
            "note_uncompiled": lambda frame: None,
            "uncompiled_this_once": lambda: SimpleNamespace(guarded_code=None, apply_to_code=False),
            "graphs_compiled": lambda: len(self.compiles),
            "served_again": lambda entry: SimpleNamespace(
                guarded_code=Guarded(entry.code, entry.guard_manager, entry.backend), apply_to_code=False
            ),
            "skipped_again": lambda callback, result, frame: result,
        }.items():
            (module,) = [one for one in (dynamo, cache, frame_rules, eager) if name in vars(one)]
            patch.setattr(module, name, stand_in)
        patch.setattr(retry, "wrapper", FakeTorch.call.__code__)
        patch.setattr(threads, "others_are_alive", lambda: True)
        patch.setattr(threads, "have_worked", lambda since: True)
        patch.setattr(open_compiles, "begin", lambda: None)  # torch's callback, which ends it, is not here
        patch.setattr(frames, "region_of_the_call", lambda: -1)
        stand_in_threading = SimpleNamespace(get_ident=get_ident, Event=lambda: Event(self.scheduler))
        patch.setattr(limits, "why_it_waits", lambda callback, frame: None)
        for module in (miss, flights, limits, waits):
            patch.setattr(module, "monotonic", self.scheduler.monotonic)
        patch.setattr(flights, "threading", stand_in_threading)
        patch.setattr(returned, "sleep", lambda s: self.scheduler.block(lambda: False, s, "a sleep"))
        patch.setattr(frames, "device_of", lambda frame: frame.f_locals["device"])

    def code_of(self, name: str) -> CodeType:
        return self.codes.setdefault(name, (lambda: None).__code__.replace(co_name=name))

    def call(self, name: str, shape: int, device: str = "cpu", *, has_run: bool = False) -> Any:
        """Calls a compiled function, as torch's wrapper does after _retry has changed it."""
        while True:
            try:
                return (self._after_a_graph_break if has_run else self._evaluate)(name, shape, device)
            except miss.Retry:
                assert not has_run, "a frame that had run was to be run again"
                __safecompile_retried__ = True  # noqa: F841 - the engine looks for it

    def resume(self, name: str, shape: int, device: str = "cpu") -> Any:
        """Calls a compiled function from a frame in which something of the user's has run."""
        return self.call(name, shape, device, has_run=True)

    def _after_a_graph_break(self, name: str, shape: int, device: str) -> Any:
        self.side_effects += 1
        return self._evaluate(name, shape, device)

    def in_autograd(self, name: str, shape: int, device: str = "cpu") -> Any:
        """Calls a compiled function from a backward pass."""
        self.backward.add(threading.get_ident())
        try:
            return self._after_a_graph_break(name, shape, device)
        finally:
            self.backward.discard(threading.get_ident())

    def _evaluate(self, name: str, shape: int, device: str) -> Any:
        if name in self.skipped:
            return "eager", name, shape
        code = self.code_of(name)
        entries = self.lists.setdefault(code, [])
        frame = SimpleNamespace(f_code=code, f_locals={"shape": shape, "device": device}, f_globals={})
        entry = next((one for one in entries if one.guard_manager.check(frame.f_locals)), None)
        if entry is None:
            self.scheduler.point("look-up has missed")
            head = entries[0] if entries else None
            result = miss.on_miss(self._compile, "backend", frame, head, {})
            self.scheduler.trace_again()
            self.scheduler.point("callback has returned")
            if result.guarded_code is None and not result.apply_to_code:
                self.uncompiled.append((name, shape))
                return "compiled", name, shape
            if result.guarded_code is None:
                self.skipped.add(name)
                return "eager", name, shape
            entry = Guarded(result.guarded_code.code, result.guarded_code.guard_manager, "backend")
            entry.guard_manager.cache_entry = entry
            entries.insert(0, entry)
            del result
        if self.checks_the_run and not self.tracing:
            assert self.lock.owner != threading.get_ident(), "the lock is held while compiled code runs"
        self.scheduler.point("compiled code runs")
        self.in_run(name, shape)
        return entry.code

    def _compile(self, callback: Any, frame: Any, cache_entry: Any, frame_state: Any) -> Any:
        assert self.lock.owner == threading.get_ident(), "a compile without the lock"
        assert not self.multithreading.get(threading.get_ident(), True), "a compile with autograd's worker threads"
        assert set(self.tracing) <= {threading.get_ident()}, "two compiles at once"
        name, shape = frame.f_code.co_name, frame.f_locals["shape"]
        self.tracing.append(threading.get_ident())
        try:
            self.compiles.append((name, shape))
            self.scheduler.point("in the trace")
            self.in_compile(name, shape)
            planned = self.outcomes.get((name, shape), [])
            outcome = planned.pop(0) if planned else None
            if isinstance(outcome, BaseException):
                raise outcome
            if outcome == "skip":
                return SimpleNamespace(guarded_code=None, apply_to_code=True)
            guarded = Guarded(("compiled", name, shape), Guards(shape), callback)
            return SimpleNamespace(guarded_code=guarded, apply_to_code=False)
        finally:
            self.tracing.pop()

    def traces_left(self) -> list[str]:
        """Returns what a run has left behind and should not have."""
        left = [f"autograd mode of thread {ident}" for ident, on in self.multithreading.items() if not on]
        left += ["the lock"] if self.lock.owner else []
        left += [f"flight {key}" for key in miss.flights]
        if any(ref() is not None for ref in returned.notes.values()):
            gc.collect()  # an exception and the frames that it passed through hold each other
        left += [f"result {ref()}" for ref in returned.notes.values() if ref() is not None]
        return left

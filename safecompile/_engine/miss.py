"""The engine: what happens when a compiled function is called and no compiled version fits (a miss).

torch calls ``CatchErrorsWrapper.__call__`` for each miss: a first call, a failed guard, a resumed frame, a nested
function. :func:`on_miss` stands in its place. It lets one thread compile (the leader) while the others that want
the same function on the same device wait for the result (followers), then look again, and use it if it fits. A
follower whose time is over (:mod:`.limits`) runs uncompiled, this once.

The rules, which keep it free of deadlocks:

1. There is one lock: torch's own reentrant compile lock. It is held for one trace, its backend and its guards,
   never while compiled code runs.
2. A thread that holds it waits for no other thread that may wait for it: whoever waits, waits for somebody who
   goes on.
3. A thread inside autograd's backward waits for the lock alone, never for a leader, and a tracing thread keeps
   autograd on itself: a trace never waits for a backward.
4. Nothing is remembered of a flight once its result can be found. A flight that is lost costs a look, not a
   compile: every leader looks again once it has the lock.

How a follower uses the result: at the top of a call, where nothing of the user's has run yet, it raises
:class:`Retry`, and torch's wrapper (see :mod:`.retry`) calls again, which now hits. Anywhere else it returns the same
compiled code once more: an entry more, which :mod:`.cache_entries` sees to.
"""

from __future__ import annotations

import copy
import sys
from time import monotonic
from types import CodeType
from typing import Any

from .._common import activity, events, waits
from .._isolation import default_device, kernel_gates, open_compiles, settings, slots
from .._torch import cache, dynamo, eager, frame_rules
from . import attempts, cache_entries, frames, limits, resets, retry, returned, warming
from .flights import Flight, Retry, flights, wait_for_lock, warn_of_wait
from .lookup import find


def on_miss(original: Any, callback: Any, frame: Any, cache_entry: Any, frame_state: Any) -> Any:
    """Handles one miss in the place of ``original``, torch's ``CatchErrorsWrapper.__call__``.

    Returns:
        What torch's callback returns.

    Raises:
        Retry: somebody else has compiled what this call needs, and it can be called again.

    Thread safety: called by torch in the thread that missed, without any lock.
    """
    lock = dynamo.compile_lock()
    if frame_rules.is_skipped(frame):
        return original(callback, frame, cache_entry, frame_state)
    if frame_rules.is_disabled_in(sys._getframe(2)):
        return cache.left_alone_this_once()
    default_device.look()
    region = frames.region_of_the_call()
    if region != dynamo.region():
        dynamo.set_region(region)
        wrapper = frames.wrapper_above(sys._getframe(1))
        if wrapper is not None and retry.RETRIED not in wrapper.f_locals:
            raise Retry
    call = _Call(original, callback, frame, cache_entry, frame_state, region)
    if lock._is_owned():
        return call.inside_a_compile()
    call.handle(lock)
    if call.outcome != "uncompiled" and region != dynamo.region():
        dynamo.set_region(region)  # torch publishes the entry in the region that is set now
    return call.result if call.entry is None else call.reuse()


class _Call:
    """One miss that is being handled: what torch asked, what it has cost so far, and what came of it."""

    def __init__(
        self, original: Any, callback: Any, frame: Any, cache_entry: Any, frame_state: Any, region: int
    ) -> None:
        self.original, self.callback, self.frame = original, callback, frame
        self.cache_entry, self.frame_state = cache_entry, frame_state
        self.code: CodeType = frame.f_code
        self.region = region
        self.device = frames.device_of(frame)
        self.reverts: list[Any] = []
        self.entry: Any = None
        self.result: Any = None
        self.limit = limits.Limit(callback, frame)
        self.wrapped: str | None = None  # a name that FX had wrapped for another thread meanwhile
        self.role, self.outcome, self.time_is_over = "follower", "failed", False
        self.waited_s = self.compiled_s = 0.0

    def handle(self, lock: Any) -> None:
        """Finds what is wanted, waits for it or makes it; leaves nothing behind, whatever happens."""
        backward, multithreading = dynamo.in_backward(), dynamo.autograd_multithreading()
        flight: Flight | None = None
        try:
            try:
                while True:
                    self.entry = find(self.callback, self.frame, self.region)
                    if self.entry is not None:
                        break
                    if warming.some_are_closed:
                        warming.check(self.frame, self.device)
                    other = None if backward else flights.get((id(self.code), self.device))
                    if other is None:
                        flight = Flight((id(self.code), self.device), self.code, sys._getframe())
                        other = flight if backward else flights.setdefault(flight.key, flight)
                    # Its own flight: a signal handler or a finalizer calls what this thread is about to compile.
                    if other.is_this_threads():
                        self.compile(lock, flight)
                        break
                    if not self.wait_for(other) or other.skip is not None:
                        self.run_uncompiled(other.skip)
                        break
            finally:
                self.settle(lock, flight, multithreading)
        finally:
            self.settle(lock, flight, multithreading)  # an asynchronous exception may have cut the first one short
            self.tell()

    def tell(self) -> None:
        """Tells the listeners, and the log, what came of this miss. This thread holds no lock."""
        events.emit(self.code, self.device, self.role, self.waited_s, self.compiled_s, self.outcome)
        if self.wrapped is not None:
            events.warn_of_wrapping(self.code, self.wrapped, self.device)
        self.limit.tell(self.code, self.device, self.waited_s, is_over=self.time_is_over)

    def run_uncompiled(self, skip: Any = None) -> None:
        """Has torch run this call uncompiled: with all that it calls, this once, or as a leader's ``skip`` says."""
        self.role, self.outcome = "follower", "uncompiled" if skip is None else "skipped"
        if skip is not None:
            self.result = cache.skipped_again(self.callback, skip, self.frame)
            return
        self.time_is_over = True
        eager.note_uncompiled(self.frame)
        self.result = cache.uncompiled_this_once()

    def wait_for(self, flight: Flight) -> bool:
        """Waits until ``flight`` is over; tells whether it is, or this call's time. This thread holds no lock."""
        limit_s = self.limit.left_s()
        if limit_s == 0.0:
            return flight.is_over()
        assert not dynamo.compile_lock()._is_owned(), "a thread that holds the compile lock must not wait"
        kernel_gates.assert_none_held("the result of another thread's compile")
        began, warned = monotonic(), False

        def look() -> None:
            nonlocal warned
            flight.is_over()
            warned = warned or warn_of_wait(self.code, self.device, began, flight.leader)

        what = activity.Waiting("result", events.place(self.code), self.device, began, flight.leader)
        is_over = waits.wait(flight.ended, look, what, limit_s)
        self.waited_s += monotonic() - began
        what.is_over()
        return is_over

    def inside_a_compile(self) -> Any:
        """Handles a miss in the middle of this thread's own compile: a backend that calls compiled code."""
        self.entry, self.role = find(self.callback, self.frame, self.region), "leader"
        if self.entry is not None:
            return self.reuse()
        # torch 2.7: the inner compile empties the list of events that the outer one looks into afterwards, which
        # then raises "No toplevel event active". Drop when min torch > 2.7.
        kept = {name: copy.copy(value) for name, value in dynamo.compile_events().items()}
        multithreading = dynamo.autograd_multithreading()  # on, where the lock is held and nothing compiles
        try:
            self._trace(None)
        finally:
            dynamo.set_autograd_multithreading(multithreading)
            self._revert_settings()
            dynamo.compile_events().update(kept)
        return self.result

    def compile(self, lock: Any, flight: Flight | None) -> None:
        """Compiles under the lock, unless what is needed has come into being while it waited for the lock."""
        self.role = "leader"
        kernel_gates.assert_none_held("the compile lock")
        began = monotonic()
        try:
            has_it = lock.acquire(blocking=False)
            if not has_it and (limit_s := self.limit.left_s()) != 0.0:
                has_it = wait_for_lock(lock, self.code, self.device, limit_s)
            self.waited_s += monotonic() - began
            if not has_it:
                self.run_uncompiled()
                return
            self.entry = find(self.callback, self.frame, self.region)
            if self.entry is None:
                self._trace(flight)
        finally:
            if lock._is_owned():
                lock.release()

    def _trace(self, flight: Flight | None) -> None:
        began = monotonic()
        # torch 2.7-2.12 counts the entries from the head that it is handed, which is stale after a wait.
        entries = cache.cache_entries(self.code) if self.waited_s > 0.0 else []
        head = entries[0] if entries else self.cache_entry
        self.outcome = "failed"
        if resets.cold:
            resets.begin_cold(self.code, self.frame_state)
        open_compiles.begin()
        dynamo.set_autograd_multithreading(False)
        with activity.Compiling(self.code, self.device) as this:
            self.reverts = settings.apply_for(self.callback, frames.dynamic_of_the_call)
            self.result = attempts.compiled(self.original, self.callback, self.frame, head, self.frame_state)
            self._revert_settings()
            self.compiled_s = monotonic() - began
            self._note_result(flight)
            this.outcome = self.outcome

    def _note_result(self, flight: Flight | None) -> None:
        guarded = self.result.guarded_code
        if guarded is not None:
            self.outcome = "compiled"
            self.wrapped = slots.wrapped_for_another_thread(self.code, self.frame.f_globals)
            cache_entries.made_for(guarded.guard_manager, cache.backend_of(self.callback), self.region, self.device)
            returned.note(guarded, self.code)
        elif self.result.apply_to_code:
            self.outcome = "skipped"
            if flight is not None:
                flight.skip = self.result
        else:
            self.outcome = "uncompiled"

    def _revert_settings(self) -> None:
        while self.reverts:
            self.reverts.pop()()

    def settle(self, lock: Any, flight: Flight | None, multithreading: bool) -> None:
        """Leaves everything as it was, whatever happened; a second time does nothing."""
        if lock._is_owned():
            lock.release()
        if flight is not None:
            flight.close()
        dynamo.set_autograd_multithreading(multithreading)
        self._revert_settings()
        if self.entry is not None:
            self.role, self.outcome = "follower", "reused"

    def reuse(self) -> Any:
        """Uses what another thread has compiled."""
        wrapper = frames.wrapper_above(sys._getframe(1))
        if wrapper is not None and retry.RETRIED not in wrapper.f_locals and returned.is_published(self.entry):
            raise Retry
        cache_entries.mark_copies(self.entry.guard_manager, self.code)
        return cache.served_again(self.entry)


frames.compiling = _Call._trace.__code__

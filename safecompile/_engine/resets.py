"""torch.compiler.reset() while other threads run compiled code: it takes effect, and nothing is freed under a thread.

``reset_code`` frees what torch's C code knows of a function, while other threads have pointers into it: in the middle
of a miss, and in the look-up of a warm call, which gives the GIL up at each entry (a crash, 2.5-2.15). So with other
threads alive the list stays. At once, each entry gets one more guard, in C, that never holds: the next call
compiles. A moment later, when nobody can be about to run its code, torch takes its guards and code out; these are freed
after another moment. The bare entry stays. Nothing is added to a warm call.
"""

from __future__ import annotations

import functools
import weakref
from contextlib import suppress
from time import monotonic
from types import CodeType, ModuleType
from typing import Any, Final

from .._common import events
from .._patching.families import Part
from .._patching.patches import AttributePatch, Patch
from .._torch import cache, dynamo, state, threads
from . import cache_entries, frames, later, returned

#: The functions whose outdated entries are to be taken out, and since when. The oldest first. Each use of this and of
#: the next two is one operation on a list or dictionary, atomic by the GIL.
outdated: list[tuple[float, weakref.ref[CodeType]]] = []

#: The functions with so many outdated entries that their reset is put off.
put_off: list[weakref.ref[CodeType]] = []

#: The functions of which torch must forget, at their next miss, which dimensions vary; by id.
cold: dict[int, weakref.ref[CodeType]] = {}

#: The functions in which entries are left, for the next reset to find.
left: dict[int, weakref.ref[CodeType]] = {}

#: More outdated entries than that cost a miss too much: it gives the GIL up at each.
OUTDATED_AT_MOST: Final = 64


def reset(code: CodeType, *, at_most: int | None = None) -> None:
    """Resets one function: torch's own way if this is the only thread and in no miss, else step by step."""
    if not threads.others_are_alive() and not frames.in_a_miss():
        cache.reset_code(code)
        left.pop(id(code), None)
        return
    left[id(code)] = weakref.ref(code)
    there = {id(manager): manager for manager in (entry.guard_manager for entry in cache.cache_entries(code))}
    new = [manager for manager in there.values() if not cache_entries.is_outdated(manager)]
    for manager in new:
        cache_entries.keep_backend(manager)
    live = sum(map(cache.is_live, there.values()))
    if live > len(new) + (OUTDATED_AT_MOST if at_most is None else at_most):
        put_off.append(weakref.ref(code))
        events.reset_is_put_off(code)
        later.soon()
        return
    for manager in new:
        cache_entries.outdate(manager)
    if new:
        outdated.append((monotonic(), weakref.ref(code)))
        later.soon()
    cache.forget_decisions(code)
    cold[id(code)] = weakref.ref(code)


def catch_up(*, at_most: int | None = None) -> None:
    """Takes out what nobody can be about to use any more, and resets what was put off.

    Called where a miss ends, before a reset, by the uninstallation, and a moment later by :mod:`.later`.
    """
    cache_entries.let_go()
    for since, reference in cache_entries.taken_if_over(outdated):
        code = reference()
        if code is not None:
            cache_entries.take_out_outdated(code, since)
    waiting = set()
    with suppress(IndexError):
        while True:
            waiting.add(put_off.pop())
    for reference in waiting:
        code = reference()
        if code is not None:
            reset(code, at_most=at_most)


def catch_up_after_a_miss() -> None:
    """Catches up, and logs what goes wrong, so that what came of a miss is neither lost nor another error."""
    try:
        catch_up()
    except Exception:  # noqa: BLE001 - whatever it is, it is not what the call is about
        events.log.exception(
            "freeing what a reset has left failed; the call goes on, and a later one tries again. "
            "More: docs/debugging.md#errors-and-warnings"
        )


def due() -> float | None:
    """Returns when there is something to be freed next (monotonic seconds), or None."""
    # One look at each list: another thread may empty it.
    waiting: list[float] = [one[0] for one in outdated[:1]] + [one[0] for one in cache_entries.kept[:1]]
    if waiting:
        return cache_entries.over_at(min(waiting))
    return 0.0 if put_off else None


later.task = (due, catch_up_after_a_miss)


def begin_cold(code: CodeType, frame_state: dict[str, Any]) -> None:
    """Forgets what torch has noted of earlier calls of ``code``, at the first miss after a reset of it."""
    reference = cold.pop(id(code), None)
    if reference is not None and reference() is code:
        frame_state.clear()


def _living(notes: dict[int, weakref.ref[CodeType]]) -> list[CodeType]:
    """Returns the functions in ``notes`` that are still there, and strikes the others off."""
    found = []
    for ident, reference in notes.copy().items():
        code = reference()
        if code is not None:
            found.append(code)
        elif notes.get(ident) is reference:  # else a new function has the id by now
            notes.pop(ident, None)
    return found


def patches_of_reset(module: ModuleType) -> list[Patch]:
    """Returns the patch of the name by which ``module`` resets the cache of one function; changes nothing."""
    original = module.reset_code

    @functools.wraps(original)
    def _patched_reset_code(code: Any) -> None:
        if isinstance(code, CodeType):
            if outdated or cache_entries.kept:
                catch_up()
            reset(code)
        else:
            original(code)

    return [AttributePatch(module, "reset_code", _patched_reset_code)]


def patches_of_backends(module: ModuleType) -> list[Patch]:
    """Returns the patch of the name by which ``module`` resets the backends; changes nothing."""
    original = getattr(module, cache.RESET_BACKENDS)

    @functools.wraps(original)
    def _patched_reset_backends() -> None:
        cache.reset_backends()

    return [AttributePatch(module, cache.RESET_BACKENDS, _patched_reset_backends)]


def patches_of_metrics(module: ModuleType) -> list[Patch]:
    """Returns the patch of what each compile enters and leaves, failed or not; changes nothing.

    Each thread has metrics of its own, and these the tracebacks of its compiles, until it ends. They may be the last to
    hold compiled code. Who frees it there, under a mutex of torch's, hangs the process if another thread takes a
    traceback meanwhile (``tests/host/test_traceback_facts.py``).
    """
    original = module.MetricsContext.__exit__

    @functools.wraps(original)
    def _patched_exit(self: Any, *about: Any) -> Any:
        try:
            return original(self, *about)
        finally:
            cache.forget_tracebacks(self)

    return [AttributePatch(module.MetricsContext, "__exit__", _patched_exit)]


class _TimesPatch(AttributePatch):
    """Hands what was noted on to torch's own dictionary: another thread may be in the middle of a phase."""

    def revert(self) -> str | None:
        self._hand_on()
        left = super().revert()
        self._hand_on()
        return left

    def _hand_on(self) -> None:
        for key in self.original.keys() - self.replacement.keys():
            self.original.pop(key, None)
        self.original.update(self.replacement)


def patches_of_times(module: ModuleType) -> list[Patch]:
    """Returns the patch of the dictionary of phases, where this release needs it; changes nothing."""
    if cache.keeps_its_list(module):
        return []
    return [_TimesPatch(module, cache.TIMES, cache.Times(vars(module)[cache.TIMES]))]


def patches_of_dynamo_utils(module: ModuleType) -> list[Patch]:
    """Returns the patch that keeps, over a reset, what torch notes of the entries that are still there."""
    # Without these notes the next miss of such a function raises KeyError when torch asks why an entry did not fit, and
    # no later reset finds the function.
    noted = cache.original_codes(module)
    original = noted.clear

    @functools.wraps(original)
    def _patched_clear() -> None:
        about_to_be = returned.about_to_be_published()  # before the entries, which they may become meanwhile
        original()
        for code in _living(left):
            cache.note_for_resets(code)
            for entry in cache.cache_entries(code):
                if entry.code is not None:
                    noted[entry.code] = code
        for code, guarded in about_to_be:
            noted[guarded.code] = code
        _living(cold)

    return [AttributePatch(noted, "clear", _patched_clear, new=True)]


PARTS: Final = (
    *(Part("reset", one, patches_of_reset) for one in (dynamo.DYNAMO, dynamo.EVAL_FRAME, state.DECORATORS)),
    *(Part("reset", one, patches_of_backends) for one in (dynamo.DYNAMO, dynamo.EVAL_FRAME)),
    Part("reset", dynamo.DYNAMO_UTILS, patches_of_dynamo_utils),
    Part("reset", dynamo.DYNAMO_UTILS, patches_of_times),
    Part("reset", dynamo.METRICS, patches_of_metrics),
)

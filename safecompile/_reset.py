"""torch._dynamo.reset() while other threads run compiled code: nothing is freed under a thread that may use it.

``reset_code`` frees what torch's C code knows of a function, while other threads have pointers into it: in the middle
of a miss, and in the look-up of a warm call, which gives the GIL up for a moment at each entry (a crash, 2.5-2.15; seen
in gdb: RootGuardManager::check_nopybind_template). So unless the other threads do nothing at the moment, outside of any
compiled call, nothing is freed at once: the entries are outdated by one more guard, in C, that never holds, and the
next call compiles, as it should. A moment later, when every check that began before has ended, torch takes their guards
and their code out; another moment later, when no check of them goes on, they are freed. The bare entries stay. A warm
call is as before.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from time import monotonic, process_time_ns, sleep, thread_time_ns
from types import CodeType, FrameType, ModuleType
from typing import Any, NamedTuple

from . import _entries, _frames, _torch
from ._patches import AttributePatch, Patch

#: Seconds after which a check of one entry has ended for sure. It takes microseconds, and two waits for the GIL.
GRACE_S = 0.25

#: Seconds for which the other threads are looked at, and the nanoseconds of processor time that they may use meanwhile.
LOOK_S, BUSY_NS = 0.003, 100_000

#: A function with more entries than that, outdated and not, is reset later: each costs a look-up a moment without the
#: GIL, which is long where several threads want it.
OUTDATED_AT_MOST = 16


class _Grave(NamedTuple):
    """The outdated entries of one function: since when, and whether torch has taken their guards out."""

    code: weakref.ref[CodeType]
    since: float
    managers: list[Any]
    taken_out: bool = False


#: What is to be freed, the oldest first, and the functions whose reset is put off. Each use is one operation on a list,
#: atomic by the GIL. As many at most as functions times OUTDATED_AT_MOST.
graves: list[_Grave] = []
put_off: list[weakref.ref[CodeType]] = []


def reset(code: CodeType) -> None:
    """Resets one function, as far as that can be done at this moment."""
    from . import _miss

    if not _miss.is_in_a_miss() and others_sleep():
        _torch.reset_code(code)
    else:
        _outdate(code)


#: Until when (monotonic seconds) it holds that the others are asleep: for the functions of one reset.
_asleep_until = 0.0


def others_sleep() -> bool:
    """Tells whether the other threads do nothing, outside of any compiled call; takes some milliseconds."""
    global _asleep_until
    if len(sys._current_frames()) == 1 or monotonic() < _asleep_until:
        return True
    before = process_time_ns() - thread_time_ns()
    sleep(LOOK_S)
    if process_time_ns() - thread_time_ns() - before > BUSY_NS or _another_is_in_a_call():
        return False
    _asleep_until = monotonic() + LOOK_S
    return True


def _another_is_in_a_call() -> bool:
    me = threading.get_ident()
    for ident, top in sys._current_frames().items():
        frame: FrameType | None = None if ident == me else top
        while frame is not None:
            if frame.f_code in _frames.retrying_codes:
                return True
            frame = frame.f_back
    return False


def _outdate(code: CodeType) -> None:
    entries = _torch.cache_entries(code)
    managers = list({id(entry.guard_manager): entry.guard_manager for entry in entries}.values())
    new = [manager for manager in managers if not _entries.is_outdated(manager)]
    checked = [entry for entry in entries if _entries.is_live(entry.guard_manager)]
    if len(checked) > OUTDATED_AT_MOST:
        put_off.append(weakref.ref(code))
    elif new:
        for manager in new:
            _entries.outdate(manager)
        graves.append(_Grave(weakref.ref(code), monotonic(), [one for one in new if _entries.is_live(one)]))


def catch_up() -> None:
    """Frees what nobody can be looking at any more, and resets what was put off. Called where a miss ends."""
    while graves and graves[0].since + GRACE_S < monotonic():
        try:
            grave = graves.pop(0)
        except IndexError:  # another thread was faster
            break
        code = grave.code()
        if code is not None and not grave.taken_out:
            gone = {id(manager) for manager in grave.managers}
            _torch.free_entries([one for one in _torch.cache_entries(code) if id(one.guard_manager) in gone])
            graves.append(grave._replace(since=monotonic(), taken_out=True))
    waiting, put_off[:] = list(put_off), []
    for code in {reference() for reference in waiting} - {None}:
        _outdate(code)  # type: ignore[arg-type] # this thread is still in a miss


def patches_of_reset(module: ModuleType) -> list[Patch]:
    """Returns the patch of the name by which ``module`` resets the cache of one function; changes nothing."""
    original = module.reset_code

    @functools.wraps(original)
    def _patched_reset_code(code: Any) -> None:
        if isinstance(code, CodeType):
            reset(code)
        else:
            original(code)

    return [AttributePatch(module, "reset_code", _patched_reset_code)]


def patches_of_dynamo_utils(module: ModuleType) -> list[Patch]:
    """Returns the patch that keeps, over a reset, what torch notes of the entries that are still there."""
    # Without the note, the next miss of such a function raises KeyError when torch asks why the entry did not fit.
    from . import _miss

    noted = _torch.original_codes(module)
    original = noted.clear

    @functools.wraps(original)
    def _patched_clear() -> None:
        kept = {reference() for reference in (*put_off, *(grave.code for grave in graves))} - {None}
        original()
        for code in kept:
            for entry in _torch.cache_entries(code):  # type: ignore[arg-type]
                if entry.code is not None:
                    noted[entry.code] = code
        for weak in list(_miss.returned.values()):
            guarded = weak()
            if guarded is not None:
                noted[guarded.code] = guarded._safecompile_code

    return [AttributePatch(noted, "clear", _patched_clear, new=True)]

"""torch._dynamo.reset() while other threads run compiled code: nothing is freed under a thread that may use it.

``reset_code`` frees what torch's C code knows of a function (a crash, 2.5-2.15). Two kinds of thread may have pointers
into it: one in the middle of a miss, and one in the look-up of a warm call, which gives the GIL up for a moment at
each entry (seen in gdb: RootGuardManager::check_nopybind_template). The first is seen on its stack: its function is
left as it is until the miss is over. Of the second only torch's wrapper is seen, which is there as long as the call:
the function's entries are outdated, which frees nothing, by one more guard that never holds. The call after the reset
compiles, as it should. What is outdated goes when no other thread is in a compiled call. A warm call is as before.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from types import CodeType, FrameType, ModuleType
from typing import Any

from . import _entries, _frames, _torch
from ._patches import AttributePatch, Patch

#: The code of the function that stands in the place of torch's callback. Set by _callback.
callback_code: CodeType | None = None

#: The functions whose reset is put off, by id, and whether all of it is, or the freeing only. The reference goes when
#: the code does. Each use is one dictionary operation, atomic by the GIL.
put_off: dict[int, tuple[weakref.ref[CodeType], bool]] = {}

#: As many outdated entries of one function as a look-up has to go through at most.
OUTDATED_AT_MOST = 64


def reset(code: CodeType) -> None:
    """Resets one function, as far as that can be done at this moment."""
    if is_in_use(code):
        put_off[id(code)] = (weakref.ref(code), True)
    elif another_thread_is_in_a_call():
        _outdate(code)
    else:
        put_off.pop(id(code), None)
        _torch.reset_code(code)


def catch_up() -> None:
    """Resets and frees what was put off and is no longer in use. Called where a thread has left the engine."""
    for ident, (reference, whole) in list(put_off.items()):
        code = reference()
        if code is None:
            put_off.pop(ident, None)
        elif whole:
            reset(code)
        elif not is_in_use(code) and not another_thread_is_in_a_call():
            put_off.pop(ident, None)
            _free(code)


def _outdate(code: CodeType) -> None:
    entries = [entry for entry in _torch.cache_entries(code) if _entries.is_live(entry.guard_manager)]
    live = [entry for entry in entries if not _entries.is_outdated(entry.guard_manager)]
    fits = len(entries) <= OUTDATED_AT_MOST
    put_off[id(code)] = (weakref.ref(code), not fits)
    for entry in live if fits else ():
        _entries.outdate(entry.guard_manager)


def _free(code: CodeType) -> None:
    entries = [entry for entry in _torch.cache_entries(code) if _entries.is_live(entry.guard_manager)]
    outdated = [entry for entry in entries if _entries.is_outdated(entry.guard_manager)]
    if len(outdated) == len(entries):
        _torch.reset_code(code)
    for entry in outdated if len(outdated) < len(entries) else ():
        _torch.free_entry(entry)


def another_thread_is_in_a_call() -> bool:
    """Tells whether another thread is in a call of a compiled function, and so may be in a look-up."""
    me = threading.get_ident()
    for ident, top in sys._current_frames().items():
        frame: FrameType | None = None if ident == me else top
        while frame is not None:
            if frame.f_code in _frames.retrying_codes:
                return True
            frame = frame.f_back
    return False


def is_in_use(code: CodeType) -> bool:
    """Tells whether torch's C code may hold pointers into the cache of ``code`` in some thread.

    It does while a miss of it is being answered: then the callback is on that thread's stack, from before its first
    instruction until after its last. And while Python code runs that torch's look-up calls.
    """
    from . import _miss

    for top in sys._current_frames().values():
        frame: FrameType | None = top
        while frame is not None:
            if frame.f_code is callback_code:
                missed = frame.f_locals.get("frame")
                if missed is None or missed.f_code is code:
                    return True
            elif _torch.is_inside_a_look_up(frame.f_code):
                return True
            frame = frame.f_back
    for reference in list(_miss.returned.values()):
        guarded = reference()
        if guarded is not None and guarded._safecompile_code is code and guarded.guard_manager.cache_entry is None:
            return True
    return False


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
    """Returns the patch that keeps, over a reset, what torch notes of the entries that were put off."""
    # Without the note, the next miss of such a function raises KeyError when torch asks why the entry did not fit.
    from . import _miss

    noted = _torch.original_codes(module)
    original = noted.clear

    @functools.wraps(original)
    def _patched_clear() -> None:
        original()
        for reference, _ in list(put_off.values()):
            code = reference()
            for entry in _torch.cache_entries(code) if code is not None else ():
                if entry.code is not None:
                    noted[entry.code] = code
        for weak in list(_miss.returned.values()):
            guarded = weak()
            if guarded is not None:
                noted[guarded.code] = guarded._safecompile_code

    return [AttributePatch(noted, "clear", _patched_clear, new=True)]

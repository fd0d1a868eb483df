"""torch._dynamo.reset() while other threads run compiled code: each function's cache is freed when nobody is in it.

``reset_code`` frees what torch's C code knows of a function, while another thread may be in the middle of a miss of it,
with pointers into what is freed (a crash, 2.5-2.15). Here the reset of such a function is put off until no
thread is in a miss of it. Until then calls find what was compiled before. Nothing is added to a
warm call: it has its pointers only while it holds the interpreter's lock.
"""

from __future__ import annotations

import functools
import sys
import weakref
from types import CodeType, FrameType, ModuleType
from typing import Any

from . import _torch
from ._patches import AttributePatch, Patch

#: The code of the function that stands in the place of torch's callback. Set by _callback.
callback_code: CodeType | None = None

#: The functions whose reset is put off, by id; the reference goes when the code does.
put_off: dict[int, weakref.ref[CodeType]] = {}


def catch_up() -> None:
    """Resets what was put off and is no longer in use. Called where a thread has left the engine."""
    for ident, reference in list(put_off.items()):
        code = reference()
        if code is None or not is_in_use(code):
            put_off.pop(ident, None)
            if code is not None:
                _torch.reset_code(code)


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
        if isinstance(code, CodeType) and is_in_use(code):
            put_off[id(code)] = weakref.ref(code)
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
        for reference in list(put_off.values()):
            code = reference()
            for entry in _torch.cache_entries(code) if code is not None else ():
                if entry.code is not None:
                    noted[entry.code] = code
        for weak in list(_miss.returned.values()):
            guarded = weak()
            if guarded is not None:
                noted[guarded.code] = guarded._safecompile_code

    return [AttributePatch(noted, "clear", _patched_clear, new=True)]

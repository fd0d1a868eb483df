"""What the stack and the arguments of a missed call tell: may it be called again, and for which device is it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from .._common import reading
from .._torch import arguments, dynamo

#: The name of the local variable by which torch's wrapper says that it has called again already.
RETRIED = "__safecompile_retried__"

#: The code of torch's wrapper that catches a retry. Replaced as a whole by retry. Compared by identity: code that
#: Dynamo has made may have constants that can't be hashed.
retrying_codes: tuple[CodeType, ...] = ()

_ENGINE = frozenset(str(Path(__file__).with_name(name)) for name in ("miss.py", "callback.py"))


def wrapper_above(frame: FrameType | None) -> FrameType | None:
    """Returns the frame of torch's wrapper if nothing of the user's has run between it and the frame that missed."""
    while frame is not None:
        code = frame.f_code
        if _is_wrapper(frame):
            return frame
        if dynamo.is_module_call(code):
            if arguments.has_hooks(frame.f_locals["self"]):
                return None
        elif code.co_filename not in _ENGINE and not dynamo.is_frame_around_a_call(frame):
            return None
        frame = frame.f_back
    return None


def _is_wrapper(frame: FrameType) -> bool:
    return any(frame.f_code is code for code in retrying_codes)


def dynamic_of_the_call() -> bool | None:
    """Returns what ``dynamic=`` was for the compiled function that this thread is calling, or None."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not _is_wrapper(frame):
        frame = frame.f_back
    return None if frame is None else getattr(frame.f_locals.get("self"), "_dynamic", None)


def region_strayed() -> int | None:
    """Returns the region that this thread's call is for, if another thread has changed it since the call began."""
    current = dynamo.region()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not _is_wrapper(frame):
        frame = frame.f_back
    wanted = current if frame is None else dynamo.wanted_region(frame)
    return None if wanted == current else wanted


def device_of(frame: Any) -> str:
    """Returns the device of the first tensor argument, else of the module's first parameter, else the current one.

    It decides whom a thread waits for, never what it gets: a wrong guess may cost a wait. So it calls no code of the
    user's, and leaves a tensor out that answers by Python code.
    """
    values = frame.f_locals
    if type(values) is not dict:  # the body of a class, in a mapping of its metaclass
        return dynamo.current_device()
    code = frame.f_code
    given = [values.get(name) for name in code.co_varnames[: code.co_argcount + 2]]
    for value in given:
        for one in reading.items(value):
            device = arguments.tensor_device(one)
            if device is not None:
                return device
    for value in given:
        if arguments.is_module(value):
            device = arguments.parameter_device(value)
            if device is not None:
                return device
    return dynamo.current_device()

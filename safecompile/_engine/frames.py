"""What the stack and the arguments of a missed call tell: may it be called again, and for which device is it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from .._common import reading
from .._torch import arguments, dynamo, frame_rules
from . import retry

#: The name of the function that stands in the place of torch's callback, and its file.
CALLBACK = "_patched_callback"
_CALLBACK = str(Path(__file__).with_name("convert_frame.py"))
_ENGINE = frozenset({_CALLBACK, str(Path(__file__).with_name("miss.py"))})

#: The code of the method in whose frame a compile runs, and whose ``self`` is the miss. Set by :mod:`.miss`.
compiling: CodeType | None = None


def wrapper_above(frame: FrameType | None) -> FrameType | None:
    """Returns the frame of torch's wrapper if nothing of the user's has run between it and the frame that missed."""
    while frame is not None:
        code = frame.f_code
        if code is retry.wrapper:
            return frame
        if frame_rules.is_module_call(code):
            if arguments.has_hooks(frame.f_locals["self"]):
                return None
        elif code.co_filename not in _ENGINE and not frame_rules.is_frame_around_a_call(frame):
            return None
        frame = frame.f_back
    return None


def in_a_miss() -> bool:
    """Tells whether torch has asked, further up this thread's stack, what to do with a call that missed."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not (frame.f_code.co_filename == _CALLBACK and frame.f_code.co_name == CALLBACK):
        frame = frame.f_back
    return frame is not None


def being_compiled() -> tuple[CodeType, str]:
    """Returns the code that this thread is compiling, and for which device."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is compiling:
            call = frame.f_locals["self"]
            return call.code, call.device
        frame = frame.f_back
    return sys._getframe(1).f_code, "cpu"  # compiled while the patches were out


def _next_wrapper(frame: FrameType | None) -> FrameType | None:
    """Returns the frame of torch's wrapper that is the first from ``frame`` up, or None."""
    wrapper = retry.wrapper
    while frame is not None and frame.f_code is not wrapper:
        frame = frame.f_back
    return frame


def dynamic_of_the_call() -> bool | None:
    """Returns what ``dynamic=`` was for the compiled function that this thread is calling, or None."""
    frame = _next_wrapper(sys._getframe(1))
    return None if frame is None else dynamo.dynamic_of(frame)


def contexts_of_the_call() -> Iterator[Any]:
    """Yields the contexts of the compiled functions that this thread is calling, the innermost first."""
    frame = _next_wrapper(sys._getframe(1))
    while frame is not None:
        yield dynamo.context_in(frame)
        frame = _next_wrapper(frame.f_back)


def region_of_the_call() -> int:
    """Returns the region that this thread's call is for. Up to torch 2.14 another thread's call may set another one."""
    frame = _next_wrapper(sys._getframe(1))
    return dynamo.region() if frame is None else dynamo.wanted_region(frame)


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

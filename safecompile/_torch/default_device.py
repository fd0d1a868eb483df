"""The private names of the default device. As :mod:`.dynamo`, it only names and tells."""

from __future__ import annotations

import sys
from types import FunctionType, ModuleType
from typing import Any

DEVICE = "torch.utils._device"

#: The device that was set last, in any thread. Guards, in C, read it in the module's dictionary (2.7-2.15).
VARIABLE = "CURRENT_DEVICE"

#: By what a guard on it is made: it takes the value that is there.
MAKING_A_GUARD = "add_default_device_guard"


def variable() -> Any:
    """Returns the value of the variable, or None where nothing has set it."""
    module = sys.modules.get(DEVICE)
    return None if module is None else vars(module)[VARIABLE]


def set_variable(value: Any) -> None:
    """Sets it."""
    vars(sys.modules[DEVICE])[VARIABLE] = value


def setters(module: ModuleType) -> list[tuple[FunctionType, int]]:
    """Returns the functions that use the variable, and in how many assignments."""
    context = module.DeviceContext
    return [(context.__enter__, 2), (context.__exit__, 1)]


def guard_maker(guards: ModuleType) -> FunctionType:
    """Returns the method that makes such a guard."""
    method = guards.GuardBuilder.DEFAULT_DEVICE
    function: FunctionType = getattr(method, "__wrapped__", method)
    return function


def as_text(device: Any) -> str | None:
    """Returns a device as what :func:`device_from` takes."""
    return None if device is None else str(device)


def device_from(text: str | None) -> Any:
    """Returns the device."""
    return None if text is None else sys.modules["torch"].device(text)

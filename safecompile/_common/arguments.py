"""What callers give, checked where it comes in."""

from __future__ import annotations

import math
import threading
from typing import Any


def seconds(name: str, value: Any) -> float:
    """Returns a time to wait, at most what the system can wait; nothing below zero.

    Raises:
        TypeError: ``value`` is no number.
        ValueError: ``value`` is not a number of seconds (nan).
    """
    if not isinstance(value, (int, float)):
        msg = f"{name} must be a number of seconds, such as 10.0, not {value!r}. Nothing was changed."
        raise TypeError(msg)
    if math.isnan(value):
        msg = f"{name} must be a number of seconds, such as 10.0, not nan. Nothing was changed."
        raise ValueError(msg)
    return min(max(0.0, value), threading.TIMEOUT_MAX)

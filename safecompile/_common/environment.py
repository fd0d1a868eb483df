"""What the user and the interpreter say about patching at all."""

from __future__ import annotations

import os
import sys

from .errors import InstallError, SafeCompileError


def is_disabled() -> bool:
    """Tells whether ``SAFECOMPILE_DISABLE`` asks for plain torch."""
    return os.environ.get("SAFECOMPILE_DISABLE", "0") not in ("", "0")


def is_strict() -> bool:
    """Tells whether ``SAFECOMPILE_STRICT`` makes every family required."""
    return os.environ.get("SAFECOMPILE_STRICT", "0") not in ("", "0")


def wants_progress() -> bool:
    """Tells whether ``SAFECOMPILE_PROGRESS`` asks for a live line while something compiles."""
    return os.environ.get("SAFECOMPILE_PROGRESS", "0") not in ("", "0")


def is_terminal(stream: object) -> bool:
    """Tells whether a stream is a terminal. None, a closed one, and what only has ``write`` are none."""
    isatty = getattr(stream, "isatty", None)
    try:
        return isatty is not None and bool(isatty())
    except (OSError, ValueError):
        return False


def cuda_graph_threads() -> int:
    """Returns how many threads may have CUDA graphs of their own: ``SAFECOMPILE_CUDA_GRAPH_THREADS``, or 16."""
    text = os.environ.get("SAFECOMPILE_CUDA_GRAPH_THREADS", "16")
    if not text.isdecimal():
        msg = (
            f"SAFECOMPILE_CUDA_GRAPH_THREADS is {text!r}, which is not a number of threads. Set it to a whole number "
            "such as 16, or to 0 for no CUDA graphs."
        )
        raise SafeCompileError(msg)
    return int(text)


def max_wait_s() -> float | None:
    """Returns how long calls wait for another thread's compile: ``SAFECOMPILE_MAX_WAIT_S`` in seconds, or None."""
    text = os.environ.get("SAFECOMPILE_MAX_WAIT_S", "")
    if not text:
        return None
    try:
        return seconds_to_wait(float(text))
    except ValueError:
        msg = (
            f"SAFECOMPILE_MAX_WAIT_S is {text!r}, which is not a number of seconds. Set it to a number such as 1.5, or "
            "to 0, so that no call waits for another thread's compile. Leave it out for no limit."
        )
        raise SafeCompileError(msg) from None


def seconds_to_wait(value: float | None) -> float | None:
    """Returns ``value``, if it can be a limit of a wait, and None for one without end."""
    if value is None or value == float("inf"):
        return None
    if isinstance(value, (int, float)) and value >= 0:
        return float(value)
    msg = (
        f"max_wait_s is {value!r}, which is not a number of seconds. Give a number such as 1.5, or 0, so that no call "
        "waits for another thread's compile, or None for no limit."
    )
    raise SafeCompileError(msg)


def ranks_may_differ() -> bool:
    """Tells whether ``SAFECOMPILE_RANKS_MAY_DIFFER`` says that a limit holds beside a process group, too."""
    return os.environ.get("SAFECOMPILE_RANKS_MAY_DIFFER", "0") not in ("", "0")


def check_gil() -> None:
    """Raises InstallError on an interpreter without the global interpreter lock."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        msg = (
            "safecompile does not work without Python's global interpreter lock (GIL), on which torch.compile itself "
            "relies. Nothing is patched. Start Python with PYTHON_GIL=1. Or set SAFECOMPILE_DISABLE=1, and compile in "
            "one thread only."
        )
        raise InstallError(msg)

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


def cuda_graph_threads() -> int:
    """Returns how many threads may have CUDA graphs of their own: ``SAFECOMPILE_CUDA_GRAPH_THREADS``, or 16."""
    text = os.environ.get("SAFECOMPILE_CUDA_GRAPH_THREADS", "16")
    if not text.isdecimal():
        msg = (
            f"SAFECOMPILE_CUDA_GRAPH_THREADS is {text!r}, which is no number of threads: set it to a whole number, "
            "0 for no CUDA graphs."
        )
        raise SafeCompileError(msg)
    return int(text)


def check_gil() -> None:
    """Raises InstallError on an interpreter without the global interpreter lock."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        msg = (
            "safecompile can't work on a Python without the global interpreter lock: torch.compile itself relies on "
            "it. Nothing is patched. Start Python with PYTHON_GIL=1, or set SAFECOMPILE_DISABLE=1."
        )
        raise InstallError(msg)

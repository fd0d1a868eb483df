"""Known kinds of faults, brought back on purpose: the harness must report each."""

from __future__ import annotations

import atexit
import dataclasses
import logging
import os
import random
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

from .table import Program

#: What is broken -> the part of the record that must tell of it.
TOLD_BY = {
    "numbers": "seeds",
    "more numbers": "seeds",
    "setting": "state",
    "configuration": "state",
    "module": "state",
    "compile": "compiles",
    "warning": "warnings",
    "log": "log",
    "frames": "says",
    "result": "says",
    "error": "raised",
    "output": "out",
    "complaint": "err",
    "status": "status",
    "leaves early": "ended",
    "crash": "status",
    "hang": "hung",
    "thread": "state",
}


def bring_back(fault: str, program: Program) -> Program:
    """Returns the program with a fault around it."""
    before = _BEFORE.get(fault)

    def broken(*arguments: Any) -> Any:
        if before is not None:
            before()
        if fault == "frames":  # as a wrapper that stays in the traceback of the user's error
            _deepen()
        says = program.function(*arguments)
        return {"says": says} if fault == "result" else says

    return dataclasses.replace(program, function=broken)


def _deepen() -> None:
    torch, plain = _torch(), _torch().compile

    def wrapped(function: Any) -> Any:
        return lambda *args: function(*args)

    torch.compile = lambda *args, **kwargs: wrapped(wrapped(wrapped(plain(*args, **kwargs))))


def _torch() -> Any:
    return sys.modules["torch"]


def _compile() -> None:
    _torch().compile(lambda x: x + 1, backend="eager")(_torch().ones(1))


def _raise() -> None:
    raise KeyError("a fault")


def _start_thread() -> None:
    threading.Thread(target=threading.Event().wait, daemon=True, name="left behind").start()


_BEFORE: dict[str, Callable[[], Any]] = {
    "numbers": random.random,
    "more numbers": lambda: _torch().rand(1),
    "setting": lambda: _torch().set_default_dtype(_torch().float64),
    "configuration": lambda: setattr(sys.modules["torch._dynamo.config"], "cache_size_limit", 3),
    "module": lambda: sys.modules.update(surprise=sys),
    "compile": _compile,
    "warning": lambda: warnings.warn("a fault", UserWarning, stacklevel=1),
    "log": lambda: logging.getLogger("safecompile.miss").warning("a fault"),
    "error": _raise,
    "output": lambda: print("a fault"),
    "complaint": lambda: print("a fault", file=sys.stderr),
    "status": lambda: atexit.register(os._exit, 3),
    "leaves early": lambda: os._exit(0),
    "crash": os.abort,
    "hang": lambda: time.sleep(1e6),
    "thread": _start_thread,
}

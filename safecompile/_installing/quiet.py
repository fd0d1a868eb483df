"""The moment at which patches may go in or out: nobody else traces, compiles or installs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from .._common.errors import InstallError
from .._isolation import compiled_autograd
from .._torch import dynamo
from .._torch import fx as torch_fx
from . import applying


@contextmanager
def quiet(what: str, timeout_s: float) -> Iterator[None]:
    """Waits, for a bounded time, until no other thread traces, compiles or installs, and keeps it so."""
    deadline = time.monotonic() + timeout_s
    if torch_fx.traces_here() or compiled_autograd.is_in_use_here():
        msg = (
            f"safecompile.{what}() was called by a thread that is tracing or compiling, or has compiled autograd on. "
            f"Nothing can be patched then. Nothing was changed. Call {what}() before or after it."
        )
        raise InstallError(msg)

    def give_up(who: str) -> InstallError:
        return InstallError(
            f"safecompile.{what}() waited {timeout_s:g} s for another thread, which is still {who}. Nothing was "
            "changed, and compiled functions go on as before. "
            f"Call {what}() before the threads start, or when they are idle."
        )

    # The order of locks, everywhere: torch's compile lock, a module's import lock, applying.installing. A thread that
    # imports a part of torch in the middle of a compile takes them so, and whoever has the last imports nothing.
    lock = dynamo.compile_lock() if dynamo.loaded(dynamo.CONVERT_FRAME) else threading.RLock()
    if not lock.acquire(timeout=timeout_s):
        raise give_up("compiling")  # noqa: EM101
    try:
        with applying.installing:  # an installer does no work of the user's: waiting for one needs no limit
            while torch_fx.another_thread_traces() or compiled_autograd.is_in_use():
                if time.monotonic() > deadline:
                    raise give_up("tracing, or in a block with compiled autograd on")  # noqa: EM101
                time.sleep(0.005)
            yield
    finally:
        lock.release()

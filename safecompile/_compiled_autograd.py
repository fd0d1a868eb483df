"""Compiled autograd: on for the thread that has turned it on.

torch has one switch for the process: a thread that turns it on hands every other thread's backward to its compiler,
and a compile, which turns it off for its own time, does so under other threads and may leave it on for good
(2.7-2.15). Here each thread has its own, and torch's own is on only from the call of the engine to the first thing it
calls back. That window is a lock, in which nothing of the user's runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from . import _events
from . import _torch_state as host
from ._globals import thread_local_globals
from ._patches import AttributePatch, Patch


class _Local(threading.local):
    """The per-thread values; a thread begins with what a process begins with."""

    compiled_autograd_enabled = False
    compiled_autograd_enabled_force_eager = False
    in_compiled_autograd_region = False
    active_disable_ctx = False
    depth = 0
    compiler: Any = None  # what makes an instance for a backward that is to be compiled
    dynamic = False


local = _Local()

#: Held while torch's own switch is on, by the thread that has it on. Reentrant for signal handlers and finalizers.
_window: Any = threading.RLock()

#: The thread whose compiled backward runs, at most one (a rule of torch's), and what it is to do at its end.
_running: int | None = None
_afterwards: list[Callable[[], Any]] = []

#: torch's own switch, in C. Set once, by the installation.
_torchs_own: Any = None


class _NotThisThread(Exception):  # noqa: N818 - never seen by a user
    """Raised where torch asks for a compiler in a thread that wants none; nothing of the backward has run yet."""


def patches_of_compiled_autograd(module: ModuleType) -> list[Patch]:
    """Returns the patches; changes nothing."""
    global _torchs_own
    owner = host.compiled_autograd_switch()
    if module.compiled_autograd_enabled:
        msg = "compiled autograd off at the installation"
        raise LookupError(msg)
    _torchs_own, clear = owner.set_autograd_compiler, owner.clear_cache
    engine = _engine(host.execution_engine(), alone=host.compiled_autograd_needs_no_other_backward(module))

    def set_autograd_compiler(compiler: Any, dynamic: bool) -> tuple[Any, bool]:
        _close()
        prior = (local.compiler, local.dynamic)
        local.compiler, local.dynamic = compiler, dynamic
        if compiler is not None and host.execution_engine() is not engine:
            host.set_execution_engine(engine)
        return prior

    def clear_cache() -> None:
        if _running in (None, threading.get_ident()):
            clear()
        else:
            _afterwards.append(clear)  # the backward that runs still writes what it has compiled there

    return [
        *thread_local_globals(module, host.COMPILED_AUTOGRAD, local, optional=host.COMPILED_AUTOGRAD_OPTIONAL),
        AttributePatch(owner, "set_autograd_compiler", set_autograd_compiler),
        AttributePatch(owner, "clear_cache", clear_cache),
        _EnginePatch(engine),
    ]


class _EnginePatch:
    """The engine goes in when a thread turns compiled autograd on for the first time, and out with the others."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.original = engine, host.execution_engine()

    def apply(self) -> None:
        pass

    def revert(self) -> str | None:
        if host.execution_engine() is self.engine:
            host.set_execution_engine(self.original)
        return None


def _engine(original: Any, *, alone: bool) -> Any:
    run = original.run_backward

    class Engine(type(original)):  # type: ignore[misc]
        """torch's engine, with compiled autograd by thread."""

        def run_backward(self, *args: Any, **kwargs: Any) -> Any:
            if _window._is_owned():
                return run(*args, **kwargs)
            inside = _running == threading.get_ident()
            try:
                if local.compiler is not None and _begin(alone=alone):
                    try:
                        return run(*args, **kwargs)
                    except RuntimeError as error:
                        # Torch has not seen the switch yet: another thread, on its way into the engine, was first.
                        if not (_window._is_owned() and host.is_second_compiled_backward(error)):
                            raise
                    _end(inside=inside)
                    _events.warn_of_backward_without_compiled_autograd()
                while True:
                    with _window:
                        pass
                    try:
                        return run(*args, **kwargs)
                    except _NotThisThread:  # a window opened between the line above and torch's own look
                        continue
                    except RuntimeError as error:  # and the backward for which it opened runs
                        if inside or not host.is_second_compiled_backward(error):
                            raise
            finally:
                _end(inside=inside)

    return Engine()


def _begin(*, alone: bool) -> bool:
    """Turns torch's switch on for this thread's backward, unless that must run without."""
    global _running
    compiler, me = local.compiler, threading.get_ident()

    def for_this_backward() -> Any:
        if threading.get_ident() != me:
            raise _NotThisThread
        _close()
        return compiler()

    _window.acquire()
    if _running not in (None, me) or (alone and host.another_thread_is_in_backward()):
        _window.release()
        _events.warn_of_backward_without_compiled_autograd()
        return False
    _running = me
    _torchs_own(for_this_backward, local.dynamic)
    return True


def _close() -> None:
    """Turns torch's switch off again, if this thread has it on: torch has seen it."""
    if _window._is_owned():
        _torchs_own(None, False)
        _window.release()


def _end(*, inside: bool) -> None:
    """Leaves everything as it was before a backward, whatever happened in it."""
    global _running
    _close()
    if _running == threading.get_ident() and not inside:
        while _afterwards:
            _afterwards.pop()()
        _running = None


def after_fork_in_child() -> None:
    """Forgets the parent's other threads; one of them may have been in the window."""
    global _window, _running
    if _running not in (None, threading.get_ident()):
        window_was_open = not _window.acquire(blocking=False)
        _window, _running = threading.RLock(), None
        _afterwards.clear()
        if window_was_open:
            _torchs_own(None, False)

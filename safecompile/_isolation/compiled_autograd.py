"""Compiled autograd: on for the thread that has turned it on.

torch has one switch for the process: a thread that turns it on hands every other thread's backward to its compiler,
and a compile, which turns it off for its own time, does so under other threads and may leave it on for good
(2.7-2.15). Here each thread has its own, and torch's own is on only from the call of the engine to the first thing it
calls back. That window is a lock, in which nothing of the user's runs.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from .._common import events, forks, thread_frames
from .._patching.families import Part
from .._patching.patches import AttributePatch, Patch
from .._patching.thread_globals import thread_local_globals
from .._torch import autograd as host


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

#: Held while torch's own switch is on, by the thread that has it on, and taken by each other backward on its way into
#: the engine. Reentrant for signal handlers and finalizers.
_window: Any = threading.RLock()

# A leaf lock around the next two, held for a few assignments.
_bookkeeping = threading.RLock()

#: The compiled backward that runs, at most one (a rule of torch's), and what is to be done at its end.
_running: weakref.ref[_Backward] | None = None
_afterwards: list[Callable[[], Any]] = []

#: The threads that have it on.
_on: set[int] = set()

#: torch's own switch, in C. Set once, by the installation.
_torchs_own: Any = None


class _Backward:
    """A backward that runs: kept alive by its call alone, so that none is left behind, whatever strikes."""

    __slots__ = ("__weakref__", "thread")

    def __init__(self) -> None:
        self.thread = threading.get_ident()


def _running_in() -> int | None:
    """Returns the thread whose compiled backward runs, or None."""
    backward = None if _running is None else _running()
    return None if backward is None else backward.thread


def is_in_use_here() -> bool:
    """Tells whether this thread has compiled autograd on."""
    return threading.get_ident() in _on


def is_in_use() -> bool:
    """Tells whether a thread that is alive has compiled autograd on."""
    return _running_in() is not None or not _on.isdisjoint(thread_frames.of_all_threads())


def patches_of_compiled_autograd(module: ModuleType) -> list[Patch]:
    """Returns the patches; changes nothing."""
    global _torchs_own
    owner = host.compiled_autograd_switch()
    states = (*host.COMPILED_AUTOGRAD, *host.COMPILED_AUTOGRAD_OPTIONAL)
    if any(vars(module).get(name) for name in states):  # inside _enable() it is off while a backward runs
        msg = "compiled autograd off at the installation"
        raise LookupError(msg)
    _torchs_own, clear = owner.set_autograd_compiler, owner.clear_cache
    engine = _engine(host.execution_engine(), own_counts=host.own_backward_counts(module))

    def set_autograd_compiler(compiler: Any, dynamic: bool) -> tuple[Any, bool]:
        _close()
        prior = (local.compiler, local.dynamic)
        local.compiler, local.dynamic = compiler, dynamic
        (_on.discard if compiler is None else _on.add)(threading.get_ident())
        if compiler is not None and host.execution_engine() is not engine:
            host.set_execution_engine(engine)
        return prior

    def clear_cache() -> None:
        with _bookkeeping:
            wait = _running_in() not in (None, threading.get_ident())
            if wait:
                _afterwards.append(clear)  # the backward that runs still writes what it has compiled there
        if not wait:
            clear()

    return [
        *thread_local_globals(module, host.COMPILED_AUTOGRAD, local, optional=host.COMPILED_AUTOGRAD_OPTIONAL),
        AttributePatch(owner, "set_autograd_compiler", set_autograd_compiler),
        AttributePatch(owner, "clear_cache", clear_cache),
        _EnginePatch(engine, clear),
    ]


class _EnginePatch:
    """The engine goes in when a thread turns compiled autograd on for the first time, and out with the others.

    What torch has compiled so far refers to the module's variables, so it is thrown away at each change of them.
    """

    def __init__(self, engine: Any, clear: Callable[[], Any]) -> None:
        self.engine, self.clear, self.original = engine, clear, host.execution_engine()

    def apply(self) -> None:
        self.clear()

    def revert(self) -> str | None:
        self.clear()
        if host.execution_engine() is self.engine:
            host.set_execution_engine(self.original)
        return None


def _engine(original: Any, *, own_counts: bool) -> Any:
    run = original.run_backward

    class Engine(type(original)):  # type: ignore[misc]
        """torch's engine, with compiled autograd by thread."""

        def run_backward(self, *args: Any, **kwargs: Any) -> Any:
            inside = _running_in() == threading.get_ident()
            if _window._is_owned():
                if inside:  # a signal handler, or a finalizer
                    return run(*args, **kwargs)
                _close()
            backward = _Backward()
            try:
                try:
                    if local.compiler is None or not _begin(backward, own_counts=own_counts):
                        _window.acquire()  # from here on this thread's stack tells that it is in a backward
                        _close()
                    return run(*args, **kwargs)
                finally:
                    _end(backward)
            finally:
                _end(backward)  # an asynchronous exception may have cut the first one short

    return Engine()


def _begin(backward: _Backward, *, own_counts: bool) -> bool:
    """Turns torch's switch on for this thread's backward, unless that must run without."""
    global _running
    compiler, me = local.compiler, threading.get_ident()

    def for_this_backward() -> Any:
        _close()
        return compiler()

    _window.acquire()
    # A thread on its way into the engine could see the switch, too, and use it when it is off again (a crash).
    if _running_in() not in (None, me) or host.a_backward_runs(own_counts=own_counts):
        _close()
        events.warn_of_backward_without_compiled_autograd()
        return False
    if _running_in() is None:
        _finish()
        _running = weakref.ref(backward)
    _torchs_own(for_this_backward, local.dynamic)
    return True


def _close() -> None:
    """Turns torch's switch off again, if this thread has it on: torch has seen it."""
    if _window._is_owned():
        try:
            _torchs_own(None, False)
        finally:
            while _window._is_owned():
                _window.release()


def _finish() -> None:
    """Does what was put off to the end of a compiled backward."""
    global _running
    with _bookkeeping:
        waiting, _running = [*_afterwards], None
        _afterwards.clear()
    for one in waiting:
        one()


def _end(backward: _Backward) -> None:
    """Leaves everything as it was before a backward, whatever happened in it; a second time does nothing."""
    _close()
    if _running is not None and _running() is backward:
        _finish()


@forks.in_child
def after_fork_in_child() -> None:
    """Forgets the parent's other threads; one of them may have had the window."""
    global _window, _bookkeeping
    me, _bookkeeping = threading.get_ident(), threading.RLock()
    _on.intersection_update({me})
    if not _window._is_owned():
        was_held = not _window.acquire(blocking=False)
        _window = threading.RLock()
        if was_held:
            _torchs_own(None, False)
    if _running_in() != me:
        _finish()


PARTS: Final = (Part("compiled autograd", host.COMPILED_AUTOGRAD_MODULE, patches_of_compiled_autograd),)

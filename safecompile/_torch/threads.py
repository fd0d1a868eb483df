"""Which other threads there are, and whether one of them has worked since a moment.

Three kinds of threads are told apart. Threads that run code of the user's, whoever started them (``threading``, Qt,
C++): ``sys._current_frames()`` has them all. Helpers, known by their objects, which never do: Inductor's and the
library's own. And threads without Python, as OpenMP's: torch draws random numbers in the thread that calls, so these
draw none. Autograd's workers are among the last while they wait, but may run Python: they are watched too.

A thread has worked if its CPU time has moved. That it stands where it stood proves nothing: a loop with a ``sleep``
draws numbers between two looks at one and the same instruction.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import operator
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from .._common import forks, thread_frames

#: The threads of the library's own, by thread identity, while they run. They never run code of the user's.
ours: dict[int, int] = {}

_TASKS: Final = Path("/proc/self/task")

_time: Any = time  # its clocks of threads are not on every system

#: The names that torch gives the threads of autograd (2.7-2.15).
_AUTOGRAD: Final = "pt_autograd"


class Look(NamedTuple):
    """The threads at one moment."""

    states: int
    """Rises by one with each thread that Python has come to know, also if that has ended since."""
    clocks: dict[int, int] | None
    """The CPU times of the other threads that may run code of the user's, by clock; None where they can't be read."""
    excused: frozenset[int]
    """The clocks of helpers and of autograd's workers."""
    tasks: frozenset[str]
    """All threads that the system knows, those too that have not yet begun to run Python."""
    alone: bool
    """Whether there was no thread to watch."""


def others_are_alive() -> bool:
    """Tells whether another thread runs, or waits in, Python code of the user's; takes no lock.

    Thread safety: may be called anywhere, also in finalizers.
    """
    if sys.is_finalizing():  # no other thread gets a turn any more
        return False
    idents = list(
        thread_frames.of_all_threads()
    )  # not the frames: this one would keep itself, and all callers' variables
    return len(idents) > 1 and any(not _is_helper(ident) for ident in idents if ident != threading.get_ident())


def look() -> Look:
    """Returns what :func:`have_worked` compares with."""
    if not _clocks_can_be_read():
        return Look(_newest_state(), None, frozenset(), frozenset(), not others_are_alive())
    helpers = {_clock(native) for native in _helpers()}
    tasks = os.listdir(_TASKS)  # noqa: PTH208 - it is called in each compile
    autograd = {_clock(native) for native in _autograd_workers(tasks)}
    me = _clock(threading.get_native_id())
    clocks = {}
    for clock in (autograd | set(_clocks_of_python())) - helpers - {me}:
        try:
            clocks[clock] = _time.clock_gettime_ns(clock)
        except OSError:  # it has ended just now
            clocks[clock] = -1
    return Look(_newest_state(), clocks, frozenset(helpers | autograd), frozenset(tasks), not clocks)


def have_worked(since: Look) -> bool:
    """Tells whether another thread that may run code of the user's has used CPU time since, or can't tell."""
    now = look()
    # A helper that had been started by then, and had not yet said what it is, is no new thread.
    new = now.excused - since.excused - {_clock(int(task)) for task in since.tasks}
    ended = {_clock(int(task)) for task in since.tasks - now.tasks} - since.excused
    if ended or now.states - since.states > len(new):
        return True
    if now.clocks is None or since.clocks is None:
        return not (now.alone and since.alone)
    # New workers of autograd's work for a thread that is watched.
    return {clock: ns for clock, ns in now.clocks.items() if clock not in new} != since.clocks


def call_unless_worked(since: Look, steps: list[Callable[[], Any]]) -> None:
    """Calls ``steps``, written in C, unless another thread has worked; nobody gets a turn between the look and them."""
    if have_worked(since):
        return
    clocks = since.clocks or {}
    # A generator would be Python code, which gives the GIL up: these run in C from the first look to the last call.
    now = map(list, [map(_time.clock_gettime_ns, clocks) for _ in steps])
    list(map(_CALL, itertools.compress(steps, map(list(clocks.values()).__eq__, now))))


_CALL: Final = operator.methodcaller("__call__")


def _clocks_of_python() -> Iterator[int]:
    """Yields the clocks of the threads that are in Python code."""
    # In C from the list of threads to the last clock: the clock of a thread that has ended meanwhile would be read from
    # memory that is free. A thread is in that list until it has the GIL for the last time.
    once = thread_frames.once()
    try:
        return iter(list(map(_time.pthread_getcpuclockid, itertools.chain.from_iterable(once))))
    finally:
        list(once)  # to its end, whatever happened


def _clock(native_id: int) -> int:
    # Linux: bits of the clocks of one thread's CPU time. The C libraries make them the same way.
    return (~native_id << 3) | 6


def cpu_ns(native_id: int) -> int:
    """Returns the CPU time of a thread that is alive, 0 where it can't be read."""
    try:
        return _time.clock_gettime_ns(_clock(native_id)) if _clocks_can_be_read() else 0
    except OSError:  # it has ended
        return 0


@functools.cache
def _clocks_can_be_read() -> bool:
    if not hasattr(time, "pthread_getcpuclockid") or not _TASKS.is_dir():
        return False
    return bool(_time.pthread_getcpuclockid(threading.get_ident()) == _clock(threading.get_native_id()))


_names: dict[str, str] = {}


def _autograd_workers(tasks: list[str]) -> list[int]:
    for gone in _names.keys() - set(tasks):
        _names.pop(gone, None)
    for task in tasks:
        if task not in _names:
            try:
                _names[task] = (_TASKS / task / "comm").read_text()
            except OSError:
                continue
    return [int(task) for task in tasks if _names.get(task, "").startswith(_AUTOGRAD)]


def _helpers() -> Iterator[int]:
    yield from list(ours.values())
    for thread in list(threading._active.values()):  # type: ignore[attr-defined]
        if thread.native_id is not None and _is_torchs_helper(thread):
            yield thread.native_id


def _is_helper(ident: int) -> bool:
    # threading.enumerate() takes a lock, which the thread that is in a finalizer may hold.
    thread = threading._active.get(ident)  # type: ignore[attr-defined]
    return ident in ours or (thread is not None and _is_torchs_helper(thread))


def _is_torchs_helper(thread: threading.Thread) -> bool:
    target = getattr(thread, "_target", None)
    home = getattr(target, "__module__", None) or ""
    if home == "concurrent.futures.thread":
        pool = thread._args[0]() if thread._args else None  # type: ignore[attr-defined]
        return pool is not None and any(pool is one for one in _torchs_pools())
    # Inductor reads what its compile workers send in a thread, and tqdm, which it imports, looks at progress bars.
    return home.startswith("torch._inductor.") or type(thread).__module__ == "tqdm._monitor"


def _torchs_pools() -> Iterator[Any]:
    """Yields the pools of threads in which torch loads what it has compiled (2.7-2.15) and prefetches (2.13+)."""
    yield getattr(sys.modules.get("torch.utils._functools"), "_prefetch_executor", None)
    compiler: Any = getattr(sys.modules.get("torch._inductor.async_compile"), "AsyncCompile", None)
    for name in ("pool", "thread_pool"):
        made: Any = getattr(compiler, name, None)
        if hasattr(made, "cache_info") and made.cache_info().currsize:
            yield made()


_probes = itertools.count()


@functools.cache
def _api() -> tuple[Any, Any, Any, Any, Any]:
    api = ctypes.pythonapi
    new, number, clear, delete = (
        api.PyThreadState_New,
        api.PyThreadState_GetID,
        api.PyThreadState_Clear,
        api.PyThreadState_Delete,
    )
    interpreter = api.PyInterpreterState_Get
    interpreter.restype = new.restype = ctypes.c_void_p
    number.restype = ctypes.c_uint64
    for function in (new, number, clear, delete):
        function.argtypes = [ctypes.c_void_p]
    return interpreter(), new, number, clear, delete


def _newest_state() -> int:
    # A thread that comes and goes, or that C++ calls Python in for a moment, is in no list afterwards. But each takes a
    # number; the next one is found out by taking it. What this function takes itself does not count.
    interpreter, new, number, clear, delete = _api()
    state = new(interpreter)
    newest = int(number(state))
    clear(state)
    delete(state)
    return newest - next(_probes)


@forks.in_child
def after_fork_in_child() -> None:
    """Forgets the library's own threads: the child does not have them, and its first threads get their identities."""
    ours.clear()

"""The CUDA graphs that each thread has, the gates of the devices, and what is left when a thread has ended."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any, Final

from .._common import environment, events, forks
from .._torch import cuda_graphs as host
from .._torch import dynamo
from . import kernel_gates

#: Seconds for which ``torch.cuda.synchronize()`` waits for another thread's capture, which takes milliseconds.
CAPTURE_AT_MOST_S: Final = 10.0


class Count:
    """How many top-level compiled calls a thread has made, and how often it has marked the beginning of a step."""

    __slots__ = ("calls", "steps")

    def __init__(self) -> None:
        self.calls = self.steps = 0


class _Token:
    """Lives as long as its thread, also as one that Python has not started."""


class _Calls(threading.local):
    """This thread's count, and what lives as long as it."""

    def __init__(self) -> None:
        self.count, self.alive = Count(), _Token()


calls = _Calls()


class Trees:
    """What one thread has of CUDA graphs, under torch's names; in the thread-local store that autograd passes on."""

    KEY: Final = "safecompile_cuda_graph_trees"

    def __init__(self, containers: Any, locks: Any) -> None:
        self.tree_manager_containers, self.tree_manager_locks = containers, locks
        self.count, self._alive = calls.count, weakref.ref(calls.alive)
        self.functions: list[weakref.ref[Any]] = []

    def are_over(self) -> bool:
        """Tells whether the thread has ended and nobody holds an output of its graphs."""
        return not self.are_in_use() and not any(map(host.has_live_outputs, self.managers()))

    def are_in_use(self) -> bool:
        """Tells whether the thread is alive."""
        return self._alive() is not None

    def end(self) -> None:
        """Shuts the tree managers down, keeps their streams for others, and forgets what replays."""
        try:
            for manager in self.managers():
                device = host.device_of(manager, ())
                with gate("use", device):
                    manager.shutdown()
                if "_safecompile_streams" in vars(manager):
                    streams.setdefault(manager._safecompile_streams, []).append(manager.stream)
        finally:
            for reference in self.functions:
                function = reference()
                if function is not None:
                    function.replays.pop(self, None)

    def managers(self) -> list[Any]:
        """Returns torch's tree managers, one for each device at most."""
        found = [container.tree_manager for container in list(self.tree_manager_containers.values())]
        return [manager for manager in found if manager is not None]


#: The trees of all threads, ended ones too while their outputs live.
all_trees: list[Trees] = []
_beginning = threading.RLock()  # reentrant: a signal handler may call compiled code
_told = False

gates: dict[tuple[str, int], Any] = {}

#: The streams of trees that have ended, by device and the cuBLAS handle that was used with them, for new ones: each
#: stream has a cuBLAS workspace (34 MiB on an H200) with each handle it was used with, and it is never freed.
streams: dict[tuple[int, int], list[Any]] = {}


def take_free_stream(manager: Any, device: int) -> None:
    """Gives a new tree manager the stream of one that has ended and had this thread's cuBLAS handle."""
    key = vars(manager)["_safecompile_streams"] = (device, host.cublas_handle(device))
    free = streams.get(key)
    if free:
        manager.stream = free.pop()


def gate(kind: str, device: int) -> Any:
    """Returns the reentrant lock of a device: ``"use"`` for warm-ups and captures, ``"capture"`` for captures."""
    found = gates.get((kind, device))
    return gates.setdefault((kind, device), threading.RLock()) if found is None else found


def enter(kind: str, device: int) -> Any:
    """Takes the gate of a device, and returns it."""
    found = gate(kind, device)
    if not found.acquire(blocking=False):
        began = monotonic()
        found.acquire()
        events.capture_is_gated(f"cuda:{device}", monotonic() - began)
    return found


def trees_of_this_call() -> Trees | None:
    """Returns the trees of the calling thread, or on an autograd worker of the one that called ``backward()``.

    None if no more threads may have graphs, or on a worker, if the thread that it works for has none.
    """
    mine: Trees | None = host.in_thread(Trees.KEY)
    if mine is not None or dynamo.in_backward():
        return mine
    return _begin()


def end_what_is_over() -> None:
    """Frees the graphs of threads that have ended. Called where a thread begins, and by a reset."""
    with _beginning:
        over = [one for one in all_trees if one.are_over()]
        for one in over:
            all_trees.remove(one)
    for one in over:
        one.end()


def _begin() -> Trees | None:
    global _told
    end_what_is_over()
    with _beginning:
        most = environment.cuda_graph_threads()
        if sum(one.are_in_use() for one in all_trees) < most:
            mine = Trees(*host.containers_of_this_thread())
            host.set_in_thread(Trees.KEY, mine)
            all_trees.append(mine)
            return mine
    if not _told:
        _told = True
        events.log.warning(
            "thread %r runs without CUDA graphs, and so will each further thread: %d threads have them already, each "
            "with memory of its own. Results are the same, calls are slower. SAFECOMPILE_CUDA_GRAPH_THREADS sets their "
            "number. More: docs/debugging.md#errors-and-warnings",
            threading.current_thread().name,
            most,
        )
    return None


def wait_for_captures(device: Any = None) -> None:
    """Returns when no other thread captures on ``device`` (None: the current one), or after ten seconds.

    A thread that holds the compile lock or a kernel's gate waits for half a second at most.
    """
    lock = gates.get(("capture", host.index_of(device))) if gates else None
    if lock is not None and lock.acquire(timeout=_patience_s()):
        lock.release()


@contextmanager
def no_capture_on(device: Any) -> Iterator[None]:
    """Lets no other thread begin a capture on ``device``; waits for one as :func:`wait_for_captures` does."""
    lock = gate("capture", host.index_of(device))
    taken = lock.acquire(timeout=_patience_s())
    try:
        yield
    finally:
        if taken:
            lock.release()


def _patience_s() -> float:
    return 0.5 if dynamo.compiles_here() or kernel_gates.held.count else CAPTURE_AT_MOST_S


def was_in_the_way(error: Exception) -> bool:
    """Tells whether an error is what torch raises on a device on which another thread captures."""
    return bool(gates) and any(text in str(error) for text in host.BESIDE_A_CAPTURE) and not host.captures_here()


@forks.in_child
def after_fork_in_child() -> None:
    """Forgets the gates of the parent's other threads. A forked child can't use CUDA anyway."""
    global _beginning
    for one in (all_trees, gates, streams):
        one.clear()
    _beginning = threading.RLock()

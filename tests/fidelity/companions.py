"""What else lives in the process: each is started right before the program, on both sides."""

from __future__ import annotations

import _thread
import sys
import threading
import time
from pathlib import Path

from .table import FOREIGN, IDLE, INDUCTOR, POLLING


def idle() -> None:
    """A thread that sleeps."""
    threading.Thread(target=threading.Event().wait, name="idle", daemon=True).start()


def polling() -> None:
    """A thread that looks at an event fifty times a second, as heartbeats and progress bars do."""
    never = threading.Event()

    def look() -> None:
        while not never.wait(0.02):
            pass

    threading.Thread(target=look, name="polling", daemon=True).start()


def foreign() -> None:
    """A thread that ``threading`` does not know, as those of C++, Qt or gevent."""
    begun = _thread.allocate_lock()
    begun.acquire()

    def sleep() -> None:
        begun.release()
        time.sleep(1e6)

    _thread.start_new_thread(sleep, ())
    begun.acquire()


def inductor() -> None:
    """A compile with Inductor, and the thread of its pool that a compile with cold caches leaves.

    The files of the compile come from the disk, where ``runner`` had one made; so the pool is given work by hand.
    """
    compile_once()
    from torch._inductor.async_compile import AsyncCompile

    AsyncCompile.pool().submit(int).result()
    before, now = (), _used()
    while now != before:  # its thread still puts away what came of it; a program beside a thread that works is another
        time.sleep(0.05)
        before, now = now, _used()


def _used() -> tuple[int, ...]:
    """Returns the CPU time of each other thread of the process, where the system tells."""
    own = str(threading.get_native_id())
    tasks = sorted(Path("/proc/self/task").glob("*/schedstat"))
    return tuple(int(path.read_text().split()[0]) for path in tasks if path.parent.name != own)


def compile_once() -> None:
    """A small compile with Inductor, the same in each process."""
    import torch

    torch.compile(lambda x: (x.sin() + 1).sum())(torch.ones(64))


STARTED_BY = {IDLE: idle, POLLING: polling, FOREIGN: foreign, INDUCTOR: inductor}


def start(column: str) -> None:
    """Starts what belongs to a column.

    Raises:
        AssertionError: the process has another number of threads than the column is about.
    """
    before = tasks()
    assert before == 1, f"{before} threads before the program"
    if column in STARTED_BY:
        STARTED_BY[column]()
    wanted = 2 if column in STARTED_BY else 1
    known = len(sys._current_frames())
    assert (known, tasks()) == (wanted, wanted) or (column == INDUCTOR and known >= 2), (column, known, tasks())


def tasks() -> int:
    """Returns the number of this process's threads, of whatever kind; 1 where the system does not tell."""
    try:
        return len(list(Path("/proc/self/task").iterdir()))
    except OSError:
        return 1

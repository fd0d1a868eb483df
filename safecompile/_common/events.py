"""What the engine tells: one event for each miss, and a warning when a wait is long.

Nothing here runs on a warm call. Without a listener an event costs one test of an empty tuple.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType

log = logging.getLogger("safecompile")


def _from_environment() -> float:
    text = os.environ.get("SAFECOMPILE_WAIT_WARNING_S", "60")
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if seconds <= 0.0:
        log.warning(
            "SAFECOMPILE_WAIT_WARNING_S is %r, which is not a positive number of seconds: long waits are "
            "reported after 60 s. Set it to a number such as 30.",
            text,
        )
        return 60.0
    return seconds


#: Seconds that a thread waits for another's compile before a WARNING names what it waits for.
wait_warning_s: float = _from_environment()


@dataclass(frozen=True)
class Miss:
    """One call that found no compiled version of its function.

    Args:
        function: the qualified name of the function whose frame missed; with `` (backward)`` behind it, for the
            compile of its backward.
        filename, line: where the function is.
        device: the device that the engine took for the call, for example ``"cuda:1"``.
        thread: the name of the thread.
        role: ``"leader"`` if this thread compiled, ``"follower"`` if it waited for another that did.
        waited_s: seconds spent waiting for another thread.
        compiled_s: seconds spent in the trace, the backend and the guards.
        outcome: ``"compiled"``, ``"reused"``, ``"skipped"`` (torch runs it eagerly), ``"uncompiled"`` (it ran eagerly
            this once: ``max_wait_s`` was over) or ``"failed"``.

    Thread safety: immutable.
    """

    function: str
    filename: str
    line: int
    device: str
    thread: str
    role: str
    waited_s: float
    compiled_s: float
    outcome: str


#: Who wants events. Replaced as a whole, never changed in place, so that reading it needs no lock.
listeners: tuple[Callable[[Miss], None], ...] = ()


def subscribe(listener: Callable[[Miss], None]) -> Callable[[], None]:
    """Calls ``listener`` with each :class:`Miss`, in the thread that missed; returns a function that ends it.

    A listener runs while its thread holds no lock. An exception in it is logged, never raised.

    Thread safety: may be called from any thread at any time.
    """
    global listeners
    listeners = (*listeners, listener)

    def unsubscribe() -> None:
        global listeners
        listeners = tuple(one for one in listeners if one is not listener)

    return unsubscribe


def emit(
    code: CodeType,
    device: str,
    role: str,
    waited_s: float,
    compiled_s: float,
    outcome: str,
    *,
    backward: bool = False,
) -> None:
    """Tells the listeners of one miss, or of the first backward of a compiled function."""
    if not listeners:
        return
    name = getattr(code, "co_qualname", code.co_name) + " (backward)" * backward
    thread = threading.current_thread().name
    miss = Miss(name, code.co_filename, code.co_firstlineno, device, thread, role, waited_s, compiled_s, outcome)
    for listener in listeners:
        try:
            listener(miss)
        except Exception:
            log.exception("a listener of safecompile events raised; the call that it was told of goes on")


def warn_of_wait(code: CodeType, device: str, waited_s: float, holder: int | None) -> None:
    """Logs that this thread waits for ``holder`` (a thread identity), with the holder's stack."""
    frame = sys._current_frames().get(holder) if holder is not None else None
    stack = "".join(traceback.format_stack(frame)) if frame is not None else "  (no such thread any more)\n"
    del frame
    names = {t.ident: t.name for t in threading.enumerate()}
    log.warning(
        "%r has waited %.0f s in the first call of %s (%s:%d) on %s for thread %r, which is compiling. If that "
        "thread waits for this one (a barrier, a queue or a collective inside the compile), the program is "
        "deadlocked, and SAFECOMPILE_MAX_WAIT_S=1 is a way out: a call that has waited for so many seconds runs "
        "uncompiled, this once. Otherwise it goes on when the compile ends. Stack of %r:\n%s",
        threading.current_thread().name,
        waited_s,
        getattr(code, "co_qualname", code.co_name),
        code.co_filename,
        code.co_firstlineno,
        device,
        names.get(holder, "?"),
        names.get(holder, "?"),
        stack,
    )


#: The names of which warn_of_wrapping has told. Each use is one operation, atomic by the GIL.
_told_of: set[str] = set()


def warn_of_wrapping(code: CodeType, name: str) -> None:
    """Logs, once for a name, that ``code`` was compiled while FX had one of the names it uses wrapped."""
    if name in _told_of:
        return
    _told_of.add(name)
    log.warning(
        "%s (%s:%d) was compiled while another thread is inside torch.fx.symbolic_trace, for which FX has wrapped %r "
        "in this file for all threads. The result is right, but the function may be compiled again, which counts in "
        "recompile_limit. To avoid it, trace before the threads start, or keep %r out of a file that is traced.",
        getattr(code, "co_qualname", code.co_name),
        code.co_filename,
        code.co_firstlineno,
        name,
        name,
    )


def warn_of_backward_without_compiled_autograd() -> None:
    """Logs, once, that a backward ran without compiled autograd."""
    if "compiled autograd" in _told_of:
        return
    _told_of.add("compiled autograd")
    log.warning(
        "a backward of %r runs without compiled autograd: it can begin only while no other backward of the process "
        "runs. The gradients are the same. If speed matters, let the threads take turns in backward.",
        threading.current_thread().name,
    )


def warn_of_changing_container(code: CodeType, error: BaseException) -> None:
    """Logs, once for a function, that a call of it runs uncompiled because another thread changes what it reads."""
    where = f"{getattr(code, 'co_qualname', code.co_name)} ({code.co_filename}:{code.co_firstlineno})"
    if where in _told_of:
        return
    _told_of.add(where)
    log.warning(
        "%s runs uncompiled, this once: another thread keeps changing a dict, list or set that it reads, and torch "
        "failed to trace it (%s). The result is as in eager mode; later calls try to compile again. Pass each call a "
        "container of its own, such as a copy.",
        where,
        f"{type(error).__name__}: {error}".partition("\n")[0],
    )


def warn_of_uncompiled(code: CodeType, device: str, waited_s: float) -> None:
    """Logs, once for a function, that a call of it runs uncompiled because another thread's compile takes long."""
    _warn_once(
        code,
        "runs uncompiled on %s, this once: another thread is compiling, and this call has waited %.1f s, which is its "
        "max_wait_s. Later calls look for compiled code again. Such calls are slower and draw other random numbers. To "
        "have none, compile before the threads start (safecompile.warmup), or raise max_wait_s.",
        device,
        waited_s,
    )


def warn_of_wait_without_limit(code: CodeType, why: str) -> None:
    """Logs, once for a function, that a call of it waits for a compile, whatever the limit."""
    _warn_once(
        code,
        "waits for another thread's compile, whatever max_wait_s says: %s. Uncompiled it might fail, hang or take all "
        "memory. To have no wait, compile it before the threads start (safecompile.warmup).",
        why,
    )


def _warn_once(code: CodeType, text: str, *values: object) -> None:
    name = getattr(code, "co_qualname", code.co_name)
    key = f"{text[:10]} {name} ({code.co_filename}:{code.co_firstlineno})"
    if key not in _told_of:
        _told_of.add(key)
        log.warning(f"%s (%s:%d) {text}", name, code.co_filename, code.co_firstlineno, *values)  # noqa: G004

"""What the library tells: events for whoever listens, and warnings. Nothing here runs on a warm call."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from types import CodeType

from . import thread_frames, totals
from .records import OF_OUTCOME, CaptureGated, ForeignTrace, Miss, ResetPutOff
from .telling import deliver, listeners, log, name_of, place, subscribe, tell

__all__ = ["Miss", "deliver", "listeners", "log", "name_of", "place", "subscribe", "tell"]


def _from_environment() -> float:
    text = os.environ.get("SAFECOMPILE_WAIT_WARNING_S", "60")
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not seconds > 0.0:  # nan, too
        log.warning(
            "SAFECOMPILE_WAIT_WARNING_S is %r, which is not a positive number of seconds, so long waits are reported "
            "after 60 s. Set it to a number such as 30. More: docs/debugging.md#errors-and-warnings",
            text,
        )
        return 60.0
    return seconds


#: Seconds that a thread waits for another's compile before a WARNING names what it waits for.
wait_warning_s: float = _from_environment()


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
    """Counts one miss, or the first backward of a compiled function, and tells of it. This thread holds no lock."""
    where = place(code, backward=backward)
    totals.note(where, waited_s, compiled_s, outcome)
    if listeners:
        error = sys.exc_info()[0]
        more = () if outcome != "failed" else ("" if error is None else error.__name__,)
        tell(OF_OUTCOME.get(outcome, Miss), device, where, role, waited_s, compiled_s, outcome, *more)
        deliver()


def capture_is_gated(device: str, seconds: float) -> None:
    """Counts and tells that a warm-up or capture of CUDA graphs has waited for another one."""
    totals.count("captures gated")
    if listeners:
        tell(CaptureGated, device, ("", "", 0), seconds)


def reset_is_put_off(code: CodeType) -> None:
    """Counts and tells that a reset comes a moment later."""
    totals.count("resets put off")
    if listeners:
        tell(ResetPutOff, "", place(code))


def warn_of_wait(code: CodeType, device: str, waited_s: float, holder: int | None) -> None:
    """Logs that this thread waits for ``holder`` (a thread identity), with the holder's stack."""
    frame = thread_frames.of_all_threads().get(holder) if holder is not None else None
    stack = "".join(traceback.format_stack(frame)) if frame is not None else "  (no such thread any more)\n"
    del frame
    names = {t.ident: t.name for t in threading.enumerate()}
    log.warning(
        "thread %r has waited %.0f s in a call of %s (%s:%d) on %s, because thread %r is compiling. It goes on when "
        "that compile ends. If the stack below ends in a wait for another thread (a barrier, a queue, a collective), "
        "this may be a deadlock: move that wait out of the compile, or set SAFECOMPILE_MAX_WAIT_S=1, so that a call "
        "that has waited a second runs uncompiled, this once. More: docs/debugging.md#it-hangs. Stack of %r:\n%s",
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


def warn_of_wrapping(code: CodeType, name: str, device: str = "") -> None:
    """Tells, and logs once for a name, that ``code`` was compiled while FX had one of the names it uses wrapped."""
    if listeners:
        tell(ForeignTrace, device, place(code), name)
        deliver()
    if name in _told_of:
        return
    _told_of.add(name)
    log.warning(
        "%s (%s:%d) was compiled while another thread is inside torch.fx.symbolic_trace, which has replaced %r in this "
        "file for every thread. The result is right, but the function may be compiled once more, which counts in "
        "recompile_limit. To avoid it, trace before the threads start, or keep %r out of files that are traced. "
        "More: docs/debugging.md#it-compiles-again-and-again",
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
        "a backward pass of thread %r runs without compiled autograd, because another thread's backward was running "
        "when it began. The gradients are the same. If speed matters, let the threads take turns in backward. "
        "More: docs/debugging.md#errors-and-warnings",
        threading.current_thread().name,
    )


def warn_of_changing_container(code: CodeType, error: BaseException) -> None:
    """Logs, once for a function, that a call of it runs uncompiled because another thread changes what it reads."""
    where = f"{getattr(code, 'co_qualname', code.co_name)} ({code.co_filename}:{code.co_firstlineno})"
    if where in _told_of:
        return
    _told_of.add(where)
    log.warning(
        "%s runs uncompiled, this once, because another thread keeps changing a dict, list or set that it reads, and "
        "torch could not trace it (%s). Pass each call a container of its own, such as a copy. The next call tries to "
        "compile again. More: docs/debugging.md#it-runs-uncompiled",
        where,
        f"{type(error).__name__}: {error}".partition("\n")[0],
    )


def warn_of_uncompiled(code: CodeType, device: str, waited_s: float) -> None:
    """Logs, once for a function, that a call of it runs uncompiled because another thread's compile takes long."""
    _warn_once(
        code,
        "runs uncompiled on %s, this once: it has waited %.1f s for another thread's compile, which is its max_wait_s. "
        "It is slower, and its dropout draws other numbers; the next call looks for compiled code again. To have none "
        "of this, compile before the threads start (safecompile.warmup), or raise max_wait_s. "
        "More: docs/debugging.md#it-runs-uncompiled",
        device,
        waited_s,
    )


def warn_of_wait_without_limit(code: CodeType, why: str) -> None:
    """Logs, once for a function, that a call of it waits for a compile, whatever the limit."""
    _warn_once(
        code,
        "waits for another thread's compile, whatever max_wait_s says: %s. Uncompiled it might fail, hang or take all "
        "memory. To have no wait, compile it before the threads start (safecompile.warmup). "
        "More: docs/debugging.md#it-is-slow-at-first",
        why,
    )


def _warn_once(code: CodeType, text: str, *values: object) -> None:
    name = getattr(code, "co_qualname", code.co_name)
    key = f"{text[:10]} {name} ({code.co_filename}:{code.co_firstlineno})"
    if key not in _told_of:
        _told_of.add(key)
        log.warning(f"%s (%s:%d) {text}", name, code.co_filename, code.co_firstlineno, *values)

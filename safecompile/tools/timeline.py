"""``safecompile.timeline(path)``: compiles and waits as a trace for Perfetto and Chrome, a track for each thread."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from typing_extensions import Self

from .. import events
from .._common import activity, telling
from . import _files
from ._svg import CATEGORY, is_name, picture

# torch.profiler counts its microseconds from the begin of the current quarter of a year, as long as it says (2.7-2.15).
_QUARTER_NS: Final = 7_889_238 * 10**9


class timeline:  # noqa: N801 - used as a function is
    """Writes what happens in all threads, inside a ``with`` block, as a trace for Perfetto or ``chrome://tracing``.

    Each compile and each wait is a bar in its thread's track, with function and device; other events are marks. The
    clock, the process and the threads are those of ``torch.profiler``'s files: see ``python -m safecompile timeline``
    for both in one. The file is written at the end of the block, also if that raises.

    Args:
        path: the file, by its name's end JSON or, with ``.svg``, a picture.
        most: how many events are kept; of more, the newest.

    Raises:
        OSError: on entering, or on leaving: the file can't be written. On leaving by an exception, a WARNING says so.

    Example::

        with safecompile.timeline("compiles.json"):
            serve()

    Thread safety: may be called from any thread; several may be open at once.
    """

    def __init__(self, path: str | os.PathLike[str], *, most: int = 1_000_000) -> None:
        self.path = Path(path)
        self._recording = events.record(most)

    def __enter__(self) -> Self:
        """Begins to record.

        Thread safety: to be entered by one thread at a time.
        """
        _files.check_writable(self.path)
        self._recording.__enter__()
        return self

    def __exit__(self, error: type[BaseException] | None = None, *_: object) -> None:
        """Ends it and writes the file.

        Thread safety: may be called from any thread.
        """
        self._recording.__exit__()
        trace = as_trace(self._recording)
        try:
            _write(self.path, picture(trace) if self.path.suffix == ".svg" else _json(trace))
        except OSError as problem:
            if error is None:
                raise
            telling.log.warning(
                "the timeline of a block that has raised could not be written to %s (%s). The block's own exception "
                "comes through. Give a path that can be written. More: docs/debugging.md#it-is-slow-at-first",
                self.path,
                problem,
            )


def as_trace(recorded: events.Recording) -> dict[str, Any]:
    """Returns the records, and what has not ended yet, in the trace-event format."""
    wall_ns, at_s = time.time_ns(), time.monotonic()
    base_ns = wall_ns // _QUARTER_NS * _QUARTER_NS

    def us(seconds: float) -> float:
        return (wall_ns - base_ns) / 1e3 + (seconds - at_s) * 1e6

    bars = [*_of_records(recorded, us), *_unfinished(us)]
    return {
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": base_ns,
        "traceEvents": [*bars, *_names(recorded)],
    }


def _of_records(recorded: events.Recording, us: Any) -> Iterator[dict[str, Any]]:
    for one in recorded:
        place = {"function": one.function, "file": one.filename, "line": one.line, "device": one.device}
        if isinstance(one, events.CompileEnded):
            yield _bar("compile", one, us, one.seconds, {**place, "outcome": one.outcome})
        elif isinstance(one, events.Wait):
            yield _bar("wait", one, us, one.seconds, {**place, "reason": one.reason, "holder": one.holder})
        elif isinstance(one, events.CaptureGated):
            yield _bar("capture gated", one, us, one.seconds, place)
        elif isinstance(one, events.Miss):
            yield _mark(one, us, {**place, "role": one.role, "outcome": one.outcome, "waited_s": one.waited_s})
        elif not isinstance(one, events.CompileBegun):
            yield _mark(one, us, place)


def _bar(what: str, one: events.Event, us: Any, seconds: float, args: dict[str, Any]) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": CATEGORY,
        "name": " ".join(filter(None, (what, one.function, one.device and f"on {one.device}"))),
        "pid": os.getpid(),
        "tid": one.thread_id,
        "ts": us(one.at_s - seconds),
        "dur": seconds * 1e6,
        "args": {"what": what, **args},
    }


def _mark(one: events.Event, us: Any, args: dict[str, Any]) -> dict[str, Any]:
    what = args.get("outcome") or {"ForeignTrace": "foreign trace", "ResetPutOff": "reset put off"}[type(one).__name__]
    return {
        "ph": "i",
        "s": "t",
        "cat": CATEGORY,
        "name": f"{what} {one.function}".strip(),
        "pid": os.getpid(),
        "tid": one.thread_id,
        "ts": us(one.at_s),
        "args": {"what": what, **args},
    }


def _unfinished(us: Any) -> Iterator[dict[str, Any]]:
    now = time.monotonic()
    threads = {thread.ident: thread for thread in threading.enumerate()}
    for what, under_way in (("compile", activity.compiling_now()), ("wait", activity.waiting_now())):
        for one in under_way:
            thread = threads.get(one.thread)
            if thread is None or thread.native_id is None:
                continue
            event = events.Event(now, thread.name, thread.native_id, one.device, *one.place)
            place = {"function": event.function, "file": event.filename, "line": event.line, "device": event.device}
            yield _bar(what, event, us, now - one.began, {**place, "outcome": "unfinished"})


def _names(recorded: events.Recording) -> Iterator[dict[str, Any]]:
    names = {one.thread_id: one.thread for one in recorded}
    names.update({one.native_id: one.name for one in threading.enumerate() if one.native_id is not None})
    for thread_id, name in names.items():
        meta = {"ph": "M", "cat": "__metadata", "name": "thread_name", "pid": os.getpid(), "tid": thread_id, "ts": 0}
        yield {**meta, "args": {"name": name}}


def joined(trace: dict[str, Any], profile: Any) -> dict[str, Any]:
    """Returns both traces as one, on the clock of ``profile``, a file of torch.profiler's or another trace.

    Of a thread that both name, the name is that of ``trace``: torch.profiler names all threads after the process.
    """
    theirs = profile if isinstance(profile, dict) else {"traceEvents": profile}
    shift = (trace.get("baseTimeNanoseconds", 0) - theirs.get("baseTimeNanoseconds", 0)) / 1e3
    ours = [{**one, "ts": one["ts"] + shift} if one["ph"] != "M" else one for one in trace["traceEvents"]]
    named = {_thread(one) for one in ours if is_name(one)}
    kept = [one for one in theirs["traceEvents"] if not (is_name(one) and _thread(one) in named)]
    return {**theirs, "traceEvents": [*kept, *ours]}


def _thread(one: dict[str, Any]) -> tuple[Any, Any]:
    return one.get("pid"), one.get("tid")


def run(file: str, output: str | None, profile: str | None) -> str:
    """Makes a picture of the trace in ``file``, or one trace of it and ``profile``; returns the name of what it wrote.

    Raises:
        ValueError: a file can't be read, is no trace, or holds no event of the library's; the message is one sentence.
    """
    trace = _read(file)
    if not any(isinstance(one, dict) and one.get("cat") == CATEGORY for one in trace["traceEvents"]):
        msg = f"{file} holds no compile and no wait: nothing compiled inside 'with safecompile.timeline(...)'."
        raise ValueError(msg)
    other = None if profile is None else _read(profile)
    try:
        made = picture(trace) if other is None else _json(joined(trace, other))
    except (ArithmeticError, AttributeError, LookupError, StopIteration, TypeError) as error:
        msg = f"{file} is no trace that safecompile.timeline has written ({type(error).__name__}: {error})."
        raise ValueError(msg) from error
    path = Path(output or Path(file).with_suffix(".svg" if other is None else ".both.json"))
    _write(path, made)
    return str(path)


def _json(trace: dict[str, Any]) -> str:
    # Letters as they are: Perfetto shows escapes of them in names of threads as they stand.
    return json.dumps(trace, ensure_ascii=False)


def _write(path: Path, text: str) -> None:
    # Halves of letters, as in names of files, become escapes, which JSON knows.
    path.write_text(text, encoding="utf-8", errors="backslashreplace")


def _read(file: str) -> dict[str, Any]:
    try:
        found = json.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        msg = f"{file} can't be read as JSON ({type(error).__name__}: {error})."
        raise ValueError(msg) from error
    found = {"traceEvents": found} if isinstance(found, list) else found
    if not isinstance(found, dict) or not isinstance(found.get("traceEvents"), list):
        msg = f"{file} is no trace: it has no list of traceEvents."
        raise ValueError(msg)  # noqa: TRY004 - it is the file's content
    return found

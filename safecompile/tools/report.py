"""``safecompile.report()`` and ``python -m safecompile report``: what a bug report should tell of this process."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from time import monotonic
from types import FrameType
from typing import Any, Final

from .._common import activity, environment, events, thread_frames, totals
from .._installing import applying, installer
from .._patching.families import Family
from .._patching.patches import late_references
from .._torch import dynamo
from . import _report_text, _stdout

#: How many functions are named, and how many frames of a stack.
FUNCTIONS: Final = 10
FRAMES: Final = 100


class Report:
    """What :func:`report` found out, at one moment. As a string it is made for people; :meth:`as_dict` for programs.

    Thread safety: immutable.
    """

    def __init__(self, found: dict[str, Any]) -> None:
        self._found = found

    def as_dict(self) -> dict[str, Any]:
        """Returns it as a dictionary of what JSON knows.

        Thread safety: may be called from any thread; do not change what it returns.
        """
        return self._found

    def json(self) -> str:
        """Returns it as JSON.

        Thread safety: may be called from any thread.
        """
        return json.dumps(self._found, indent=2)

    def __str__(self) -> str:
        return _report_text.of(self._found)

    __repr__ = __str__


def report(problem: str | None = None) -> Report:
    """Tells what the library does in this process: print it, or put it into a bug report.

    It holds versions, devices, each family of patches and why it is on or off, who compiles and who waits for whom, and
    what came of all misses so far. It names functions, files, lines and threads; it holds no contents of files and no
    values of arguments.

    It waits for nothing and takes no lock of torch's, so it may be called while other threads hang. It does not import
    torch.

    Args:
        problem: something to put on top.

    Thread safety: may be called from any thread at any time.
    """
    torch = sys.modules.get("torch")
    functions = [{**_place(place), **_of_function(one)} for place, one in totals.functions().items()]
    return Report(
        {
            "problem": problem,
            "safecompile": sys.modules["safecompile"].__version__,
            "torch": dynamo.version() or _version("torch"),
            "torch_imported": torch is not None,
            "wrapt": _version("wrapt"),
            "python": sys.version,
            "gil": bool(getattr(sys, "_is_gil_enabled", lambda: True)()),
            "platform": platform.platform(),
            "cuda": getattr(getattr(torch, "version", None), "cuda", None),
            "cuda_devices": _devices(torch),
            "environment": {name: value for name, value in os.environ.items() if name.startswith("SAFECOMPILE_")},
            "installed": installer.is_installed(),
            "disabled": environment.is_disabled(),
            "families": {family.name: _family(family) for family in list(applying.families)},
            "late_references": _late_references(),
            "threads": len(thread_frames.of_all_threads()),
            "compiling": _compiling(),
            "waiting": _waiting(),
            "totals": totals.in_all(),
            "most_compiles": _first(functions, "compiles"),
            "longest_waits": _first(functions, "longest_wait_s"),
        }
    )


def run(*, as_json: bool) -> int:
    """Puts the patches in, compiles one small function to show whether they fit, and prints the report."""
    problem = None
    try:
        import torch
    except ImportError as error:
        problem = f"torch can't be imported ({error}). Install it; safecompile does nothing without it."
    else:
        problem = _try_out(torch)
    found = report(problem)
    _stdout.say(found.json() if as_json else str(found))
    return 0


def _try_out(torch: Any) -> str | None:
    import safecompile

    try:
        safecompile.install()
        # A compile without C++ or Triton: it imports what the patches wait for, and shows whether they fit.
        torch.compile(lambda x: x + 1, backend="aot_eager")(torch.ones(2))
        import torch.nn.attention.flex_attention

        if torch.cuda.is_available():
            torch.cuda.init()
    except Exception as error:  # noqa: BLE001  a report tells of it
        return f"{type(error).__name__}: {error}"
    for name in {part.module for family in applying.families for part in family.parts}:
        # What this torch lacks, or what needs a package that is not there, goes on waiting.
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    return None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _devices(torch: Any) -> list[str]:
    """Returns the names of CUDA's devices, where CUDA is started: asking may start it, and wait."""
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not getattr(cuda, "is_initialized", lambda: False)():
        return []
    return [cuda.get_device_name(index) for index in range(cuda.device_count())]


def _family(family: Family) -> dict[str, Any]:
    """Returns the state of a family: on, off, waiting or not needed, and why."""
    applied = {part.module: len(patches) for part, patches in list(family.applied)}
    state, _, why = installer.state()[family.name].partition(": ")
    if state == "on" and not any(applied.values()):
        state, why = "not needed", "this torch does not have what it mends, or the environment turns it off"
    elif state == "on":
        why = f"patches put in: {sum(applied.values())}"
    elif state == "waiting":
        why = f"for the import of {', '.join(p.module for p in family.parts if not family.has(p))}"
    home = sys.modules.get(family.parts[0].build.__module__)
    is_for = (getattr(home, "__doc__", None) or "").partition("\n")[0]
    fits = {"does_not_fit": family.problem is not None}
    return {"state": state, "why": why, "is_for": is_for, "patches": applied, **fits}


def _late_references() -> list[str]:
    patches = [patch for family in list(applying.families) for _, applied in list(family.applied) for patch in applied]
    return sorted(late_references(patches))


def _place(place: totals.Place) -> dict[str, Any]:
    return dict(zip(("function", "file", "line"), place, strict=True))


def _of_function(one: totals.OfFunction) -> dict[str, Any]:
    return {
        "misses": one.misses,
        "compiles": one.outcomes["compiled"],
        "reused": one.outcomes["reused"],
        "uncompiled": one.outcomes["uncompiled"],
        "failed": one.outcomes["failed"],
        "compiled_s": round(one.compiled_s, 3),
        "longest_wait_s": round(one.longest_wait_s, 3),
    }


def _first(functions: list[dict[str, Any]], by: str) -> list[dict[str, Any]]:
    return sorted((one for one in functions if one[by]), key=lambda one: one[by], reverse=True)[:FUNCTIONS]


def _compiling() -> list[dict[str, Any]]:
    now, frames, found = monotonic(), thread_frames.of_all_threads(), []
    for one in activity.compiling_now():
        stack = _stack(frames.get(one.thread))
        if stack:  # else its thread has ended without a word
            where = {"thread": events.name_of(one.thread), "device": one.device, "for_s": round(now - one.began, 3)}
            found.append({**_place(one.place), **where, "stack": stack})
    return found


def _waiting() -> list[dict[str, Any]]:
    now, owner = monotonic(), _owner()
    return [
        {
            **_place(one.place),
            "thread": events.name_of(one.thread),
            "device": one.device,
            "reason": one.reason,
            "for_s": round(now - one.began, 3),
            "holder": events.name_of(owner) if one.reason == "lock" else one.holder_name,
        }
        for one in activity.waiting_now()
    ]


def _owner() -> int | None:
    from .._engine.flights import owner_of

    return owner_of(dynamo.compile_lock()) if dynamo.loaded(dynamo.CONVERT_FRAME) else None


def _stack(frame: FrameType | None) -> list[str]:
    """Returns names, files and lines of a stack, the innermost first; no source."""
    found: list[str] = []
    while frame is not None and len(found) < FRAMES and frame is not sys._getframe():
        code = frame.f_code
        found.append(f"{getattr(code, 'co_qualname', code.co_name)} ({code.co_filename}:{frame.f_lineno})")
        frame = frame.f_back
    return found

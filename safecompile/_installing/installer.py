"""install() and uninstall(), at a moment when nobody traces."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable
from typing import Any, Final

from .._common import arguments, environment, forks
from .._common.errors import LateInstallWarning, SafeCompileWarning
from .._engine import later, limits
from .._patching.families import Family
from .._patching.patches import late_references
from .._torch import dynamo
from .._torch import fx as torch_fx
from . import applying, imports
from .families import all_families
from .quiet import quiet

_installed = False


def is_installed() -> bool:
    """Tells whether the patches are installed, or wait for torch to be imported.

    Thread safety: may be called from any thread at any time; waits for nothing.
    """
    return _installed


def is_inside_a_trace() -> bool:
    """Tells whether this thread is tracing or compiling: a moment at which nothing can be installed."""
    return torch_fx.traces_here()


def state() -> dict[str, str]:
    """Returns the state of each family of patches: ``"on"``, ``"waiting"`` or ``"off: <why>"``.

    Thread safety: may be called from any thread at any time; waits for nothing.
    """
    if not _installed:
        return {family.name: "off: not installed" for family in applying.families}
    off = f"off: the '{applying.mismatch.family}' patches do not fit this torch" if applying.mismatch else None
    return {one.name: one.state() if one.problem or off is None else off for one in applying.families}


class _AsItIs:
    """The type of ``AS_IT_IS``."""

    def __repr__(self) -> str:
        return "as it is"


AS_IT_IS: Final = _AsItIs()


def install(
    *,
    timeout_s: float = 10.0,
    max_wait_s: float | _AsItIs | None = AS_IT_IS,
    ranks_may_differ: bool | _AsItIs = AS_IT_IS,
) -> None:
    """Installs the patches; if they are installed, does no more than set what else is given.

    Args:
        timeout_s: seconds to wait for traces and compiles of other threads to end.
        max_wait_s: for how many seconds a call waits for another thread's compile before it runs uncompiled, this
            once; 0: it never waits; None: as long as it takes. If it is not given, ``SAFECOMPILE_MAX_WAIT_S`` counts,
            or what an earlier call has given. What must be compiled waits all the same, with a WARNING that says why.
        ranks_may_differ: True: the limit holds beside a process group of several ranks, too, of which one may then run
            uncompiled what another runs compiled. If it is not given, ``SAFECOMPILE_RANKS_MAY_DIFFER`` counts, or what
            an earlier call has given.

    Raises:
        SafeCompileError: ``max_wait_s``, or an environment variable, is not a number of seconds (or threads).
        InstallError: another thread was still tracing or compiling, or had compiled autograd on, after ``timeout_s``;
            or this thread does so; or this Python runs without its global interpreter lock. Nothing was changed.
        TypeError, ValueError: ``timeout_s`` is no number.

    Thread safety: may be called from any number of threads at once; one installs, the others wait for it.
    """
    global _installed
    timeout_s = arguments.seconds("timeout_s", timeout_s)
    if environment.is_disabled():
        return
    set_limits = _limits(max_wait_s, ranks_may_differ)
    if _installed:
        set_limits()
        return
    environment.check_gil()
    environment.cuda_graph_threads()
    callback = dynamo.set_frame_callback(None)  # in a compiled region Dynamo would compile the installation
    try:
        families = all_families()
        _wait_for_imports(families)
        with quiet("install", timeout_s):
            if _installed:
                return
            applying.families[:] = families
            try:
                applying.begin()
            except BaseException:
                applying.end()
                raise
            _installed = True
        set_limits()
        applying.catch_up()
        forks.register()
        _begin_progress()
        _warn_of_late_references()
    finally:
        dynamo.set_frame_callback(callback)


def _limits(max_wait_s: Any, ranks_may_differ: Any) -> Callable[[], None]:
    """Returns what sets the limits of waits for the process; raises for what can be none."""
    if isinstance(max_wait_s, _AsItIs):
        seconds = limits.of_process if _installed else environment.max_wait_s()
    else:
        seconds = environment.seconds_to_wait(max_wait_s)
    if isinstance(ranks_may_differ, _AsItIs):
        ranks_may_differ = limits.ranks_may_differ if _installed else environment.ranks_may_differ()

    def set_limits() -> None:
        limits.of_process, limits.ranks_may_differ = seconds, bool(ranks_may_differ)

    return set_limits


def uninstall(*, timeout_s: float = 10.0) -> None:
    """Brings back the original objects; does nothing if the patches are not installed.

    What somebody else has patched after us is left alone, with a warning. Functions that were compiled stay
    compiled and work as plain torch's.

    Args:
        timeout_s: seconds to wait for traces and compiles of other threads to end.

    Raises:
        InstallError: another thread was still tracing or compiling, or had compiled autograd on, after ``timeout_s``;
            or this thread does so. Nothing was changed.
        TypeError, ValueError: ``timeout_s`` is no number.

    Thread safety: may be called from any number of threads at once; one uninstalls, the others wait for it.
    """
    global _installed
    timeout_s = arguments.seconds("timeout_s", timeout_s)
    if not _installed:
        return
    left: list[str] = []
    callback = dynamo.set_frame_callback(None)
    try:
        with quiet("uninstall", timeout_s):
            if _installed:
                _finish_resets()
                left = applying.end()
                _forget_slots()
                _end_progress()
                _installed = False
    finally:
        dynamo.set_frame_callback(callback)
    for what in left:
        warnings.warn(
            f"safecompile.uninstall() leaves {what} as it is, because something else has patched it since. It "
            "may still call into safecompile. Undo the later patch first, then call uninstall() again.",
            SafeCompileWarning,
            stacklevel=2,
        )
    later.wait_until_over()  # holding nothing


def _wait_for_imports(families: list[Family]) -> None:
    """Waits for imports of torch's modules that other threads are in the middle of. This thread holds no lock."""
    for part in {part.module: part for family in families for part in family.parts}.values():
        module = sys.modules.get(part.module)
        if module is not None and not imports.is_lazy(module) and dynamo.loaded(part.module) is None:
            importlib.import_module(part.module)


def _warn_of_late_references() -> None:
    patches = [patch for family in applying.families for _, applied in family.applied for patch in applied]
    late = [name for name in late_references(patches) if name not in _warned]
    _warned.update(late)
    if late:
        warnings.warn(
            f"these names were taken from torch before safecompile was installed: {', '.join(sorted(late))}. Calls "
            "through them run as in plain torch, unprotected. Put 'import safecompile.patch_all' before the imports "
            "that take them.",
            LateInstallWarning,
            stacklevel=3,
        )


#: The late references that were named already.
_warned: set[str] = set()


def _finish_resets() -> None:
    from .._engine import resets

    resets.catch_up(at_most=sys.maxsize)


def _begin_progress() -> None:
    if environment.wants_progress():
        from .._engine import progress

        progress.begin_for_process()


def _end_progress() -> None:
    if environment.wants_progress():
        from .._engine import progress

        progress.end_for_process()


def _forget_slots() -> None:
    from .._isolation import slots

    slots.forget()

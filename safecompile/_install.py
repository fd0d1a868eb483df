"""Puts the patches in and takes them out: each family of patches whole, or not at all.

A family is a list of parts; a part names a module of torch and a function that returns the patches for it. A part
whose module is not imported yet waits for its import (wrapt's import hooks), so nothing is imported for its sake.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from . import _environment, _torch, _torch_fx
from ._errors import HostMismatchError, InstallError, LateInstallWarning, SafeCompileWarning
from ._families import Family, Part, all_families
from ._globals import GlobalsPatch
from ._patches import AttributePatch, Patch, late_references
from ._rewrite import RewriteError

_families: list[Family] = []
_hooked: set[str] = set()
_installed = False
_active = False  # set before _installed: import hooks apply what they wait for
_mismatch: HostMismatchError | None = None
_fork_handler_registered = False

# Guards everything above. Held while patches are built and exchanged, which calls nothing of the user's.
_installing = threading.RLock()


def is_installed() -> bool:
    """Tells whether the patches are installed, or wait for torch to be imported.

    Thread safety: may be called from any thread at any time; waits for nothing.
    """
    return _installed


def is_inside_a_trace() -> bool:
    """Tells whether this thread is tracing or compiling: a moment at which nothing can be installed."""
    return _torch_fx.traces_here()


def state() -> dict[str, str]:
    """Returns the state of each family of patches: ``"on"``, ``"waiting"`` or ``"off: <why>"``.

    Thread safety: may be called from any thread at any time; waits for nothing.
    """
    if not _installed:
        return {family.name: "off: not installed" for family in _families}
    off = f"off: the '{_mismatch.family}' patches do not fit this torch" if _mismatch else None
    return {one.name: one.state() if one.problem or off is None else off for one in _families}


def install(*, timeout_s: float = 10.0) -> None:
    """Installs the patches; does nothing if they are installed.

    Args:
        timeout_s: seconds to wait for traces and compiles of other threads to end.

    Raises:
        InstallError: another thread was still tracing or compiling after ``timeout_s``, or this Python runs
            without its global interpreter lock. Nothing was changed.

    Thread safety: may be called from any number of threads at once; one installs, the others wait for it.
    """
    global _installed, _active, _mismatch
    if _installed or _environment.is_disabled():
        return
    _environment.check_gil()
    _environment.cuda_graph_threads()
    importlib.import_module("wrapt")
    families = all_families()
    _wait_for_imports(families)
    with _quiet("install", timeout_s):
        if _installed:
            return
        _families[:] = families
        _mismatch = None
        _active = True
        try:
            for family in _families:
                for part in family.parts:
                    _when_imported(family.name, part)
        except BaseException:
            _undo_all()
            _active = False
            raise
        _installed = True
    _catch_up()
    _register_fork_handler()
    _warn_of_late_references()


def uninstall(*, timeout_s: float = 10.0) -> None:
    """Brings back the original objects; does nothing if the patches are not installed.

    What somebody else has patched after us is left alone, with a warning. Functions that were compiled stay
    compiled and work as plain torch's.

    Args:
        timeout_s: seconds to wait for traces and compiles of other threads to end.

    Raises:
        InstallError: another thread was still tracing or compiling after ``timeout_s``. Nothing was changed.

    Thread safety: may be called from any number of threads at once; one uninstalls, the others wait for it.
    """
    global _installed, _active, _mismatch
    if not _installed:
        return
    with _quiet("uninstall", timeout_s):
        if _installed:
            _finish_resets()
            left = _undo_all()
            _forget_slots()
            _installed, _active, _mismatch = False, False, None
            for what in left:
                warnings.warn(
                    f"safecompile.uninstall() leaves {what} as it is: somebody else has patched it since. It may "
                    "still call into safecompile; undo the later patch first, then call uninstall() again.",
                    SafeCompileWarning,
                    stacklevel=2,
                )


@contextmanager
def _quiet(what: str, timeout_s: float) -> Iterator[None]:
    """Waits, for a bounded time, until no other thread traces, compiles or installs, and keeps it so."""
    deadline = time.monotonic() + timeout_s

    if _torch_fx.traces_here():
        msg = (
            f"safecompile.{what}() was called in the middle of a trace or compile of its own thread, where nothing can "
            f"be patched. Nothing was changed. Call {what}() before or after it."
        )
        raise InstallError(msg)

    def give_up(who: str) -> InstallError:
        return InstallError(
            f"safecompile.{what}() waited {timeout_s:g} s for another thread that is {who}. Nothing was changed, and "
            f"compiled functions go on as before. Call {what}() before the threads start, or when they are idle."
        )

    # The order of locks, everywhere: torch's compile lock, a module's import lock, _installing. A thread that imports
    # a part of torch in the middle of a compile takes them so, and whoever has _installing imports nothing.
    lock = _torch.compile_lock() if _torch.loaded(_torch.CONVERT_FRAME) else threading.RLock()
    if not lock.acquire(timeout=max(0.0, timeout_s)):
        raise give_up("compiling")  # noqa: EM101
    try:
        with _installing:  # an installer does no work of the user's: waiting for one needs no limit
            while _torch_fx.another_thread_traces():
                if time.monotonic() > deadline:
                    raise give_up("tracing")  # noqa: EM101
                time.sleep(0.005)
            yield
    finally:
        lock.release()


def _wait_for_imports(families: list[Family]) -> None:
    """Waits for imports of torch's modules that other threads are in the middle of. This thread holds no lock."""
    for part in {part.module: part for family in families for part in family.parts}.values():
        if part.module in sys.modules and _torch.loaded(part.module) is None:
            importlib.import_module(part.module)


def _when_imported(family: str, part: Part) -> None:
    """Applies ``part`` now if its module is there, else at its import."""
    import wrapt

    module = _torch.loaded(part.module)
    if module is not None:
        _apply(family, part, module)
        return
    if part.module in _hooked:
        return
    _hooked.add(part.module)
    _registering.now = True
    try:
        wrapt.register_post_import_hook(_at_import, part.module)
    finally:
        _registering.now = False


class _Registering(threading.local):
    """Whether this thread is in wrapt's registration, which calls the hook at once for a half imported module."""

    now = False


_registering = _Registering()

#: Modules of which another thread began the import after this one had looked, and before it had registered.
_missed: set[str] = set()


def _at_import(module: ModuleType) -> None:
    """Applies each part that has been waiting and whose module is there by now."""
    if _registering.now:
        _missed.add(module.__name__)
        return
    with _installing:
        if _active:
            _apply_waiting(module)


def _apply_waiting(complete: ModuleType | None = None) -> None:
    for family in _families:
        for part in family.parts:
            is_it = complete is not None and part.module == complete.__name__
            module = complete if is_it else _torch.loaded(part.module)
            if module is not None and not family.has(part):
                _apply(family.name, part, module)


def _catch_up() -> None:
    """Waits for the imports that were missed, holding no lock, and applies what waits for them."""
    while _missed:
        importlib.import_module(_missed.pop())
        with _installing:
            if _active:
                _apply_waiting()


def _apply(family_name: str, part: Part, module: ModuleType) -> None:
    """Puts the patches of one part in, or takes its whole family out."""
    family = next(one for one in _families if one.name == family_name)
    if _mismatch is not None:
        if part.module == _torch.CONVERT_FRAME and not any(one.applied for one in _families):
            _refuse_to_compile(family, part, module)
        return
    if family.problem is not None:
        return
    done: list[Patch] = []
    family.applied.append((part, done))
    try:
        for patch in part.build(module):
            done.append(patch)
            patch.apply()
    except (AttributeError, LookupError, TypeError, ValueError, RewriteError, SyntaxError) as error:
        _take_out(family, part, f"{part.module} ({part.build.__name__}): {error}")


def _take_out(family: Family, part: Part, what: str) -> None:
    global _mismatch
    if family.required or _environment.is_strict():
        _undo_all()
        family.problem = what
        _mismatch = HostMismatchError(family.name, what, _torch.version())
        convert_frame = _torch.loaded(_torch.CONVERT_FRAME)
        if convert_frame is not None:
            _refuse_to_compile(family, part, convert_frame)
        return
    _undo(family)
    family.problem = what
    warnings.warn(
        f"safecompile leaves its '{family.name}' patches off: this torch ({_torch.version()}) does not have what they "
        f"need: {what}. The other patches are in. Set SAFECOMPILE_STRICT=1 to make this an error.",
        SafeCompileWarning,
        stacklevel=2,
    )


def _refuse_to_compile(family: Family, part: Part, convert_frame: ModuleType) -> None:
    """Makes the first compile raise, instead of running unprotected without a word."""
    error = _mismatch

    def _patched_callback(*_: Any, **__: Any) -> Any:
        raise error  # type: ignore[misc]

    owner = getattr(convert_frame, "CatchErrorsWrapper", None)
    patch = (
        AttributePatch(sys.modules["torch"], "compile", _patched_callback)
        if owner is None
        else AttributePatch(owner, "__call__", _patched_callback)
    )
    patch.apply()
    family.applied.append((part, [patch]))


def _warn_of_late_references() -> None:
    patches = [patch for family in _families for _, applied in family.applied for patch in applied]
    late = [name for name in late_references(patches) if name not in _warned]
    _warned.update(late)
    if late:
        warnings.warn(
            f"safecompile was installed after these took a reference to a part of torch that it replaces: "
            f"{', '.join(sorted(late))}. Calls through them run as in plain torch. Put 'import safecompile.patch_all' "
            "before the imports that take them.",
            LateInstallWarning,
            stacklevel=3,
        )


#: The late references that were named already.
_warned: set[str] = set()


def _undo(family: Family) -> list[str]:
    left: list[str] = []
    for _, patches in reversed(family.applied):
        for patch in reversed(patches):
            if isinstance(patch, GlobalsPatch):
                patch.is_still_used = bool(left)
            elif left and isinstance(patch, AttributePatch) and patch.name.startswith("__safecompile"):
                continue  # code that somebody else has made of ours may use it
            what = patch.revert()
            if what is not None:
                left.append(what)
    family.applied.clear()
    return left


def _undo_all() -> list[str]:
    return [what for family in reversed(_families) for what in _undo(family)]


def _finish_resets() -> None:
    from . import _reset

    _reset.catch_up(at_most=sys.maxsize)


def _forget_slots() -> None:
    from . import _slots

    _slots.forget()


def _register_fork_handler() -> None:
    global _fork_handler_registered
    if not _fork_handler_registered and hasattr(os, "register_at_fork"):
        _fork_handler_registered = True
        os.register_at_fork(after_in_child=_after_fork_in_child)


def _after_fork_in_child() -> None:
    """The one place where a forked child forgets what the parent's other threads were doing."""
    global _installing
    _installing = threading.RLock()
    if _installed:
        from . import (
            _compiled_autograd,
            _globals,
            _graph_module,
            _graph_trees,
            _miss,
            _scoped_settings,
            _slots,
            _stance,
        )

        _globals.after_fork_in_child()
        _compiled_autograd.after_fork_in_child()
        _graph_trees.after_fork_in_child()
        _graph_module.after_fork_in_child()
        _scoped_settings.after_fork_in_child()
        _slots.after_fork_in_child()
        _stance.after_fork_in_child()
        if _torch.loaded(_torch.CONVERT_FRAME):
            _miss.after_fork_in_child()

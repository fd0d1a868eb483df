"""Applies the parts of families as their modules appear, and takes a family out whose part does not fit.

A part whose module is not imported yet waits for its import (:mod:`.imports`): nothing is imported for its sake.
"""

from __future__ import annotations

import importlib
import sys
import threading
import warnings
from types import ModuleType
from typing import Any

from .._common import environment, forks
from .._common.errors import HostMismatchError, SafeCompileWarning
from .._patching.families import Family, Part
from .._patching.patches import AttributePatch, Patch
from .._patching.rewriting import RewriteError
from .._patching.thread_globals import GlobalsPatch
from .._torch import dynamo
from . import imports

families: list[Family] = []
_finder: imports.Finder | None = None
active = False  # set before the installation is complete: import hooks apply what they wait for
mismatch: HostMismatchError | None = None

# Guards everything above, and whether the library is installed. Held while patches are built and exchanged, which calls
# nothing of the user's.
installing = threading.RLock()


@forks.in_child
def after_fork_in_child() -> None:
    """Makes the lock anew: the thread that held it does not exist in the child."""
    global installing
    installing = threading.RLock()


def begin() -> None:
    """Begins to listen for the imports of the modules that parts wait for. The caller holds ``installing``."""
    global active, _finder
    active = True
    _finder = imports.Finder((part.module for family in families for part in family.parts), _at_import)
    _finder.put_in()
    for family in families:
        for part in family.parts:
            _when_imported(family.name, part)


def end() -> list[str]:
    """Takes everything out; returns what somebody else has patched since. The caller holds ``installing``."""
    global active, mismatch, _finder
    if _finder is not None:
        _finder.take_out()
    left = undo_all()
    active, mismatch, _finder = False, None, None
    return left


def _when_imported(family: str, part: Part) -> None:
    """Applies ``part`` now if its module is there; else its import will tell."""
    module = dynamo.loaded(part.module)
    if module is not None:
        _apply(family, part, module)
    elif part.module in sys.modules and imports.is_lazy(sys.modules[part.module]):
        imports.tell_of(sys.modules[part.module], _at_import)
    elif part.module in sys.modules:
        _missed.add(part.module)


#: Modules of which another thread had begun the import before the finder was in.
_missed: set[str] = set()


def _at_import(module: ModuleType) -> None:
    """Applies each part that has been waiting and whose module is there by now."""
    with installing:
        if active:
            _apply_waiting(module)


def _apply_waiting(complete: ModuleType | None = None) -> None:
    for family in families:
        for part in family.parts:
            is_it = complete is not None and part.module == complete.__name__
            module = complete if is_it else dynamo.loaded(part.module)
            if module is not None and not family.has(part):
                _apply(family.name, part, module)


def catch_up() -> None:
    """Waits for the imports that were missed, holding no lock, and applies what waits for them."""
    while _missed:
        importlib.import_module(_missed.pop())
        with installing:
            if active:
                _apply_waiting()


def _apply(family_name: str, part: Part, module: ModuleType) -> None:
    """Puts the patches of one part in, or takes its whole family out."""
    family = next(one for one in families if one.name == family_name)
    if mismatch is not None:
        if part.module == dynamo.CONVERT_FRAME and not any(one.applied for one in families):
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
    global mismatch
    if family.required or environment.is_strict():
        undo_all()
        family.problem = what
        mismatch = HostMismatchError(family.name, what, dynamo.version())
        convert_frame = dynamo.loaded(dynamo.CONVERT_FRAME)
        if convert_frame is not None:
            _refuse_to_compile(family, part, convert_frame)
        return
    _undo(family)
    family.problem = what
    warnings.warn(
        f"safecompile leaves its '{family.name}' patches out, because this torch ({dynamo.version()}) lacks what they "
        f"need: {what}. All others are in. 'python -m safecompile report' tells what is not protected. "
        "SAFECOMPILE_STRICT=1 makes this an error.",
        SafeCompileWarning,
        stacklevel=2,
    )


def _refuse_to_compile(family: Family, part: Part, convert_frame: ModuleType) -> None:
    """Makes the first compile raise, instead of running unprotected without a word."""
    error = mismatch
    assert error is not None

    def _patched_callback(*_: Any, **__: Any) -> Any:
        # A new one each time: an error that is raised again keeps every traceback, and with it the callers' variables.
        raise HostMismatchError(error.family, error.what, error.version)

    owner = getattr(convert_frame, "CatchErrorsWrapper", None)
    patch = (
        AttributePatch(sys.modules["torch"], "compile", _patched_callback)
        if owner is None
        else AttributePatch(owner, "__call__", _patched_callback)
    )
    patch.apply()
    family.applied.append((part, [patch]))


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


def undo_all() -> list[str]:
    return [what for family in reversed(families) for what in _undo(family)]

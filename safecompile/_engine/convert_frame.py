"""Where torch meets the engine: its callback for a miss, and the code that a compile marks as not to be compiled.

Its file is named as torch's own: torch's logs and errors end the user's part of a stack at such a name (2.7-2.15).
"""

from __future__ import annotations

import functools
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from .._common.errors import shorten
from .._isolation import open_compiles, random_state
from .._patching.families import Part
from .._patching.patches import AttributePatch, MembersPatch, Patch
from .._torch import dynamo
from . import cache_entries, miss, resets
from .flights import Retry


def patches_of_trace_rules(module: ModuleType) -> list[Patch]:
    """Returns the patch that makes Dynamo leave the library's own frames alone; changes nothing.

    Not those of ``safe_compile`` itself: called inside a compiled region, it is inlined as torch.compile is.
    """
    package = Path(__file__).parent.parent
    inlined = {"__init__.py", "_api.py", "installer.py"}
    files = [*package.glob("*.py"), *package.glob("_*/*.py")]
    return [MembersPatch(module.FORCE_SKIP_FILES, (str(f) for f in files if f.name not in inlined))]


def patches_of_convert_frame(module: ModuleType) -> list[Patch]:
    """Returns the patches that put :func:`~.miss.on_miss` in place of torch's callback; changes nothing."""
    original = module.CatchErrorsWrapper.__call__
    parameters = list(inspect.signature(original).parameters)
    passes_on = inspect.getfullargspec(original).varargs is not None  # somebody else's wrapper
    if parameters != ["self", "frame", "cache_entry", "frame_state"] and not passes_on:
        msg = f"CatchErrorsWrapper.__call__(self, frame, cache_entry, frame_state), not {parameters}"
        raise LookupError(msg)
    if not hasattr(module.compile_lock, "_is_owned"):
        msg = "a reentrant lock as compile_lock"
        raise LookupError(msg)
    on_miss = miss.on_miss

    @functools.wraps(original)
    def _patched_callback(self: Any, frame: Any, cache_entry: Any, frame_state: Any) -> Any:
        before = open_compiles.innermost() if dynamo.compiles_here() else None
        try:
            return on_miss(original, self, frame, cache_entry, frame_state)
        except Retry:
            raise
        except BaseException as error:
            shorten(error)
            raise
        finally:
            random_state.ended(before, sys._getframe(1))
            if cache_entries.kept or resets.outdated or resets.put_off:
                resets.catch_up_after_a_miss()

    # A compile puts this in the place of FX's code generator, for the whole process: a GraphModule that another
    # thread builds meanwhile could never be compiled (2.7-2.15). Only the compiling thread's is to be marked.
    mark, plain = module.fx_forward_from_src_skip_result, module.original_forward_from_src

    @functools.wraps(mark)
    def _patched_forward_from_src(*args: Any, **kwargs: Any) -> Any:
        return (mark if dynamo.compile_lock()._is_owned() else plain)(*args, **kwargs)

    return [
        AttributePatch(module.CatchErrorsWrapper, "__call__", _patched_callback),
        AttributePatch(module, "fx_forward_from_src_skip_result", _patched_forward_from_src),
    ]


PARTS: Final = (
    Part("miss", dynamo.CONVERT_FRAME, patches_of_convert_frame),
    Part("miss", dynamo.TRACE_RULES, patches_of_trace_rules),
)

"""What Dynamo does with a frame, by the rules of torch: the private names behind the question. It only tells."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

from .dynamo import EVAL_FRAME, TRACE_RULES, loaded

#: Files outside of torch, and Dynamo's own with the frame that it puts around a module, a function of which Dynamo does
#: not leave alone: it goes by files there, and asking it takes as long as all else that is asked at a miss. Each use is
#: one operation.
_traced_files: set[str] = set()


def is_skipped(frame: Any) -> bool:
    """Tells whether Dynamo leaves this frame alone by its rules (torch's own files and the like)."""
    code = frame.f_code
    if code.co_filename in _traced_files:
        return False
    check = sys.modules[TRACE_RULES].check
    # torch 2.13+ looks at the frame as well: it compiles torch.nn's own forwards. Drop when min torch > 2.12.
    skipped = bool(check(code, frame=frame) if "frame" in _parameters(check) else check(code))
    if not skipped and (not code.co_filename.startswith(_torchs_folder()) or code.co_filename.endswith(_AROUND)):
        _traced_files.add(code.co_filename)
    return skipped


#: The end of the path of the file with ``wrap_inline``.
_AROUND: Final = str(Path("torch", "_dynamo", "external_utils.py"))


@functools.cache
def _torchs_folder() -> str:
    return os.path.dirname(sys.modules["torch"].__file__ or "") + os.sep  # noqa: PTH120 - a prefix of co_filename


def is_disabled_in(caller: FrameType) -> bool:
    """Tells whether ``caller``, which has called the frame that missed, is ``disable(recursive=False)``'s own frame."""
    # torch looks at the frame above its own callback for it, and would find the library's there (2.9-2.15).
    decorators = sys.modules.get("torch._dynamo.decorators")
    return caller.f_code is getattr(decorators, "_nonrecursive_disable_wrapper_code", sys)


@functools.cache
def _parameters(function: Any) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


def is_module_call(code: CodeType) -> bool:
    """Tells whether this is the code of a frame that ``nn.Module.__call__`` puts around ``forward``.

    Also if it was exchanged since that call began: the first has another one while somebody traces.
    """
    from torch.nn import Module

    calls = (Module._wrapped_call_impl.__code__, Module._call_impl.__code__)
    return any(code.co_name == one.co_name and code.co_filename == one.co_filename for one in calls)


def is_frame_around_a_call(frame: FrameType) -> bool:
    """Tells whether ``frame`` is one that torch puts between its wrapper and the function, and that does nothing else.

    A stance puts one of the wrapper's file before the callback; the patched callback is one; a ``GraphModule``
    puts two around its ``forward``.
    """
    code = frame.f_code
    if code.co_filename == sys.modules[EVAL_FRAME].__file__:
        return code.co_name != "compile_wrapper"
    return code.co_name == "_patched_callback" or (
        code.co_name in ("call_wrapped", "__call__")
        and code.co_filename == getattr(loaded("torch.fx.graph_module"), "__file__", None)
    )

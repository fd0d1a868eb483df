"""What must not run uncompiled where it was to run compiled. As :mod:`.dynamo`, it only names and tells."""

from __future__ import annotations

import sys
from types import FrameType, FunctionType
from typing import Any, Final

from .._common import reading
from . import state, threads
from .dynamo import EVAL_FRAME

CHECKPOINT: Final = "torch.utils.checkpoint"
_HIGHER_ORDER: Final = "torch._higher_order_ops"
_FLEX: Final = "torch.nn.attention.flex_attention"
_DISTRIBUTED: Final = "torch.distributed.distributed_c10d"


def what_needs_a_compile(value: Any) -> str | None:
    """Returns what ``value`` is, if a call of it by uncompiled code is not what it is in compiled code; else None.

    A higher-order operator is slow there, holds everything in memory, and compiles by itself. What a checkpoint
    recomputes is compiled or not, which decides what it saves.
    """
    if type(value) is FunctionType:
        # A decorator leaves the one, torch's exposed_in() the other.
        for home in (value.__module__, value.__globals__.get("__name__")):
            found = None if type(home) is not str else _what_is(home, value.__name__)
            if found is not None:
                return found
        return None
    if reading.is_a(value, sys.modules["torch._ops"].HigherOrderOperator):
        return f"the higher-order operator {reading.dictionary(value).get('_name', '')}"
    return None


def _what_is(home: str, name: str) -> str | None:
    if home.startswith(_HIGHER_ORDER) or (home == _FLEX and name == "flex_attention"):
        return f"the higher-order operator {name}"
    return f"{CHECKPOINT}.{name}" if home == CHECKPOINT and name.startswith("checkpoint") else None


def inside_a_checkpoint() -> bool:
    """Tells whether this thread is in a region of ``torch.utils.checkpoint``, or recomputes one."""
    module: Any = sys.modules.get(CHECKPOINT)
    if module is None:
        return False
    file = str(module.__file__)
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == file:
            return True
        frame = frame.f_back
    # One that a hook of a module has begun is in no frame. In torch 2.7 nothing tells of it.
    top = getattr(sys.modules["torch"]._C._autograd, "_top_saved_tensors_default_hooks", None)
    hooks = (top and top(False)) or ()
    return any(type(one) is FunctionType and one.__code__.co_filename == file for one in hooks)


def in_a_process_group() -> bool:
    """Tells whether this process is one of several ranks."""
    module: Any = sys.modules.get(_DISTRIBUTED)
    return module is not None and module.is_initialized() and module.get_world_size() > 1


def stance_forbids_compiles() -> bool:
    """Tells whether the stance of this thread skips guards, or makes an error of each new compile."""
    stance = state.stance(sys.modules[EVAL_FRAME])
    return bool(getattr(stance, state.SKIP_GUARDS, False)) or stance.stance == "fail_on_recompile"


def exports(callback: Any) -> bool:
    """Tells whether a miss is one of ``torch._dynamo.export``, which wants the graph."""
    # torch 2.7-2.8: the attribute is named as for functions. Drop the second name when min torch > 2.8.
    convert = getattr(callback, "_torchdynamo_orig_backend", getattr(callback, "_torchdynamo_orig_callable", None))
    return bool(getattr(convert, "_export", False))


def really_nothing_compiled(fn: Any) -> bool:
    """Tells whether a fullgraph call of ``fn`` has run no compiled frame, or another thread has changed its count."""
    # torch 2.12-2.14. Reasons are collected per thread: a frame that was left alone has one. Frames of torch's own that
    # run around compiled code are left alone too, if Dynamo is asked about them while the count says "not in a call".
    eval_frame = sys.modules[EVAL_FRAME]
    reasons = list(map(str, eval_frame.get_skip_reasons()))
    if any(reason.endswith(_UNCOMPILED) for reason in reasons):
        return False
    if not threads.others_are_alive() or hasattr(fn, "_torchdynamo_disable"):
        return True
    own = (str(eval_frame.__file__), str(sys.modules["torch._compile"].__file__))
    return any(not any(path in reason for path in own) for reason in reasons)


_UNCOMPILED: Final = "safecompile: uncompiled, this once"


def note_uncompiled(frame: Any) -> None:
    """Notes, where a call with fullgraph=True counts its compiled frames, that this one is not to be one."""
    # torch 2.12+ counts.
    note = getattr(sys.modules[EVAL_FRAME], "add_skip_reason", None)
    if note is not None:
        note(_UNCOMPILED, frame)

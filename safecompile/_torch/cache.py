"""The private names of torch's cache entries: compiled versions, their guards, and resets. It only names and tells."""

from __future__ import annotations

import functools
import inspect
import sys
from types import CodeType
from typing import Any

from .._common import reading
from .dynamo import CONVERT_FRAME, DYNAMO_UTILS, EVAL_FRAME, GUARDS

#: What torch logs when a function is compiled again because of a reset.
_RESET = "torch._dynamo.reset()"


def cache_entries(code: CodeType) -> list[Any]:
    """Returns the compiled versions of ``code`` that torch knows, the most recently used first."""
    from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list

    return list(_debug_get_cache_entry_list(code))


def reset_code(code: CodeType) -> None:
    """Frees what torch knows of ``code``, compiled versions included."""
    from torch._C._dynamo import eval_frame

    eval_frame.reset_code(code)


def forget_decisions(code: CodeType) -> None:
    """Has torch ask again what to do with frames of ``code``, if it was to leave them alone for good."""
    from torch._C._dynamo import eval_frame

    types = sys.modules["torch._dynamo.types"]
    ask = types.FrameAction.DEFAULT  # not what FrameExecStrategy() has
    eval_frame.set_code_exec_strategy(code, types.FrameExecStrategy(ask, ask))


def add_failing_guard(guard_manager: Any) -> None:
    """Adds a guard, in C, that holds for no arguments; no other thread is in the middle of the guards meanwhile."""
    never, root = ().__contains__, guard_manager.root
    # torch 2.12+ takes the user's stack too. Drop the other form when min torch > 2.11.
    more = (None,) if "arg2" in (root.add_lambda_guard.__doc__ or "arg2") else ()
    # A check, which fails soon, waits for the mutex of these guards, without the GIL. From there to the second call
    # nothing gives the GIL up, since nothing of it is Python code: so no other check has begun.
    steps = (functools.partial(root.check, {}), functools.partial(root.add_lambda_guard, never, [_RESET], *more))
    list(map(functools.partial.__call__, steps))


def failing_guards(guard_manager: Any, f_locals: Any) -> list[str]:
    """Returns, in torch's words, the guard that does not hold for these arguments."""
    return list(guard_manager.check_verbose(f_locals).verbose_code_parts) if is_live(guard_manager) else []


def is_live(guard_manager: Any) -> bool:
    """Tells whether this is not what torch puts in the place of guards that it has taken out."""
    return not isinstance(guard_manager, sys.modules[GUARDS].DeletedGuardManagerWrapper)


def take_out(entry: Any, extra_state: Any) -> Any:
    """Takes guards and code out of an entry, whose code no thread may be about to use; returns what it has instead."""
    deleted = sys.modules[GUARDS].DeletedGuardManagerWrapper(_RESET)
    extra_state.invalidate(entry, deleted)
    return deleted


def note_for_resets(code: CodeType) -> None:
    """Has the next ``torch._dynamo.reset()`` reset ``code``, which the present one has crossed off."""
    sys.modules[CONVERT_FRAME].input_codes.add(code)


def original_codes(utils: Any) -> Any:
    """Returns torch's weak dictionary from the compiled code of each entry to the function's own code."""
    return utils.orig_code_map


def backend_of(callback: Any) -> Any:
    """Returns what torch's look-up compares a cache entry with: the innermost of the wrapped backends."""
    # torch 2.7-2.8: the attribute is named as for functions. Drop the second name when min torch > 2.8.
    # Each keeps the next in its own dictionary: a backend of the user's is not asked for an attribute.
    for name in ("_torchdynamo_orig_backend", "_torchdynamo_orig_callable"):
        if name in (attributes := reading.dictionary(callback)):
            while name in attributes:
                callback = attributes[name]
                attributes = reading.dictionary(callback)
            return callback
    return callback


def is_same_backend(one: Any, other: Any) -> bool:
    """Tells whether torch's look-up takes one backend for the other; calls no ``__eq__`` of the user's.

    Two calls of ``torch.compile`` with the same options make two objects that are equal. Two objects of the user's that
    say that they are equal are two backends here, which may cost a compile.
    """
    torch = sys.modules["torch"]
    names = ("_TorchCompileInductorWrapper", "_TorchCompileAOTInductorWrapper", "_TorchCompileWrapper")
    return reading.same(one, other, tuple(vars(torch)[name] for name in names if name in vars(torch)))


@functools.cache
def entries_own_backends() -> bool:
    """Tells whether an entry has a reference to its backend, which a bare one has given up (2.11+)."""
    # Older ones do not show it; 2.7 has a pointer and no reference. Drop when min torch > 2.10.
    return hasattr(sys.modules["torch"]._C._dynamo.eval_frame._CacheEntry, "backend")


def backends_kept_alive() -> list[Any]:
    """Returns the backends that torch keeps alive, from the first use of each to the next reset."""
    return list(sys.modules[EVAL_FRAME].cached_backends.values())


#: The function by which a reset resets the backends. It goes through a dictionary that each ``torch.compile`` adds to.
RESET_BACKENDS = "_reset_guarded_backend_cache"


def reset_backends() -> None:
    """Does what torch's function does, beside threads that add backends: these are reset now, or stay for the next."""
    there = sys.modules[EVAL_FRAME].cached_backends
    now = list(there.copy().items())
    for _, backend in now:
        if hasattr(backend, "reset"):
            backend.reset()
    for key, _ in now:
        there.pop(key, None)


def forget_tracebacks(metrics: Any) -> None:
    """Drops the tracebacks that the metrics of an ended compile keep (2.8+): no one reads them, nothing drops them."""
    if metrics._level == 0:
        getattr(metrics, "_edits", []).clear()


#: How long each phase of each compile has taken. A reset empties it, also of what a thread is in the middle of and
#: will look up at its end (KeyError up to torch 2.12, where the backward of a compiled function is such a phase).
TIMES = "compilation_time_metrics"


def keeps_its_list(utils: Any) -> bool:
    """Tells whether a phase keeps what it adds to (2.13+). Drop with the patch when min torch > 2.12."""
    return "metrics" in inspect.unwrap(utils.dynamo_timed).__code__.co_varnames


class Times(dict[str, list[float]]):
    """The same, where a phase that is gone begins anew."""

    def __missing__(self, key: str) -> list[float]:
        return self.setdefault(key, [])


def served_again(entry: Any) -> Any:
    """Returns what a callback must return so that torch runs the compiled code of ``entry`` once more."""
    types = sys.modules["torch._dynamo.types"]
    return types.wrap_guarded_code(
        types.GuardedCode(entry.code, entry.guard_manager, entry.compile_id, entry.trace_annotation)
    )


def skipped_again(callback: Any, result: Any, frame: Any) -> Any:
    """Returns the decision to leave a function alone, with the note that torch makes of it for this thread."""
    # torch 2.12+ collects the reasons for its fullgraph error per thread; older releases have no such method.
    handle = getattr(callback, "_handle_skip", None)
    return result if handle is None else handle(result, frame)


def left_alone_this_once() -> Any:
    """Returns what a callback must return so that torch runs this frame uncompiled, this once, but not its callees."""
    frames = sys.modules[DYNAMO_UTILS].counters["frames"]
    for count in ("total", "ok"):  # as torch counts such a frame
        frames[count] += 1
    return sys.modules["torch._dynamo.types"].ConvertFrameReturn(apply_to_code=False)


@functools.cache  # torch only reads what a callback returns (2.7-2.15)
def uncompiled_this_once() -> Any:
    """Returns what a callback must return so that torch runs this frame, and what it calls, uncompiled, this once."""
    # ConvertFrameReturn() alone would have torch leave the code alone for good, and compile what it calls one by one.
    # What compiled functions the frame calls by themselves are compiled (run on 2.7-2.15).
    types = sys.modules["torch._dynamo.types"]
    skip = types.FrameAction.SKIP
    return types.ConvertFrameReturn(frame_exec_strategy=types.FrameExecStrategy(skip, skip), apply_to_code=False)

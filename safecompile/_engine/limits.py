"""How long a call waits for another thread's compile before it runs uncompiled, and which calls wait all the same.

Uncompiled is right for most functions, and not for all: see :func:`why_it_waits`. A limit of one function belongs to
the context object that ``torch.compile`` has made for it, which the running wrapper holds.
"""

from __future__ import annotations

from time import monotonic
from types import CodeType
from typing import Any, Final

from .._common import events, reading
from .._torch import dynamo, eager
from . import frames, reachable, warming

#: For all functions that have none of their own: seconds, or None for no limit.
of_process: float | None = None

#: A limit holds beside a process group, too: one rank may run uncompiled what another runs compiled.
ranks_may_differ = False

#: Whether some function has had a limit of its own.
_given = False

_OWN: Final = "_safecompile_max_wait_s"


def give(compiled: Any, seconds: float | None) -> Any:
    """Gives what ``torch.compile`` has returned a limit of its own, and returns it; torch may have compiled nothing."""
    global _given
    context = dynamo.context_of_compiled(compiled)
    if context is not None:
        vars(context)[_OWN] = seconds
        _given = True
    return compiled


def of_the_call() -> float | None:
    """Returns the limit of the compiled function that this thread is calling, or of the one that has called it."""
    if warming.is_here():
        return None
    for context in frames.contexts_of_the_call() if _given else ():
        own = reading.dictionary(context)
        if _OWN in own:
            limit: float | None = own[_OWN]
            return limit
    return of_process


class Limit:
    """How long one call may still wait. It is found out where the call first has to, in a thread that holds no lock."""

    __slots__ = ("_callback", "_frame", "_until", "why_none")

    def __init__(self, callback: Any, frame: Any) -> None:
        self._callback, self._frame = callback, frame
        self._until: float | None = None
        self.why_none: str | None = None  # though there is a limit

    def left_s(self) -> float | None:
        """Returns the seconds that are left, or None for no limit."""
        if self._until is None and self.why_none is None:
            limit_s = of_the_call()
            if limit_s is None:
                return None
            self.why_none = why_it_waits(self._callback, self._frame)
            if self.why_none is None:
                self._until = monotonic() + limit_s
        return None if self._until is None else max(0.0, self._until - monotonic())

    def tell(self, code: CodeType, device: str, waited_s: float, *, is_over: bool) -> None:
        """Warns, once for a function, of what this limit has done, or not done, in a call that it is over for."""
        if is_over:
            events.warn_of_uncompiled(code, device, waited_s)
        if self.why_none is not None:
            events.warn_of_wait_without_limit(code, self.why_none)


def tell_of_a_backward(code: CodeType) -> None:
    """Warns, once for a function and if there is any limit, that the compile of its backward is waited for."""
    if _given or of_process is not None:
        events.warn_of_wait_without_limit(code, "its backward is not compiled yet")


def why_it_waits(callback: Any, frame: Any) -> str | None:
    """Returns why a call must not run uncompiled, or None. It calls no code of the user's.

    Asked for a call that would wait, in a thread that holds no lock.
    """
    if dynamo.in_backward():
        return "it runs inside a backward pass"
    if eager.exports(callback):
        return "it is being exported"
    if eager.stance_forbids_compiles():
        return "the stance forbids compiles"
    if not ranks_may_differ and eager.in_a_process_group():
        return (
            "a process group is active, whose ranks might differ in their collectives (if yours can't, pass "
            "ranks_may_differ=True to install() or set SAFECOMPILE_RANKS_MAY_DIFFER=1)"
        )
    if eager.inside_a_checkpoint():
        return "it runs inside torch.utils.checkpoint, whose recomputation would be compiled"
    return reachable.what_needs_a_compile(frame)

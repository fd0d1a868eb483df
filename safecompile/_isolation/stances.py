"""torch.compiler.set_stance: as a context manager or decorator for its own thread, as a plain call for the process.

torch keeps one stance for the process, read by each compiled call. Here it stays one variable; only while some thread
is inside ``with set_stance(...)`` does the variable hold a stance that answers by thread. Outside of that a call
reads what it reads in plain torch.
"""

from __future__ import annotations

import dis
import functools
import sys
import threading
from types import FrameType, ModuleType
from typing import Any

from .._patching.patches import AttributePatch, Patch
from .._torch import state as host
from .._torch import threads

# Guards the exchange of the process's stance. Held for a few assignments; nothing else runs under it.
_exchange = threading.RLock()

#: The stances of the threads that are inside a context, innermost last, by thread identity.
_inside: dict[int, list[Any]] = {}

#: The stance of the process while a by-thread stance stands in its place.
_process: list[Any] = []


class _Making(threading.local):
    """Whether this thread is in the constructor of a ``with set_stance(...)``, where nothing is to be set yet."""

    now = False


_making = _Making()

#: Whether the C flag by which a call skips its guards is per thread (torch 2.15+), as far as could be found out.
_skip_is_per_thread = False


class _ByThread:
    """Stands in the place of torch's stance, and answers as the calling thread's one."""

    def __getattribute__(self, name: str) -> Any:
        stack = _inside.get(threading.get_ident())
        stance = stack[-1] if stack else _process[0] if _process else object()
        value = getattr(stance, name)
        if value is True and name == host.SKIP_GUARDS and not _skip_is_per_thread:
            # Up to torch 2.14 skipping guards in one thread skips them in all: wrong results without a word.
            # With other threads alive the guards are checked, which is slower and right.
            return not threads.others_are_alive()
        return value


_by_thread = _ByThread()


def _enter(module: Any, stance: Any) -> None:
    with _exchange:
        if not _inside:
            _process[:] = [host.stance(module)]
            host.set_stance(module, _by_thread)
        _inside.setdefault(threading.get_ident(), []).append(stance)


def _exit(module: Any) -> None:
    with _exchange:
        stack = _inside[threading.get_ident()]
        stack.pop()
        if not stack:
            del _inside[threading.get_ident()]
        if not _inside:
            host.set_stance(module, _process[0])


def after_fork_in_child() -> None:
    """Forgets the stances of threads that the child does not have."""
    global _exchange
    _exchange = threading.RLock()
    for ident in [ident for ident in _inside if ident != threading.get_ident()]:
        del _inside[ident]
    module = sys.modules.get(host.EVAL_FRAME)
    if module is not None and not _inside and host.stance(module) is _by_thread:
        host.set_stance(module, _process[0])


def patches_of_eval_frame(module: ModuleType) -> list[Patch]:
    """Returns the patch that makes a plain call set the stance of the process, whoever is inside a context."""
    global _skip_is_per_thread
    _skip_is_per_thread = host.skipping_guards_is_per_thread(module)
    original = module._set_stance

    @functools.wraps(original)
    def _patched_set_stance(stance: Any) -> Any:
        with _exchange:
            if not _inside and not _making.now:
                return original(stance)
            original(host.stance(module))  # changes nothing: for torch's check that no compiled region is running
            stack = _inside.get(threading.get_ident())
            prior = stack[-1] if stack else _process[0] if _process else host.stance(module)
            if _making.now:
                return prior
            if stack:
                stack[-1] = stance
            else:
                _process[0] = stance
            return prior

    return [AttributePatch(module, "_set_stance", _patched_set_stance)]


def patches_of_decorators(module: ModuleType) -> list[Patch]:
    """Returns the patches for the class behind torch.compiler.set_stance; changes nothing."""
    cls = module.set_stance
    init, enter, leave = cls.__init__, cls.__enter__, cls.__exit__
    eval_frame = sys.modules[host.EVAL_FRAME]

    @functools.wraps(init)
    def _patched_init(self: Any, *args: Any, **kwargs: Any) -> None:
        _making.now = _is_entered_next(sys._getframe(1))
        try:
            init(self, *args, **kwargs)
        finally:
            self._safecompile_prior = None if _making.now else self.__dict__.get("prev")
            _making.now = False

    @functools.wraps(enter)
    def _patched_enter(self: Any) -> None:
        if self._safecompile_prior is not None:  # made by a plain call, which had set the stance of the process
            eval_frame._set_stance(self._safecompile_prior)
            self._safecompile_prior = None
        enter_quietly(self)
        _enter(eval_frame, self.stance)

    def enter_quietly(self: Any) -> None:
        _making.now = True  # torch's own checks, without setting anything
        try:
            enter(self)
        finally:
            _making.now = False

    @functools.wraps(leave)
    def _patched_exit(self: Any, *_: Any) -> None:  # noqa: ARG001 - torch's signature
        _exit(eval_frame)

    return [
        AttributePatch(module, "_set_stance", eval_frame._set_stance),
        AttributePatch(cls, "__init__", _patched_init),
        AttributePatch(cls, "__enter__", _patched_enter),
        AttributePatch(cls, "__exit__", _patched_exit),
    ]


def _is_entered_next(frame: FrameType | None) -> bool:
    """Tells whether what the call in ``frame`` makes goes straight into a ``with`` statement."""
    while frame is not None:
        last = frame.f_lasti
        following = next((i for i in dis.get_instructions(frame.f_code) if i.offset > last), None)
        if following is None or following.opname != "RETURN_VALUE":
            return following is not None and following.opname in host.WITH_OPCODES
        frame = frame.f_back
    return False

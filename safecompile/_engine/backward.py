"""The backward of a compiled function, which AOTAutograd compiles at the first backward pass: once, by one thread.

torch checks whether it is compiled before it takes any lock, and Inductor alone takes one: N threads compile N
times (2.7-2.15), and up to 2.10 the second one fails. Here the compile lock is taken for every backend, and the
check is made again under it. A thread that waits for the lock here is often one of autograd's workers; it can,
because no trace waits for a backward.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from time import monotonic
from types import ModuleType
from typing import Any, Final

from .._common import activity, events
from .._common.errors import shorten
from .._isolation import kernel_gates, settings
from .._patching.families import Part
from .._patching.patches import AttributePatch, Patch
from .._torch import dynamo
from . import flights, frames, limits


def patches_of_runtime_wrappers(module: ModuleType) -> list[Patch]:
    """Returns the patches for the release that is there; changes nothing."""
    compiler = dynamo.backward_compiler(module)
    if compiler is not None:
        return _patch_of_class(compiler)
    return [_patch_of_post_compile(module.AOTDispatchAutograd)]


def _patch_of_class(compiler: Any) -> list[Patch]:
    original, original_init = compiler.get_or_compile, compiler.__init__

    @functools.wraps(original_init)
    def _patched_init(self: Any, *args: Any, **kwargs: Any) -> None:
        original_init(self, *args, **kwargs)
        self._safecompile_turn = _Turn()

    @functools.wraps(original)
    def _patched_get_or_compile(self: Any, **kwargs: Any) -> Any:
        if self.compiled_bw is not None:
            return self.compiled_bw

        def compiled() -> Any:
            return self.compiled_bw

        def compile_now() -> Any:
            with settings.applied():
                return original(self, **kwargs)

        turn: _Turn = self.__dict__.get("_safecompile_turn") or _Turn()  # made before the patch went in
        try:
            return turn.take(compiled, compile_now)
        except BaseException as error:
            shorten(error)
            raise

    return [
        AttributePatch(compiler, "__init__", _patched_init),
        AttributePatch(compiler, "get_or_compile", _patched_get_or_compile),
    ]


def _patch_of_post_compile(owner: Any) -> Patch:
    original = owner.post_compile

    @functools.wraps(original)
    def _patched_post_compile(*args: Any, **kwargs: Any) -> Any:
        given = [*args, *kwargs.values()]
        config = next((one for one in given if type(one).__name__ == "AOTConfig"), None)
        if config is not None and config.bw_compiler is not None:
            once = dataclasses.replace(config, bw_compiler=_compiling_once(config.bw_compiler))
            args = tuple(once if one is config else one for one in args)
            kwargs = {name: once if one is config else one for name, one in kwargs.items()}
        return original(*args, **kwargs)

    return AttributePatch(owner, "post_compile", staticmethod(_patched_post_compile))


def _compiling_once(compiler: Any) -> Any:
    """Returns ``compiler`` such that its first result is every caller's. One such function serves one graph."""
    first: list[Any] = []
    turn = _Turn()

    @functools.wraps(compiler)
    def once(*args: Any, **kwargs: Any) -> Any:
        def compiled() -> Any:
            return first[0] if first else None

        def compile_now() -> Any:
            first.append(compiler(*args, **kwargs))
            return first[0]

        try:
            return turn.take(compiled, compile_now)
        except BaseException as error:
            shorten(error)
            raise

    return once


class _Turn:
    """The compile of one backward: which forward it belongs to, and the wait for the lock."""

    def __init__(self) -> None:
        self.code, self.device = frames.being_compiled()

    def take(self, compiled: Callable[[], Any], compile_now: Callable[[], Any]) -> Any:
        """Returns ``compiled()`` once the lock is this thread's, or if that is None, what it compiles itself."""
        lock = dynamo.compile_lock()
        if lock._is_owned():
            return compile_now() if compiled() is None else compiled()
        kernel_gates.assert_none_held("the compile lock")
        began = monotonic()
        waited_s = compiled_s = 0.0
        role, outcome = "follower", "failed"
        try:
            try:
                if not lock.acquire(blocking=False):
                    limits.tell_of_a_backward(self.code)
                    flights.wait_for_lock(lock, self.code, self.device)
                waited_s = monotonic() - began
                result = compiled()
                if result is not None:
                    outcome = "reused"
                    return result
                role = "leader"
                with (
                    activity.Compiling(self.code, self.device, backward=True) as this,
                    dynamo.autograd_on_this_thread(),
                ):
                    result = compile_now()
                    this.outcome = "compiled"
                compiled_s, outcome = monotonic() - began - waited_s, "compiled"
                return result
            finally:
                if lock._is_owned():
                    lock.release()
        finally:
            if lock._is_owned():  # an asynchronous exception may have cut the first release short
                lock.release()
            events.emit(self.code, self.device, role, waited_s, compiled_s, outcome, backward=True)


PARTS: Final = (Part("backward", dynamo.AOT_WRAPPERS, patches_of_runtime_wrappers),)

"""torch.compiler.set_stance: as a context manager or decorator for its own thread, as a plain call for the process.

torch keeps one stance for the process, read by each compiled call. Here it stays one variable; only while some thread
sees another stance than the process does (:mod:`.stance_views`) does the variable hold a stance that answers by thread.
Outside of that a call reads what it reads in plain torch.
"""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any, Final

from .._patching.families import Part
from .._patching.patches import AttributePatch, Patch
from .._torch import state as host
from .._torch import threads
from . import stance_contexts as contexts
from . import stance_views as views

#: Whether the C flag by which a call skips its guards is per thread (torch 2.15+), as far as could be found out.
_skip_is_per_thread = False


class _ByThread:
    """Stands in the place of torch's stance, and answers as the calling thread's one."""

    def __getattribute__(self, name: str) -> Any:
        value = getattr(views.seen(), name)
        if value is True and name == host.SKIP_GUARDS and not _skip_is_per_thread:
            # Up to torch 2.14 skipping guards in one thread skips them in all: wrong results without a word.
            # With other threads alive the guards are checked, which is slower and right.
            return not threads.others_are_alive()
        return value


views.by_thread = _ByThread()


def patches_of_eval_frame(module: ModuleType) -> list[Patch]:
    """Returns the patch of the function by which a stance is set; changes nothing."""
    global _skip_is_per_thread
    _skip_is_per_thread = host.skipping_guards_is_per_thread(module)
    views.eval_frame = module
    original = host.setter_of_stances(module)

    @functools.wraps(original)
    def _patched_set_stance(stance: Any) -> Any:
        with views.exchange:
            view = views.current()
            if view is None:
                return original(stance)
            original(host.stance(module))  # changes nothing: for torch's check that no compiled region is running
            prior, view.stance = view.stance, stance
            views.decide(view)
            return prior

    return [AttributePatch(module, host.SET_STANCE, _patched_set_stance)]


def patches_of_decorators(module: ModuleType) -> list[Patch]:
    """Returns the patches for the class behind torch.compiler.set_stance; changes nothing."""
    cls, original, eval_frame = module.set_stance, host.setter_of_stances(module), sys.modules[host.EVAL_FRAME]
    if original is host.setter_of_stances(eval_frame):
        # Imported after the patch above went in, it has taken the patched one from there.
        original = getattr(original, "__wrapped__", original)
    init, call = cls.__init__, cls.__call__

    @functools.wraps(original)
    def _patched_set_stance(stance: Any) -> Any:
        with views.exchange:
            return contexts.construct(stance, original)

    @functools.wraps(init)
    def _patched_init(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        contexts.constructed(self)

    @functools.wraps(call)
    def _patched_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with views.exchange:
            contexts.cancel(self)
        decorated = call(self, *args, **kwargs)  # sets what was there before the construction
        views.settle()
        return decorated

    setter = AttributePatch(module, host.SET_STANCE, _patched_set_stance)
    setter.original = original
    return [
        setter,
        AttributePatch(cls, "__init__", _patched_init),
        AttributePatch(cls, "__call__", _patched_call),
        *_patches_of_entering(cls, original, eval_frame),
    ]


def _patches_of_entering(cls: Any, original: Any, eval_frame: ModuleType) -> list[Patch]:
    leave = cls.__exit__

    @functools.wraps(cls.__enter__)
    def _patched_enter(self: Any) -> None:
        with views.exchange:
            original(host.stance(eval_frame))
            contexts.enter(self)

    @functools.wraps(leave)
    def _patched_exit(self: Any, *error: Any) -> None:
        with views.exchange:
            original(host.stance(eval_frame))
            if not contexts.leave(self):  # it was entered before the patches went in
                leave(self, *error)
                views.settle()

    return [AttributePatch(cls, "__enter__", _patched_enter), AttributePatch(cls, "__exit__", _patched_exit)]


PARTS: Final = (
    Part("stance", host.EVAL_FRAME, patches_of_eval_frame),
    Part("stance", host.DECORATORS, patches_of_decorators),
)

"""The objects that ``torch.compiler.set_stance`` makes: what becomes of the views as one is made, entered and left.

Each knows the views (:mod:`.stance_views`) in which it was entered. The lock of the views is held by whoever enters,
cancels, leaves or constructs one.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, Final

from .._torch import state as host
from . import stance_views as views

#: The name of the attribute in which a context keeps the views in which it was entered.
_ENTERED: Final = "_entered"


class _Entered(list[views.View]):
    """The views in which a context was entered, the innermost last. A copy of the context was entered nowhere."""

    def __reduce__(self) -> tuple[Any, ...]:
        return list, ()


def construct(stance: Any, replace: Callable[[Any], Any]) -> Any:
    """Sets the stance of a context that is being made by torch's ``replace``; returns what it was."""
    view = views.here.view
    if view is not None and not view.is_over:
        views.decide(view)
    standing = replace(views.by_thread)
    if view is None or view.is_over:
        view = views.begin(standing)
    prior, view.stance = view.stance, stance
    return prior


def constructed(context: Any) -> None:
    """Has the stance wait for what becomes of its context."""
    view = views.here.view
    if view is not None and not view.is_over:
        view.pending = weakref.ref(context, functools.partial(_gone, view))
        if not view.depth:
            views.undecided.append(view)


def _gone(view: views.View, context: weakref.ref[Any]) -> None:
    with views.exchange:
        if view.pending is context:
            views.decide(view)


def enter(context: Any) -> None:
    view = views.here.view
    if view is None or view.is_over or view.pending is None or view.pending() is not context:
        if view is not None:
            views.decide(view)
        cancel(context)
        if (view is None or view.is_over) and views.of_process() is context.stance:
            views.set_process(context.prev)  # the construction had become a plain call
        if view is None or view.is_over:
            standing = host.stance(views.eval_frame)
            host.set_stance(views.eval_frame, views.by_thread)
            view = views.begin(standing)
    if not view.depth and view in views.undecided:
        views.undecided.remove(view)
    view.stance, view.pending = context.stance, None
    view.depth += 1
    entered = context.__dict__.get(_ENTERED)
    if entered is None:
        context.__dict__[_ENTERED] = _Entered((view,))
    else:
        entered.append(view)


def cancel(context: Any) -> None:
    """Has the thread that has made the context and not entered it see what it saw before."""
    prior = context.prev
    for view in tuple(views.undecided):
        if view.pending is not None and view.pending() is context:
            view.stance = prior
            views.decide(view)


def leave(context: Any) -> bool:
    """Leaves a context, in whichever thread; tells whether it was entered at all, as far as the library knows."""
    entered = context.__dict__.get(_ENTERED)
    if not entered:
        return False
    view, mine = entered.pop(), views.here.view
    if view is not mine and mine in entered:
        entered.append(view)
        del entered[len(entered) - 1 - entered[::-1].index(mine)]
        view = mine
    view.stance, view.pending = context.prev, None
    view.depth -= 1
    if not view.depth:
        views.end(view)
    return True

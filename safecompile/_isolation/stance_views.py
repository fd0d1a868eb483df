"""The stance that a thread sees while it is not the process's: see :mod:`.stances`, which puts it in torch's place.

A thread's own stance is a :class:`View`: a variable to which ``set_stance`` assigns as torch assigns to the process's.
It begins with the first context that the thread enters and ends with the last, whoever leaves that one: each context
object knows the views in which it was entered. What it holds at the end is what torch would leave behind.

Is it a plain call, or will it be entered? Nobody can tell at the construction, and nothing is guessed. The stance is
the thread's own at once, and *pending*. It becomes a context's when it is entered. It becomes the process's

- when its object dies, which for ``set_stance(…)`` as a statement is at once;
- when its own thread sets another stance, or makes a compiled call;
- when another thread makes a compiled call. This one lets the first go on before it decides, for ``ENTERED_WITHIN_S``
  at most: between construction and entry lie microseconds.

A stance that is entered after all, later, is taken back from the process then.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from time import monotonic, sleep
from typing import Any, Final

from .._common import forks
from .._torch import state as host

# Guards the exchange of the process's stance. Held for a few assignments; nothing else runs under it but torch's check
# that no compiled region is running. Reentrant, since a finalizer may set a stance.
exchange = threading.RLock()

#: How long a compiled call waits for another thread that has made a ``set_stance``, and may be about to enter it.
ENTERED_WITHIN_S: Final = 0.02

#: What stands in the place of torch's stance and answers by thread, and torch's module. Set by :mod:`.stances`.
by_thread: Any = None
eval_frame: Any = None

#: The name of the attribute in which a context keeps the views in which it was entered.
_ENTERED: Final = "_entered"


class View:
    """What one thread sees: ``base`` is the process's stance when it began, ``depth`` how many contexts are open."""

    base: Any
    stance: Any
    key: int
    depth = 0
    is_over = False
    pending: weakref.ref[Any] | None = None


class _Entered(list[View]):
    """The views in which a context was entered, the innermost last. A copy of the context was entered nowhere."""

    def __reduce__(self) -> tuple[Any, ...]:
        return list, ()


#: The views that are not over, by the id of their living thread's object.
_views: dict[int, View] = {}


class _Thread:
    """This thread, as an object that ends with it."""

    def __del__(self, forget: Any = _views.pop) -> None:
        forget(id(self), None)


class _Here(threading.local):
    view: View | None = None

    def __init__(self) -> None:
        self.thread = _Thread()


_here = _Here()

#: The views of which nobody knows yet whether they become the process's. Kept here over the end of their thread.
_undecided: list[View] = []

#: The stance of the process, while the by-thread stance stands in its place.
_process: list[Any] = [None]


def seen() -> Any:
    """Returns the stance that a compiled call of this thread is to see, and decides what is undecided."""
    view = current()
    if view is not None and view.depth:
        view.pending = None
        return view.stance
    if view is None and not _undecided and _views:
        return _of_process()
    with exchange:
        if view is not None:
            decide(view)
    deadline = monotonic() + ENTERED_WITHIN_S
    while _undecided and monotonic() < deadline:
        sleep(0.001)
    with exchange:
        for one in tuple(_undecided):
            decide(one)
        if not _views:
            _stand_down()
        return _of_process()


def current() -> View | None:
    """Returns this thread's view, or None."""
    view = _here.view
    if view is not None and view.is_over:
        view = _here.view = None
    return view


def _of_process() -> Any:
    standing = host.stance(eval_frame)
    return _process[0] if standing is by_thread else standing


# What follows is called with the lock held.


def _set_process(stance: Any) -> None:
    if host.stance(eval_frame) is by_thread:
        _process[0] = stance
    else:
        host.set_stance(eval_frame, stance)


def _begin(standing: Any) -> View:
    """Returns a new view for this thread, which has none. ``standing`` stood in the place of torch's stance."""
    if standing is not by_thread:
        _process[0] = standing
    view = _here.view = View()
    view.base = view.stance = _process[0]
    view.key = id(_here.thread)
    _views[view.key] = view
    return view


def _end(view: View) -> None:
    """Ends a view. What torch would leave behind becomes the process's."""
    view.is_over, view.pending = True, None
    if view.stance is not view.base:
        _set_process(view.stance)
    if _views.get(view.key) is view:
        del _views[view.key]
    if not _views:
        _stand_down()


def _stand_down() -> None:
    if host.stance(eval_frame) is by_thread:
        host.set_stance(eval_frame, _process[0])


def decide(view: View) -> None:
    """Takes what was set last in ``view`` for a plain call."""
    view.pending = None
    if view in _undecided:
        _undecided.remove(view)
    if not view.depth and not view.is_over:
        _end(view)


def settle() -> None:
    """Decides that what this thread has set last was a plain call."""
    with exchange:
        view = current()
        if view is not None:
            decide(view)


def construct(stance: Any, replace: Callable[[Any], Any]) -> Any:
    """Sets the stance of a context that is being made by torch's ``replace``; returns what it was."""
    view = _here.view
    if view is not None and not view.is_over:
        decide(view)
    standing = replace(by_thread)
    if view is None or view.is_over:
        view = _begin(standing)
    prior, view.stance = view.stance, stance
    return prior


def constructed(context: Any) -> None:
    """Has the stance wait for what becomes of its context."""
    view = _here.view
    if view is not None and not view.is_over:
        view.pending = weakref.ref(context, functools.partial(_gone, view))
        if not view.depth:
            _undecided.append(view)


def _gone(view: View, context: weakref.ref[Any]) -> None:
    with exchange:
        if view.pending is context:
            decide(view)


def enter(context: Any) -> None:
    view = _here.view
    if view is None or view.is_over or view.pending is None or view.pending() is not context:
        if view is not None:
            decide(view)
        cancel(context)
        if (view is None or view.is_over) and _of_process() is context.stance:
            _set_process(context.prev)  # the construction had become a plain call
        if view is None or view.is_over:
            standing = host.stance(eval_frame)
            host.set_stance(eval_frame, by_thread)
            view = _begin(standing)
    if not view.depth and view in _undecided:
        _undecided.remove(view)
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
    for view in tuple(_undecided):
        if view.pending is not None and view.pending() is context:
            view.stance = prior
            decide(view)


def leave(context: Any) -> bool:
    """Leaves a context, in whichever thread; tells whether it was entered at all, as far as the library knows."""
    entered = context.__dict__.get(_ENTERED)
    if not entered:
        return False
    view, mine = entered.pop(), _here.view
    if view is not mine and mine in entered:
        entered.append(view)
        del entered[len(entered) - 1 - entered[::-1].index(mine)]
        view = mine
    view.stance, view.pending = context.prev, None
    view.depth -= 1
    if not view.depth:
        _end(view)
    return True


@forks.in_child
def after_fork_in_child() -> None:
    """Forgets the stances of threads that the child does not have."""
    global exchange
    exchange = threading.RLock()
    for view in tuple(_undecided):
        decide(view)
    for key in [key for key in _views if key != id(_here.thread)]:
        del _views[key]
    if not _views and eval_frame is not None:
        _stand_down()

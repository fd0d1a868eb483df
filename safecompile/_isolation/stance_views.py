"""The stance that a thread sees while it is not the process's: see :mod:`.stances`, which puts it in torch's place.

A thread's own stance is a :class:`View`: a variable to which ``set_stance`` assigns as torch assigns to the process's.
It begins with the first context that the thread enters and ends with the last, whoever leaves that one: each context
object knows the views in which it was entered (:mod:`.stance_contexts`). What it holds at the end is what torch would
leave behind.

Is it a plain call, or will it be entered? Nobody can tell at the construction, and nothing is guessed. The stance is
the thread's own at once, and *pending*. It becomes a context's when it is entered. It becomes the process's

- when its object dies, which for ``set_stance(…)`` as a statement is at once;
- when its own thread sets another stance, or makes a compiled call;
- when another thread makes a compiled call. This one lets the first go on before it decides, for ``ENTERED_WITHIN_S``
  at most: between construction and entry lie microseconds.

A stance that is entered after all, later, is taken back from the process then.
"""

from __future__ import annotations

import threading
import weakref
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


class View:
    """What one thread sees: ``base`` is the process's stance when it began, ``depth`` how many contexts are open."""

    base: Any
    stance: Any
    key: int
    depth = 0
    is_over = False
    pending: weakref.ref[Any] | None = None


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


here = _Here()

#: The views of which nobody knows yet whether they become the process's. Kept here over the end of their thread.
undecided: list[View] = []

#: The stance of the process, while the by-thread stance stands in its place.
_process: list[Any] = [None]


def seen() -> Any:
    """Returns the stance that a compiled call of this thread is to see, and decides what is undecided."""
    view = current()
    if view is not None and view.depth:
        view.pending = None
        return view.stance
    if view is None and not undecided and _views:
        return of_process()
    with exchange:
        if view is not None:
            decide(view)
    deadline = monotonic() + ENTERED_WITHIN_S
    while undecided and monotonic() < deadline:
        sleep(0.001)
    with exchange:
        for one in tuple(undecided):
            decide(one)
        if not _views:
            _stand_down()
        return of_process()


def current() -> View | None:
    """Returns this thread's view, or None."""
    view = here.view
    if view is not None and view.is_over:
        view = here.view = None
    return view


def of_process() -> Any:
    standing = host.stance(eval_frame)
    return _process[0] if standing is by_thread else standing


# What follows is called with the lock held.


def set_process(stance: Any) -> None:
    if host.stance(eval_frame) is by_thread:
        _process[0] = stance
    else:
        host.set_stance(eval_frame, stance)


def begin(standing: Any) -> View:
    """Returns a new view for this thread, which has none. ``standing`` stood in the place of torch's stance."""
    if standing is not by_thread:
        _process[0] = standing
    view = here.view = View()
    view.base = view.stance = _process[0]
    view.key = id(here.thread)
    _views[view.key] = view
    return view


def end(view: View) -> None:
    """Ends a view. What torch would leave behind becomes the process's."""
    view.is_over, view.pending = True, None
    if view.stance is not view.base:
        set_process(view.stance)
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
    if view in undecided:
        undecided.remove(view)
    if not view.depth and not view.is_over:
        end(view)


def settle() -> None:
    """Decides that what this thread has set last was a plain call."""
    with exchange:
        view = current()
        if view is not None:
            decide(view)


@forks.in_child
def after_fork_in_child() -> None:
    """Forgets the stances of threads that the child does not have."""
    global exchange
    exchange = threading.RLock()
    for view in tuple(undecided):
        decide(view)
    for key in [key for key in _views if key != id(here.thread)]:
        del _views[key]
    if not _views and eval_frame is not None:
        _stand_down()

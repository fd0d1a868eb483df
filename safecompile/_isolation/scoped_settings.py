"""Settings that are changed for a while, up to torch 2.11, where a setting belongs to the process.

``config.patch``, ``disable_cache_limit`` and ``_set_compilation_env`` (eager ``flex_attention``, ``cond``, …) save a
setting and put it back: two that overlap in two threads leave a value behind (``recompile_limit`` at ``sys.maxsize``,
seen on 2.7.1), and other threads' compiles see it. Here such a change opens a :class:`_View`: while a thread is inside,
the setting is a variable of the thread, to which patches and plain assignments assign as torch assigns to the
process's. It ends with the last of its changes, whichever thread ends that one: each change knows its view.
``config.patch`` acts in its own thread, and in others as long as they do not compile; the other two in their own thread
alone (:mod:`.scoped_assignments`). While there are no views, settings are read as without this library.
"""

from __future__ import annotations

import functools
import threading
from types import ModuleType
from typing import Any, NamedTuple

from .._common import forks
from .._patching.patches import AttributePatch, Patch
from .._torch import dynamo
from .._torch import settings as host

# A leaf lock around the views, held for a few assignments. Reentrant, since a signal handler may patch.
_bookkeeping = threading.RLock()


class _View:
    """One setting as one thread sees it: ``raw`` is the process's value when it began, ``base`` how that was read."""

    def __init__(self, entry: Any, base: Any) -> None:
        self.entry, self.base, self.raw = entry, base, entry.__dict__.get("user_override", _unset())
        self.value: Any = None
        self.depth = 0
        self.shown = False  # to other threads, as long as they do not compile

    def read(self) -> Any:
        """Returns the setting's value, as torch reads it."""
        return self.base if self.value is _unset() else self.value


class _Here(threading.local):
    """The views of this thread, by the id of torch's record of the setting."""

    def __init__(self) -> None:
        self.views: dict[int, _View] = {}


_here = _Here()

#: All views by the id of torch's record, the newest last. The lists are replaced, never changed. Guarded by the lock.
_views: dict[int, list[_View]] = {}


def _unset() -> Any:
    return host.unset()


class _Override:
    """Stands for ``user_override`` in the class of torch's records while there are views."""

    def __init__(self, default: Any) -> None:
        self.default = default

    def __get__(self, entry: Any, owner: Any = None) -> Any:
        if entry is None:
            return self.default
        own = _own(entry)
        if own is not None:
            return own.value
        for view in reversed(_views.get(id(entry), ())):
            if view.shown:
                if dynamo.compiles_here() and not dynamo.in_backward():
                    break
                return view.value
        return entry.__dict__.get("user_override", self.default)

    def __set__(self, entry: Any, value: Any) -> None:
        own = _own(entry)
        if own is not None:
            own.value = value
            return
        entry.__dict__["user_override"] = value
        for view in _views.get(id(entry), ()):
            view.shown = False  # this one is newer


def _own(entry: Any) -> _View | None:
    view = _here.views.get(id(entry))
    if view is None or view.depth:
        return view
    del _here.views[id(entry)]  # it is over: another thread may have ended it
    return None


class _Change(NamedTuple):
    view: _View
    prior: Any


def change(config: Any, name: str, value: Any, *, shown: bool = False) -> _Change:
    """Changes a setting for this thread, and if ``shown`` for threads that do not compile; returns how to end it."""
    entry = host.entry_of(config, name)
    with _bookkeeping:
        view = _own(entry)
        if view is None:
            _stand()
            view = _here.views[id(entry)] = _View(entry, host.process_value(config, name))
            _views[id(entry)] = [*_views.get(id(entry), ()), view]
        made = _Change(view, view.read() if view.depth else view.base)
        view.depth += 1
        view.value, view.shown = value, view.shown or shown
    _mark(config, entry)
    return made


def change_back(config: Any, name: str, _: Any, made: _Change) -> None:
    """Ends a change, in whichever thread: what its thread had before, it has again."""
    view = made.view
    with _bookkeeping:
        view.value = made.prior
        view.depth -= 1
        if not view.depth:
            _end(view)
    _mark(config, host.entry_of(config, name))


def _end(view: _View) -> None:
    """Ends a view, and leaves behind what torch would: but not over what another thread has assigned meanwhile."""
    raw = view.entry.__dict__.get("user_override", _unset())
    if raw is view.raw or view.value is not view.base:
        view.entry.__dict__["user_override"] = view.value
    others = [one for one in _views.get(id(view.entry), ()) if one is not view]
    if others:
        _views[id(view.entry)] = others
    else:
        _views.pop(id(view.entry), None)
    _stand_down()


def _mark(config: Any, entry: Any) -> None:
    host.touch(config)
    entry.hide = False


def _stand() -> None:
    standing = vars(host.entry_class()).get("user_override")
    if not isinstance(standing, _Override):
        host.entry_class().user_override = _Override(standing)


def _stand_down() -> None:
    standing = vars(host.entry_class()).get("user_override")
    if not _views and isinstance(standing, _Override):
        host.entry_class().user_override = standing.default


class _Patching:
    """What ``config.patch`` returns: mixed in before torch's class, so that it decorates classes of tests too."""

    config: Any
    changes: dict[str, Any]
    entered: list[dict[str, _Change]]

    def __enter__(self) -> None:
        for name in self.changes:
            getattr(self.config, name)  # an unknown one raises
        self.entered.append({name: change(self.config, name, new, shown=True) for name, new in self.changes.items()})

    def __exit__(self, *_: object) -> None:
        entered = tuple(self.entered)
        mine = [one for one in entered if any(_own(made.view.entry) is made.view for made in one.values())]
        for ends in (mine or entered)[-1:]:
            self.entered[:] = [one for one in self.entered if one is not ends]
            for name, made in reversed(ends.items()):  # an alias may have changed one setting twice
                change_back(self.config, name, None, made)


def patches_of_config_module(module: ModuleType) -> list[Patch]:
    """Returns the patch for ``config.patch``; changes nothing."""
    original = module.ConfigModule.patch
    host.check_entries()
    kind: Any = type("ConfigPatch", (_Patching, module.ContextDecorator), {"__module__": module.__name__})

    @functools.wraps(original)
    def _patched_patch(self: Any, arg1: Any = None, arg2: Any = None, **kwargs: Any) -> Any:
        original(self, arg1, arg2, **kwargs)  # checks the form, and does nothing before it is entered
        made = kind()
        made.config, made.entered = self, []
        made.changes = kwargs if arg1 is None else arg1 if arg2 is None else {arg1: arg2}
        return made

    return [AttributePatch(module.ConfigModule, "patch", _patched_patch)]


@forks.in_child
def after_fork_in_child() -> None:
    """Forgets the changes of the parent's other threads: they do not exist in the child."""
    global _bookkeeping
    _bookkeeping = threading.RLock()
    _views.clear()
    _views.update({ident: [view] for ident, view in _here.views.items() if view.depth})
    if _views or host.has_entries():
        _stand_down()

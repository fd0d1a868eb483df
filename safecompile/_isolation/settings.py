"""The settings that a compile sees: torch._dynamo.config, torch._inductor.config, torch._functorch.config.

Since torch 2.12 each setting is a context variable: what the main thread assigns does not exist in worker threads,
nor on autograd's. Here a compile sees, for each setting: its own context's value, if it has one; else the newest plain
assignment (``config.x = v``) of another thread, or of a task of another thread that is still there; else, in another
thread than the one that called ``torch.compile``, the value there at that moment. ``config.patch`` stays in its
context. Applied for the time of a compile only. What a thread assigns in one context never reaches another context of
the same thread: there everything is as in plain torch.

``SAFECOMPILE_SETTINGS=0`` turns it off. Up to torch 2.11 settings belong to the process: see :mod:`.scoped_settings`.
"""

from __future__ import annotations

import functools
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import CodeType, ModuleType
from typing import Any, Final, NamedTuple

from .._common import identity
from .._patching.families import Part
from .._patching.patches import AttributePatch, Patch
from .._torch import dynamo
from .._torch import settings as host
from . import scoped_settings

#: The name of a config module, and of a setting in it.
Key = tuple[str, str]


class _Note(NamedTuple):
    """One plain assignment: what was assigned, by which thread and asyncio task, and what it stands in front of."""

    config: Any
    value: Any
    thread: object
    task: weakref.ref[Any] | None
    earlier: _Note | None


#: The newest plain assignment of each setting. Each use is one operation on a dictionary, atomic by the GIL.
_newest: dict[Key, _Note] = {}

#: The settings that patches of this context have changed and that had no value before: how often one in the other.
_lacking: ContextVar[dict[Key, int]] = ContextVar("safecompile: settings that had no value", default={})  # noqa: B039

#: What these patches have put back, which is no value of the context's own: the default, as torch read it.
_put_back: ContextVar[dict[Key, Any]] = ContextVar("safecompile: settings put back", default={})  # noqa: B039


class _Taken(NamedTuple):
    """The settings at a call of torch.compile."""

    callback: weakref.ref[Any]
    thread: object
    values: dict[Key, tuple[Any, Any]]


#: By the id of torch's callback. Not in the callback's own dictionary, which is pickled with a compiled module. What
#: takes an item away is C code: code of Python's would run in the middle of a compiled call, where Dynamo compiles it.
_taken: dict[int, _Taken] = {}

#: torch's maker of what sets ``dynamic=``, up to 2.11. Set once, by the installation.
_make_dynamic: Any = None


def is_off() -> bool:
    """Tells whether the user has turned this off."""
    return os.environ.get("SAFECOMPILE_SETTINGS", "1") in ("", "0")


def apply_for(callback: Any = None, dynamic_of_the_call: Callable[[], bool | None] | None = None) -> list[Any]:
    """Gives this context the settings that it lacks, for one compile; returns what takes them away again.

    ``dynamic_of_the_call`` tells, up to torch 2.11, what ``dynamic=`` was for the compiled function that is called.
    """
    changes: dict[str, dict[str, Any]] = {}
    configs: dict[str, Any] = {}
    for (module_name, name), (config, value) in _wanted(callback).items():
        if _lacks(config, name):
            configs[module_name] = config
            changes.setdefault(module_name, {})[name] = value
    reverts: list[Any] = [host.set_settings(configs[module], **values) for module, values in changes.items()]
    if _make_dynamic is not None and dynamic_of_the_call is not None:
        dynamic = dynamic_of_the_call()
        if dynamic is not None:
            reverts.append(_make_dynamic(dynamic)())
    return reverts


def _wanted(callback: Any) -> dict[Key, tuple[Any, Any]]:
    taken = _taken.get(id(callback))
    wanted = {} if taken is None or taken.thread is identity.of_this_thread() else dict(taken.values)
    for key, newest in _newest.copy().items():
        note: _Note | None = newest
        while note is not None and (
            note.thread is identity.of_this_thread() or (note.task is not None and note.task() is None)
        ):
            note = note.earlier
        if note is not None:
            wanted[key] = (note.config, note.value)
    return wanted


@contextmanager
def applied() -> Iterator[None]:
    """Gives this thread the newest plain assignments that it lacks, for the compile of a backward."""
    reverts = apply_for()
    try:
        yield
    finally:
        for revert in reverts:
            revert()


def patches_of_config_module(module: ModuleType) -> list[Patch]:
    """Returns the patches that note plain assignments, or keep ``config.patch`` apart; changes nothing."""
    if is_off():
        return []
    if not host.settings_are_per_context(module):
        return scoped_settings.patches_of_config_module(module)
    original = module.ConfigModule.__setattr__
    own = str(module.__file__)

    @functools.wraps(original)
    def _patched_setattr(self: Any, name: str, value: Any) -> None:
        caller = sys._getframe(1)
        while caller.f_code.co_filename == own and caller.f_code.co_name == "__setattr__" and caller.f_back:
            caller = caller.f_back
        key, kind = (self.__name__, name), _kind(caller.f_code, own)
        if kind == "enter" and (key in _lacking.get() or _lacks(self, name)):
            _lacking.set({**_lacking.get(), key: _lacking.get().get(key, 0) + 1})
        if name in host.settings_of(self):
            host.warning(self)(name, host.settings_of(self)[name])  # once, and from here it names the user's line
        original(self, name, value)
        if kind == "exit" and key in _lacking.get():
            _one_less(key, value)
        elif kind == "plain" and name in host.settings_of(self):
            _note(key, self, value)

    return [AttributePatch(module.ConfigModule, "__setattr__", _patched_setattr)]


def _note(key: Key, config: Any, value: Any) -> None:
    if key in _put_back.get():
        _put_back.set({one: kept for one, kept in _put_back.get().items() if one != key})
    task, earlier = host.current_task(), _newest.get(key)
    if task is None:
        earlier = None
    elif earlier is not None and earlier.task is not None:
        earlier = earlier.earlier
    _newest[key] = _Note(config, value, identity.of_this_thread(), None if task is None else weakref.ref(task), earlier)


def _one_less(key: Key, value: Any) -> None:
    """Notes the end of a patch, which has put ``value`` back."""
    lacking = dict(_lacking.get())
    lacking[key] -= 1
    if not lacking[key]:
        del lacking[key]
        _put_back.set({**_put_back.get(), key: value})
    _lacking.set(lacking)


def _lacks(config: Any, name: str) -> bool:
    """Tells whether this context has no value of its own for a setting."""
    key = (config.__name__, name)
    return host.has_no_value(config, name) or (
        key in _put_back.get() and host.own_value(config, name) is _put_back.get()[key]
    )


def patches_of_eval_frame(module: ModuleType) -> list[Patch]:
    """Returns the patch that notes the settings at the call of torch.compile; changes nothing."""
    if not host.settings_are_per_context(sys.modules[host.CONFIG_MODULE]):
        return [_patch_of_dynamic(module)]
    if is_off():
        return []
    owner = dynamo.context_class(module)
    original = owner.__init__

    @functools.wraps(original)
    def _patched_init(self: Any, callback: Any, *args: Any, **kwargs: Any) -> None:
        original(self, callback, *args, **kwargs)
        if type(callback).__weakrefoffset__ and callable(callback):
            gone = functools.partial(_taken.pop, id(callback))  # gets the reference as what to return if there is none
            _taken[id(callback)] = _Taken(weakref.ref(callback, gone), identity.of_this_thread(), host.own_values())

    return [AttributePatch(owner, "__init__", _patched_init)]


def _patch_of_dynamic(module: ModuleType) -> Patch:
    """Takes ``dynamic=`` out of the call, where torch up to 2.11 sets it for the whole process, into the compile."""
    global _make_dynamic
    _make_dynamic = original = module.make_set_enable_dynamic

    def nothing() -> None:
        pass

    @functools.wraps(original)
    def _patched_make_set_enable_dynamic(enable: bool) -> Callable[[], Callable[[], None]]:
        plain: Callable[[], Callable[[], None]] = original(enable)

        def change() -> Callable[[], None]:
            installed = module.make_set_enable_dynamic is _patched_make_set_enable_dynamic
            return nothing if installed else plain()

        return change

    return AttributePatch(module, "make_set_enable_dynamic", _patched_make_set_enable_dynamic)


def _kind(code: CodeType, own: str) -> str:
    """Tells who assigns: ``config.patch`` ("enter", "exit"), torch itself ("torch"), or anybody else ("plain")."""
    if code.co_filename == own:
        return {"__enter__": "enter", "__exit__": "exit"}.get(code.co_name, "plain")
    return "torch" if code.co_filename.startswith(host.torch_folder()) else "plain"


PARTS: Final = (
    Part("settings", host.CONFIG_MODULE, patches_of_config_module),
    Part("settings", dynamo.EVAL_FRAME, patches_of_eval_frame),
)

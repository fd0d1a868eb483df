"""The settings that a compile sees: torch._dynamo.config, torch._inductor.config, torch._functorch.config.

Since torch 2.12 each setting is a context variable: what the main thread assigns does not exist in worker threads,
nor on autograd's. Here a compile sees, for each setting: its own thread's value, if it has one; else the newest plain
assignment (``config.x = v``) of any thread; else, in another thread than the one that called ``torch.compile``, the
value there at that moment. ``config.patch`` stays in its thread. Applied for the time of a compile only.

``SAFECOMPILE_SETTINGS=0`` turns it off. Up to torch 2.11 settings belong to the process: see :mod:`.scoped_settings`.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any, Final

from .._engine import frames
from .._patching.families import Part
from .._patching.patches import AttributePatch, Patch
from .._torch import state as host
from . import scoped_settings

#: The newest plain assignment of each setting: (name of the config module, setting) -> (config module, value).
_newest: dict[tuple[str, str], tuple[Any, Any]] = {}


class _Patched(threading.local):
    """The settings that this thread has patched and that had no value of its own before: how often one in the other."""

    def __init__(self) -> None:
        self.unset: dict[tuple[str, str], int] = {}


_patched = _Patched()


class _Taken:
    """The settings at a call of torch.compile. A copy, or what is unpickled, is of no thread and empty."""

    def __init__(self, thread: int = 0, values: dict[tuple[str, str], tuple[Any, Any]] | None = None) -> None:
        self.thread, self.values = thread, values or {}

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return type(self), ()


_NO_CALLBACK = SimpleNamespace()

#: torch's maker of what sets ``dynamic=``, up to 2.11. Set once, by the installation.
_make_dynamic: Any = None


def is_off() -> bool:
    """Tells whether the user has turned this off."""
    return os.environ.get("SAFECOMPILE_SETTINGS", "1") in ("", "0")


def apply_for(callback: Any) -> list[Callable[[], None]]:
    """Gives this thread the settings that it lacks, for one compile; returns what takes them away again."""
    wanted = dict(_newest)
    taken = getattr(callback, "__dict__", {}).get("_safecompile_settings")
    if taken is not None and taken.thread != threading.get_ident():
        wanted = {**taken.values, **wanted}
    changes: dict[str, dict[str, Any]] = {}
    configs: dict[str, Any] = {}
    for (module_name, name), (config, value) in wanted.items():
        if host.has_no_value(config, name):
            configs[module_name] = config
            changes.setdefault(module_name, {})[name] = value
    reverts = [host.set_settings(configs[module_name], **values) for module_name, values in changes.items()]
    dynamic = frames.dynamic_of_the_call() if _make_dynamic is not None else None
    return reverts if dynamic is None else [*reverts, _make_dynamic(dynamic)()]


@contextmanager
def applied() -> Iterator[None]:
    """Gives this thread the newest plain assignments that it lacks, for the compile of a backward."""
    reverts = apply_for(_NO_CALLBACK)
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
        key = (self.__name__, name)
        kind = _kind(caller.f_code, own)
        if kind == "enter" and (key in _patched.unset or host.has_no_value(self, name)):
            _patched.unset[key] = _patched.unset.get(key, 0) + 1
        original(self, name, value)
        if kind == "exit" and key in _patched.unset:
            _patched.unset[key] -= 1
            if not _patched.unset[key]:
                del _patched.unset[key]
                host.remove_value(self, name)
        elif kind == "plain" and name in host.settings_of(self):
            _newest[key] = (self, value)

    return [AttributePatch(module.ConfigModule, "__setattr__", _patched_setattr)]


def patches_of_eval_frame(module: ModuleType) -> list[Patch]:
    """Returns the patch that notes the settings at the call of torch.compile; changes nothing."""
    if not host.settings_are_per_context(sys.modules[host.CONFIG_MODULE]):
        return [_patch_of_dynamic(module)]
    if is_off():
        return []
    original = module._TorchDynamoContext.__init__

    @functools.wraps(original)
    def _patched_init(self: Any, callback: Any, *args: Any, **kwargs: Any) -> None:
        original(self, callback, *args, **kwargs)
        if hasattr(callback, "__dict__") and callable(callback):
            callback.__dict__["_safecompile_settings"] = _Taken(threading.get_ident(), _own_values())

    return [AttributePatch(module._TorchDynamoContext, "__init__", _patched_init)]


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


def _own_values() -> dict[tuple[str, str], tuple[Any, Any]]:
    return {
        (config.__name__, name): (config, value)
        for config in host.configs()
        for name, value in host.own_values(config).items()
    }


def _kind(code: CodeType, own: str) -> str:
    """Tells who assigns: ``config.patch`` ("enter", "exit"), torch itself ("torch"), or anybody else ("plain")."""
    if code.co_filename == own:
        return {"__enter__": "enter", "__exit__": "exit"}.get(code.co_name, "plain")
    return "torch" if code.co_filename.startswith(host.torch_folder()) else "plain"


PARTS: Final = (
    Part("settings", host.CONFIG_MODULE, patches_of_config_module),
    Part("settings", host.EVAL_FRAME, patches_of_eval_frame),
)

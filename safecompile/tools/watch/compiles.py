"""Looks at misses in plain torch: compiles that were repeated, calls that ran eagerly, settings that were not seen."""

from __future__ import annotations

import functools
import sys
import threading
from time import monotonic
from types import CodeType, FrameType, ModuleType
from typing import Any, NamedTuple

from ..._common import events, identity, reading
from ..._common.totals import Place
from ..._patching.patches import AttributePatch, Patch
from ..._torch import cache, dynamo, frame_rules, settings
from ..._torch import watching as host
from .findings import Findings, Stack, stack_of


class Miss(NamedTuple):
    """A miss in progress: who, for what, since when (monotonic seconds)."""

    ident: int
    name: str
    code: CodeType
    began: float


class _Assigned(NamedTuple):
    config: Any
    value: Any
    thread: object
    name: str
    stack: Stack


class Compiles:
    """What is watched of misses, and of settings."""

    def __init__(self, findings: Findings) -> None:
        self.findings = findings
        self.count = 0
        self.misses: dict[int, Miss] = {}  # in progress; each use is one operation
        self.repeated: set[Place] = set()
        self.assigned: dict[tuple[str, str], _Assigned] = {}

    def patches_of_convert_frame(self, module: ModuleType) -> list[Patch]:
        """Returns the patch that watches; changes nothing."""
        original = host.callback_class(module).__call__

        @functools.wraps(original)
        def _patched_callback(callback: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
            if frame_rules.is_skipped(frame):
                return original(callback, frame, *args, **kwargs)
            if frame_rules.is_disabled_in(sys._getframe(1)):
                return cache.left_alone_this_once()
            mine = Miss(threading.get_ident(), threading.current_thread().name, frame.f_code, monotonic())
            self.misses[id(mine)] = mine
            try:
                result = original(callback, frame, *args, **kwargs)
                self.look(callback, frame, result)
                return result
            finally:
                self.misses.pop(id(mine), None)

        return [AttributePatch(host.callback_class(module), "__call__", _patched_callback)]

    def look(self, callback: Any, frame: Any, result: Any) -> None:
        """Looks at what came of a miss."""
        code, me = frame.f_code, threading.current_thread().name
        guarded = result.guarded_code
        earlier = [one for one in cache.cache_entries(code) if _made_by(one) is not None]
        if guarded is None:
            self._look_at_eager(frame, code, me, earlier)
            return
        self.count += 1
        backend, region = cache.backend_of(callback), dynamo.region()
        for entry in earlier:
            its_backend, its_region, name, _ = _made_by(entry)
            if its_region == region and cache.is_same_backend(its_backend, backend) and _fits(entry, frame):
                self.repeated.add(events.place(code))
                self.findings.add(
                    "repeated compile",
                    (_told(code),),
                    f"{_told(code)} was compiled by thread {me!r}, though it had been compiled already, by {name!r}.",
                    compiled_by=frame_above(),
                )
                break
        guarded.guard_manager.__dict__["_safecompile_watched"] = (backend, region, me, identity.of_this_thread())
        self._look_at_settings(code, me)

    def _look_at_eager(self, frame: Any, code: CodeType, me: str, earlier: list[Any]) -> None:
        if not host.has_tensors(frame):
            return
        others = [one for one in list(self.misses.values()) if one.code is code and one.ident != threading.get_ident()]
        if earlier and host.is_at_its_limit(code):
            why = "it has as many compiled versions as recompile_limit allows, " + (
                "some of them compiled again by several threads"
                if events.place(code) in self.repeated
                else "all of them different"
            )
        elif others or any(_fits(entry, frame) for entry in earlier):
            why = "another thread has compiled it, or was about to"
        else:
            return  # there was nothing to compile
        self.findings.add(
            "ran eagerly",
            (_told(code), why),
            f"{_told(code)} ran eagerly in thread {me!r}: {why}.",
            called_by=frame_above(),
        )

    def patches_of_config_module(self, module: ModuleType) -> list[Patch]:
        """Returns the patch that notes who assigns which setting; changes nothing."""
        original = module.ConfigModule.__setattr__

        @functools.wraps(original)
        def _patched_setattr(config: Any, name: str, value: Any) -> None:
            original(config, name, value)
            caller = sys._getframe(1)
            if not caller.f_code.co_filename.startswith(settings.torch_folder()) and name in settings.settings_of(
                config
            ):
                self.assigned[(config.__name__, name)] = _Assigned(
                    config, value, identity.of_this_thread(), threading.current_thread().name, stack_of(caller)
                )

        return [AttributePatch(module.ConfigModule, "__setattr__", _patched_setattr)]

    def _look_at_settings(self, code: CodeType, me: str) -> None:
        for (module, name), one in list(self.assigned.items()):
            if one.thread is identity.of_this_thread():
                continue
            mine = getattr(one.config, name)
            if not reading.same(mine, one.value):
                self.findings.add(
                    "unseen setting",
                    (module, name),
                    f"{module}.{name} was set to {one.value!r} by thread {one.name!r}; thread {me!r} compiled "
                    f"{_told(code)} with {mine!r}.",
                    set_by=one.stack,
                )


def frame_above() -> FrameType | None:
    """Returns the frame that called compiled code: the first above the watcher's own."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return frame


def _made_by(entry: Any) -> Any:
    return getattr(entry.guard_manager, "__dict__", {}).get("_safecompile_watched")


def _fits(entry: Any, frame: Any) -> bool:
    try:
        return cache.is_live(entry.guard_manager) and bool(entry.guard_manager.check(frame.f_locals))
    except Exception:  # noqa: BLE001 - a guard that raises does not fit
        return False


def _told(code: CodeType) -> str:
    name, filename, line = events.place(code)
    return f"{name} ({filename}:{line})"

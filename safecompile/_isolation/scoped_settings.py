"""Settings that are changed for a while, up to torch 2.11, where a setting belongs to the process.

``config.patch``, ``disable_cache_limit`` and ``_set_compilation_env`` (eager ``flex_attention``, ``cond``, …) save a
setting and put it back: two that overlap in two threads leave a value behind (``recompile_limit`` at ``sys.maxsize``,
seen on 2.7.1), and other threads' compiles see it. Here such a change is a record of its thread. ``config.patch`` acts
in its own thread, and in others as long as they do not compile; the other two in their own thread alone. While there
are no records, settings are read as without this library.
"""

from __future__ import annotations

import ast
import functools
import threading
from contextlib import ContextDecorator
from types import ModuleType
from typing import Any

from .._patching.patches import AttributePatch, CodePatch, Patch
from .._patching.rewriting import recompiled
from .._torch import dynamo
from .._torch import settings as host

#: Under this name a rewritten function finds :func:`change`.
CHANGE = "__safecompile_change_setting__"

# A leaf lock around the records, held for a few list operations. Reentrant, since a signal handler may patch.
_bookkeeping = threading.RLock()

#: id of torch's record of a setting -> that record, and the changes: (thread, value, for that thread alone).
#: Guarded by _bookkeeping; reading is one dictionary operation and goes through a copy.
_changes: dict[int, tuple[Any, list[tuple[int, Any, bool]]]] = {}


class _Override:
    """Stands for ``user_override`` in the class of torch's records while there are changes."""

    def __init__(self, default: Any) -> None:
        self.default = default

    def __get__(self, entry: Any, owner: Any = None) -> Any:
        if entry is None:
            return self.default
        changes = _changes.get(id(entry), (entry, []))[1]
        if changes:
            me, sees_others = threading.get_ident(), not dynamo.compiles_here() or dynamo.in_backward()
            for thread, value, alone in reversed(tuple(changes)):
                if thread == me or (sees_others and not alone):
                    return value
        return entry.__dict__.get("user_override", self.default)

    def __set__(self, entry: Any, value: Any) -> None:
        entry.__dict__["user_override"] = value


def change(config: Any, name: str, value: Any, *, alone: bool = True) -> None:
    """Changes a setting for this thread, and unless ``alone`` for threads that do not compile."""
    entry = host.entry_of(config, name)
    with _bookkeeping:
        if not _changes:
            host.entry_class().user_override = _Override(host.entry_class().user_override)
        _changes.setdefault(id(entry), (entry, []))[1].append((threading.get_ident(), value, alone))
    config._is_dirty = True


def change_back(config: Any, name: str, *_: Any) -> None:
    """Ends this thread's last change of a setting."""
    entry, me = host.entry_of(config, name), threading.get_ident()
    with _bookkeeping:
        changes = _changes.get(id(entry), (entry, []))[1]
        for index in reversed(range(len(changes))):
            if changes[index][0] == me:
                del changes[index]
                break
        if not changes:
            _changes.pop(id(entry), None)
        _stand_down()
    config._is_dirty = True


def _stand_down() -> None:
    standing = vars(host.entry_class()).get("user_override")
    if not _changes and isinstance(standing, _Override):
        host.entry_class().user_override = standing.default


class _Patch(ContextDecorator):
    """What ``config.patch`` returns. As a decorator it may be called from several threads at once."""

    def __init__(self, config: Any, changes: dict[str, Any]) -> None:
        self.config, self.changes = config, changes

    def __enter__(self) -> None:
        for name in self.changes:
            getattr(self.config, name)  # an unknown one raises
        for name, value in self.changes.items():
            change(self.config, name, value, alone=False)

    def __exit__(self, *_: object) -> None:
        for name in self.changes:
            change_back(self.config, name)


class Scoped(ast.NodeTransformer):
    """Turns ``<config>.x = value`` into a change for this thread, and in a ``finally`` into its end."""

    def __init__(self) -> None:
        self.changed, self.ends = False, False

    def visit_Try(self, node: ast.Try) -> ast.AST:
        node.body = [self.visit(one) for one in node.body]
        self.ends = True
        node.finalbody = [self.visit(one) for one in node.finalbody]
        self.ends = False
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        target = node.targets[0]
        if not (isinstance(target, ast.Attribute) and ast.unparse(target.value) in ("config", "torch._dynamo.config")):
            return node
        self.changed = True
        text = f"{CHANGE}{'_back' * self.ends}({ast.unparse(target.value)}, {target.attr!r}, None)"
        call = ast.parse(text).body[0]
        for part in ast.walk(call):
            ast.copy_location(part, node)
        call.value.args[2] = node.value  # type: ignore[attr-defined]
        return call


def helpers(module: ModuleType) -> list[Patch]:
    """Returns the patches that give a module what a function needs that :class:`Scoped` has rewritten."""
    found = ((CHANGE, change), (f"{CHANGE}_back", change_back))
    return [AttributePatch(module, name, function, new=True) for name, function in found]


def patches_of_config_module(module: ModuleType) -> list[Patch]:
    """Returns the patch for ``config.patch``; changes nothing."""
    original = module.ConfigModule.patch
    host.check_entries()

    @functools.wraps(original)
    def _patched_patch(self: Any, arg1: Any = None, arg2: Any = None, **kwargs: Any) -> Any:
        original(self, arg1, arg2, **kwargs)  # checks the form, and does nothing before it is entered
        return _Patch(self, kwargs if arg1 is None else dict(arg1) if arg2 is None else {arg1: arg2})

    return [AttributePatch(module.ConfigModule, "patch", _patched_patch)]


def patches_of_dynamo_utils(module: ModuleType) -> list[Patch]:
    """Returns the patches for ``disable_cache_limit``; changes nothing."""
    if host.settings_are_per_context(host.config_module()):
        return []
    body, change = module.disable_cache_limit.__wrapped__, Scoped()
    code = recompiled(body, change.visit)
    if not change.changed:
        msg = "an assignment to a setting in disable_cache_limit"
        raise LookupError(msg)
    return [*helpers(module), CodePatch(body, code)]


def after_fork_in_child() -> None:
    """Forgets the changes of the parent's other threads: they do not exist in the child."""
    global _bookkeeping
    _bookkeeping = threading.RLock()
    for _, changes in list(_changes.values()):
        changes[:] = [one for one in changes if one[0] == threading.get_ident()]
    for ident in [ident for ident, (_, changes) in _changes.items() if not changes]:
        del _changes[ident]
    if _changes or host.has_entries():
        _stand_down()

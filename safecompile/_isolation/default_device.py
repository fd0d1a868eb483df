"""The default device, as guards see it: each thread has its own.

``torch.set_default_device`` acts in its own thread, but notes the device in a variable of the process, which the
guards of every compiled function compare: in plain torch one thread's default device makes another's warm calls
compile again. Here that variable is what it is in plain torch for as long as one thread alone sets it. When a thread
with another device misses, something goes in there that is equal to the device of the thread that compares.
"""

from __future__ import annotations

import ast
import threading
import weakref
from types import ModuleType
from typing import Any, Final

from .._common import forks
from .._patching import rewriting
from .._patching.families import Part
from .._patching.patches import AttributePatch, CodePatch, Patch
from .._torch import default_device as host
from .._torch import dynamo

_EXCHANGE = "__safecompile_exchange__"
_OWN_VALUE = "__safecompile_own_value__"


class _Own:
    """The default device of one thread; gone with it."""

    device: Any = None


class _Here(threading.local):
    def __init__(self) -> None:
        self.own = _Own()


_here = _Here()


class _ByThread:
    """What stands in torch's variable when threads differ: equal to the device of the thread that asks."""

    def __eq__(self, other: object) -> bool:
        return bool(_here.own.device == other)

    def __hash__(self) -> int:
        return hash(_here.own.device)

    def __repr__(self) -> str:
        return repr(_here.own.device)

    def __reduce__(self) -> tuple[Any, ...]:
        return host.device_from, (host.as_text(_here.own.device),)


_by_thread: Final = _ByThread()

# A leaf lock around the following and torch's variable, held for a few assignments. Reentrant for signal handlers.
_bookkeeping = threading.RLock()
_owners: weakref.WeakSet[_Own] = weakref.WeakSet()
_threads_differ = False
_is_in_a_guard = False
_put: Any = None  # what this file has put into torch's variable last


def _put_there(value: Any) -> None:
    global _put
    _put = value
    host.set_variable(value)


def _apply() -> None:
    """Gives torch's variable the value for what the threads have set by now."""
    global _threads_differ
    if _is_in_a_guard:
        return
    devices = [one.device for one in _owners]
    _threads_differ = bool(devices) and (_threads_differ or any(one != devices[0] for one in devices))
    _put_there(_by_thread if _threads_differ else next(iter(devices), None))


def _note(device: Any) -> None:
    own = _here.own
    own.device = device
    (_owners.discard if device is None else _owners.add)(own)
    _apply()


def _adopt() -> bool:
    """Takes as this thread's device what others have put into torch's variable: code that Dynamo has made does so."""
    seen = host.variable()
    if seen is _put or seen is _by_thread:
        return False
    _note(seen)
    return True


def _exchange(device: Any) -> Any:
    """Sets this thread's default device, as guards see it, and returns the one before."""
    with _bookkeeping:
        _adopt()
        before = _here.own.device
        _note(device)
    return before


def look() -> None:
    """Has guards compare by thread from now on, if this thread's device is not the one that they see."""
    global _threads_differ
    seen = host.variable()
    if seen is _by_thread or seen is _here.own.device or seen == _here.own.device:
        return
    with _bookkeeping:
        if not _adopt():
            _threads_differ = True
            _apply()


class _OwnValue:
    """Has torch's variable be this thread's own device, while a guard takes it from there."""

    def __enter__(self) -> None:
        global _is_in_a_guard
        with _bookkeeping:
            _is_in_a_guard = True
            _put_there(_here.own.device)

    def __exit__(self, *_: object) -> None:
        global _is_in_a_guard
        with _bookkeeping:
            _is_in_a_guard = False
            _apply()


class _Exchanging(ast.NodeTransformer):
    """Turns the uses of torch's variable into exchanges; Dynamo traces what torch does."""

    changed = 0

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        text = ast.unparse(node)
        exchange = {
            f"self.old_device = {host.VARIABLE}": f"self.old_device = {_EXCHANGE}(self.device)",
            f"{host.VARIABLE} = self.device": "pass",
            f"{host.VARIABLE} = self.old_device": f"{_EXCHANGE}(self.old_device)",
        }.get(text)
        if exchange is None:
            return node
        self.changed += 1
        new = f"if torch.compiler.is_dynamo_compiling():\n    {text}\nelse:\n    {exchange}"
        return rewriting.located(ast.parse(new).body[0], node)


class _InAGuard(ast.NodeTransformer):
    """Puts the statement that makes the guard into ``with __safecompile_own_value__():``."""

    changed = 0

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        if f".{host.MAKING_A_GUARD}(" not in ast.unparse(node):
            return node
        self.changed += 1
        manager: Any = rewriting.located(ast.parse(f"with {_OWN_VALUE}():\n    pass").body[0], node)
        manager.body = [node]
        return manager  # type: ignore[no-any-return]


class _Taken:
    """Takes over what the installing thread has set, and gives it back."""

    def apply(self) -> None:
        _exchange(host.variable())

    def revert(self) -> str | None:
        global _threads_differ
        with _bookkeeping:
            _threads_differ = False
            _put_there(_here.own.device)
            _owners.clear()
        return None


def patches_of_device(module: ModuleType) -> list[Patch]:
    """Returns the patches for what sets the default device; changes nothing."""
    patches: list[Patch] = [_Taken(), AttributePatch(module, _EXCHANGE, _exchange, new=True)]
    for function, places in host.setters(module):
        what = f"{places} assignments of {host.VARIABLE}"
        patches.append(CodePatch(function, rewriting.changed(function, _Exchanging(), what, places=places)))
    return patches


def patches_of_guards(module: ModuleType) -> list[Patch]:
    """Returns the patches for the guard on the default device; changes nothing."""
    function = host.guard_maker(module)
    code = rewriting.changed(function, _InAGuard(), f"one call of {host.MAKING_A_GUARD}")
    return [AttributePatch(module, _OWN_VALUE, _OwnValue, new=True), CodePatch(function, code)]


@forks.in_child
def after_fork_in_child() -> None:
    """Forgets the devices of threads that the child does not have."""
    global _bookkeeping, _is_in_a_guard
    _bookkeeping, _is_in_a_guard = threading.RLock(), False
    if len(_owners) > (_here.own.device is not None):
        _owners.clear()
        _note(_here.own.device)


PARTS: Final = (
    Part("default device", host.DEVICE, patches_of_device),
    Part("default device", dynamo.GUARDS, patches_of_guards),
)

"""The ways to call a compiled function that are compared: plain torch, safecompile, and the locks that people write.

Plain and safe in one process: safecompile changes torch in place, so "safe" is not another object but another state
of torch. Installing and uninstalling between blocks would do, but builds every patch anew. :class:`Switch`
installs once and then exchanges the very records that ``uninstall`` reverts and ``install`` applies: with it off
torch is torch's own, which ``is_torchs_own`` checks. Each state has code objects of its own, and with them inline
caches of its own; a call site that saw the other state last adapts in the calls before a block is timed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import CodeType
from typing import Any

Call = Callable[..., Any]

#: What to compare, in the order of the tables. "plain again" is plain torch once more: the noise of the method.
NAMES = ("plain", "plain again", "safe", "rlock in first call", "rlock in every call")


class Switch:
    """Puts safecompile's patches in and out. Not for use while another thread runs compiled code."""

    def __init__(self) -> None:
        from safecompile._installing import applying, installer

        self._code_before = wrapper_code()
        installer.install()
        self._patches = [p for family in applying.families for _, part in family.applied for p in part]
        self.is_on = True

    def turn(self, on: bool) -> None:
        """Puts the patches in or out; does nothing if they are."""
        if on == self.is_on:
            return
        for patch in self._patches if on else reversed(self._patches):
            left = patch.apply() if on else patch.revert()
            if left is not None:
                msg = f"could not be brought back: {left}"
                raise RuntimeError(msg)
        self.is_on = on

    def is_torchs_own(self) -> bool:
        """Tells whether new compiled functions get torch's own wrapper code: that of before the installation."""
        return wrapper_code() is self._code_before


def wrapper_code() -> CodeType:
    """Returns the code of the function that ``torch.compile`` returns, from a function that is never called."""
    import torch

    code: CodeType = torch.compile(lambda x: x, backend="eager").__code__
    return code


def compiler_of(variant: str) -> Call:
    """Returns ``safe_compile`` for ``"safe"``, else ``torch.compile``; only the first imports safecompile."""
    import torch

    if variant == "safe":
        from safecompile import safe_compile

        return safe_compile
    return torch.compile


def first_call_locked(fn: Call) -> Call:
    """Holds an RLock over the first call, and looks at a flag in each later one."""
    lock, done = threading.RLock(), False

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal done
        if done:
            return fn(*args, **kwargs)
        with lock:
            result = fn(*args, **kwargs)
            done = True
            return result

    return call


def every_call_locked(fn: Call) -> Call:
    """Holds an RLock over every call."""
    lock = threading.RLock()

    def call(*args: Any, **kwargs: Any) -> Any:
        with lock:
            return fn(*args, **kwargs)

    return call


_LOCKS: dict[str, Callable[[Call], Call]] = {
    "rlock in first call": first_call_locked,
    "rlock in every call": every_call_locked,
}


def wrapped(variant: str, fn: Call) -> Call:
    """Returns ``fn`` under the lock that ``variant`` names; as it is for a variant without one."""
    return _LOCKS[variant](fn) if variant in _LOCKS else fn

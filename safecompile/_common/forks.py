"""What a forked child must forget: the threads of its parent do not exist there, and would hold locks for ever."""

from __future__ import annotations

import os
from collections.abc import Callable

_in_child: list[Callable[[], None]] = []
_registered = False


def in_child(function: Callable[[], None]) -> Callable[[], None]:
    """Has ``function`` run in each forked child, after those that were given before. A decorator."""
    _in_child.append(function)
    return function


def register() -> None:
    """Registers with the system, once. Where there are no forks, does nothing."""
    global _registered
    if not _registered and hasattr(os, "register_at_fork"):
        _registered = True
        os.register_at_fork(after_in_child=_after_in_child)


def _after_in_child() -> None:
    for function in _in_child:
        function()

"""The table of programs, and the columns that each is run in."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

#: Columns: what the process is like, the same for plain and for safe.
ALONE, IDLE, POLLING, FOREIGN, INDUCTOR = "alone", "idle", "polling", "foreign", "inductor"
OPTIMIZED, STRICT_WARNINGS, TERMINAL = "-O", "-W error", "terminal"
COLUMNS = (ALONE, IDLE, POLLING, FOREIGN, INDUCTOR, OPTIMIZED, STRICT_WARNINGS, TERMINAL)
#: Columns in which plain torch must say what it says alone.
COMPANIONS = (IDLE, POLLING, FOREIGN)
#: The releases of torch that the marks speak of.
RELEASES = ("2.9.1", "2.13.0", "2.15.0")


@dataclass(frozen=True)
class Program:
    """One program: ``function`` returns what it saw, as JSON has it.

    Attributes:
        fresh: it needs an interpreter of its own, in which nothing of torch is imported yet.
        ends: it is about the end of the process, which takes a second of CPU time; others leave without it.
        quick: it belongs to the default test run.
        columns: those it is run in.
        needs: dotted names without which this release of torch can't run it.
        matters: why another thread may change what plain torch says.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    fresh: bool = False
    ends: bool = False
    quick: bool = False
    columns: tuple[str, ...] = COLUMNS
    needs: tuple[str, ...] = ()
    matters: str = ""
    timeout_s: float = 60.0

    @property
    def module(self) -> str:
        return self.function.__module__

    def lacks(self) -> str:
        """Returns what this torch does not have of ``needs``."""
        return next((name for name in self.needs if not _is_there(name)), "")


@dataclass
class _Table:
    programs: dict[str, Program] = field(default_factory=dict)


_table = _Table()


def program(
    each: dict[str, Any] | None = None, *, quick: bool | Iterable[str] = False, needs: str = "", **rest: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Puts a function into the table, once for each of ``each``: the end of its name, and its argument(s)."""

    def put(function: Callable[..., Any]) -> Callable[..., Any]:
        subject = function.__module__.rpartition(".")[2]
        for case, value in (each or {"": ()}).items():
            name = f"{subject}/{function.__name__}" + (f"[{case}]" if case else "")
            assert name not in _table.programs, name
            arguments = value if isinstance(value, tuple) else (value,)
            chosen = quick if isinstance(quick, bool) else case in quick
            if rest.get("fresh"):  # each costs seconds
                rest.setdefault("columns", (ALONE, IDLE, FOREIGN))
            _table.programs[name] = Program(name, function, arguments, quick=chosen, needs=tuple(needs.split()), **rest)
        return function

    return put


def programs() -> dict[str, Program]:
    """Returns the whole table; imports torch."""
    from . import programs as package

    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
    return _table.programs


def one(module: str, name: str) -> Program:
    """Returns one program; imports its file alone."""
    importlib.import_module(module)
    return _table.programs[name]


def _is_there(name: str) -> bool:
    head, *rest = name.split(".")
    found = sys.modules.get(head) or importlib.import_module(head)
    for i, part in enumerate(rest):
        if not hasattr(found, part):
            try:
                importlib.import_module(".".join((head, *rest[: i + 1])))
            except ImportError:
                return False
        found = getattr(found, part)
    return True

"""What came of all misses of the process so far, in all and by function.

A miss adds one tuple to a list. Whoever finds the list long adds it up; nobody waits for that.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Final

from . import forks

#: The qualified name of a function, its file and its line.
Place = tuple[str, str, int]

#: More functions than that are counted as one.
FUNCTIONS_AT_MOST: Final = 4096
_OTHERS: Final[Place] = ("(other functions)", "", 0)

#: More tuples than that are added up.
_PENDING_AT_MOST: Final = 256


@dataclass
class OfFunction:
    """The totals of one function. Seconds are sums over threads."""

    misses: int = 0
    waited_s: float = 0.0
    compiled_s: float = 0.0
    longest_wait_s: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)


# Each use of the first is one operation, atomic by the GIL. The others belong to whoever has the lock, which is tried
# and never waited for: a signal handler in the middle of it may come here again.
_pending: deque[tuple[Place, float, float, str]] = deque()
_functions: dict[Place, OfFunction] = {}
_counts: Counter[str] = Counter()
_adding_up = threading.Lock()


def note(place: Place, waited_s: float, compiled_s: float, outcome: str) -> None:
    """Notes one miss."""
    _pending.append((place, waited_s, compiled_s, outcome))
    if len(_pending) > _PENDING_AT_MOST:
        add_up()


def count(what: str) -> None:
    """Counts something that is no miss."""
    note(_OTHERS, 0.0, 0.0, what)


#: What :func:`count` is called with.
COUNTED: Final = ("second traces", "captures gated", "resets put off")


def add_up() -> bool:
    """Adds up what is noted, unless another thread is about to; tells whether it did."""
    if not _adding_up.acquire(blocking=False):
        return False
    try:
        while _pending:
            place, waited_s, compiled_s, outcome = _pending.popleft()
            if outcome in COUNTED:
                _counts[outcome] += 1
                continue
            one = _functions.get(place)
            if one is None:
                place = place if len(_functions) < FUNCTIONS_AT_MOST else _OTHERS
                one = _functions.setdefault(place, OfFunction())
            one.misses += 1
            one.waited_s += waited_s
            one.compiled_s += compiled_s
            one.longest_wait_s = max(one.longest_wait_s, waited_s)
            one.outcomes[outcome] += 1
    finally:
        _adding_up.release()
    return True


def functions() -> dict[Place, OfFunction]:
    """Returns the totals by function. They may miss what is added up just now by another thread."""
    add_up()
    return dict(_functions)


def in_all() -> dict[str, float]:
    """Returns the totals of the process, by what they count."""
    found = list(functions().values())

    def of_outcome(outcome: str) -> int:
        return sum(one.outcomes[outcome] for one in found)

    return {
        "misses": sum(one.misses for one in found),
        "compiles": of_outcome("compiled"),
        "reused": of_outcome("reused"),
        "skipped": of_outcome("skipped"),
        "uncompiled": of_outcome("uncompiled"),
        "failed": of_outcome("failed"),
        "waited_s": round(sum(one.waited_s for one in found), 3),
        "compiled_s": round(sum(one.compiled_s for one in found), 3),
        **{what.replace(" ", "_"): _counts[what] for what in COUNTED},
    }


@forks.in_child
def after_fork_in_child() -> None:
    """Begins anew: the counts are the parent's."""
    global _adding_up
    _adding_up = threading.Lock()
    _pending.clear()
    _functions.clear()
    _counts.clear()

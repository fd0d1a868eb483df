"""What the watcher finds: facts, each counted once for a place, and how they are told."""

from __future__ import annotations

import os
import sys
import textwrap
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Final

_PREVENTS: Final = "safe_compile prevents it."

#: The kinds of findings, the worst first: what each means.
MEANINGS: Final = {
    "cycle": "Threads wait for each other around a compile: a hang.",
    "foreign tracer": (
        "A module was called through another thread's tracer: the call may raise, return a Proxy, or land in that "
        "thread's graph."
    ),
    "overlapping traces": (
        "Two traces overlapped. The second one puts the first one's patches of nn.Module back at its end, for good."
    ),
    "flag": (
        "A compiled call has read the tracing flag that another thread had set. It raises 'Detected that you are using "
        "FX to symbolically trace a dynamo-optimized function'."
    ),
    "flag left on": (
        "A compiled call has read the tracing flag while nobody traced: traces that overlapped have left it on, and "
        "from then on every compiled call raises."
    ),
    "ran eagerly": "A call of a compiled function ran eagerly, without a word.",
    "repeated compile": (
        "A function was compiled although a compiled version that fits the call was there, or came meanwhile. It "
        "costs a compile, and counts in recompile_limit: at 8 the function runs eagerly."
    ),
    "unseen setting": "A compile did not see a setting that another thread had assigned.",
}

#: Where ``safe_compile`` does not simply prevent it: what it does.
CURES: Final = {
    "cycle": (
        "safe_compile does not prevent it: it names both threads in the log after SAFECOMPILE_WAIT_WARNING_S seconds. "
        "Wait before the compile, or in the run of the compiled function."
    ),
    "ran eagerly": (
        "safe_compile prevents it where it came of another thread's compile, or of compiles that were repeated. Where "
        "all versions are different, give the function fewer shapes, or dynamic=True."
    ),
}

Stack = tuple[str, ...]


@dataclass
class Finding:
    """One hazard: what happened, where, and how often.

    Args:
        kind: one of ``MEANINGS``.
        what: a sentence.
        threads: the names of the threads that did it, in order.
        stacks: whose stack, the first time -> function, file and line of its frames, the innermost first.
        count: how often it was seen at this place.

    Thread safety: to be read once the watch is over.
    """

    kind: str
    what: str
    threads: list[str] = field(default_factory=list)
    stacks: dict[str, Stack] = field(default_factory=dict)
    count: int = 1

    @property
    def meaning(self) -> str:
        """What it means."""
        return MEANINGS[self.kind]

    @property
    def cure(self) -> str:
        """Whether ``safe_compile`` prevents it."""
        return CURES.get(self.kind, _PREVENTS)

    def __str__(self) -> str:
        return "\n".join(_lines(self))


#: How many threads are kept of one finding.
THREADS_AT_MOST: Final = 64


class Findings:
    """All findings of one watch.

    Thread safety: every method may be called from any thread.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[str, ...], Finding] = {}
        self._lock = threading.RLock()  # guards the counts; held for an addition. A finalizer may come in between.

    def add(self, kind: str, key: tuple[str, ...], what: str, **stacks: FrameType | Stack | None) -> bool:
        """Adds a finding of this thread's; one with the same kind and key is counted. Tells whether it is new."""
        me = threading.current_thread().name
        with self._lock:
            known = self._found.get((kind, *key))
            if known is not None:
                known.count += 1
                if me not in known.threads and len(known.threads) < THREADS_AT_MOST:
                    known.threads.append(me)
                return False
            told = {
                whose.replace("_", " "): one if isinstance(one, tuple) else stack_of(one)
                for whose, one in stacks.items()
            }
            self._found[(kind, *key)] = Finding(kind, what, [me], told)
            return True

    def ranked(self) -> list[Finding]:
        """Returns them, the worst kinds first, and of one kind the most frequent."""
        order = list(MEANINGS)
        return sorted(self._found.copy().values(), key=lambda one: (order.index(one.kind), -one.count))


def stack_of(frame: FrameType | None) -> Stack:
    """Returns function, file and line of each frame, the innermost first, without the library's own."""
    found: list[str] = []
    while frame is not None and len(found) < 60:
        code = frame.f_code
        if not code.co_filename.startswith(_OWN):
            found.append(f"{getattr(code, 'co_qualname', code.co_name)} ({code.co_filename}:{frame.f_lineno})")
        frame = frame.f_back
    return tuple(found)


_OWN: Final = os.path.dirname(__file__) + os.sep  # noqa: PTH120


def _lines(one: Finding) -> Iterator[str]:
    yield from _wrapped(one.what, "  ")
    if one.count > 1:
        more = f" and {len(one.threads) - 6} more" if len(one.threads) > 6 else ""
        yield from _wrapped(f"Seen {one.count} times, by {', '.join(map(repr, one.threads[:6]))}{more}.", "    ")
    for whose, stack in one.stacks.items():
        yield f"    {whose}:"
        yield from (f"      {line}" for line in _shown(stack))


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, 100, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def _shown(stack: Stack) -> list[str]:
    """Returns the frames that a reader knows: those outside of torch and of Python's own library, six at most."""
    torch = os.path.dirname(str(getattr(sys.modules.get("torch"), "__file__", os.devnull))) + os.sep  # noqa: PTH120
    python = os.path.dirname(threading.__file__) + os.sep  # noqa: PTH120
    own = [line for line in stack if torch not in line and "<frozen" not in line]
    users = [line for line in own if f"({python}" not in line or "site-packages" in line]
    return (users or own or list(stack))[:6]


def told(found: list[Finding], seen: str) -> str:
    """Returns the whole report as text.

    Args:
        seen: what was looked at.
    """
    lines = [seen]
    if not found:
        return "\n".join([*lines, "Nothing was found. What did not happen in this run was not looked at."])
    for number, kind in enumerate([one for one in MEANINGS if any(each.kind == one for each in found)], 1):
        these = [one for one in found if one.kind == kind]
        lines += ["", *_wrapped(f"{number}. {these[0].meaning}", "")]
        for one in these[:5]:
            lines += _lines(one)
        if len(these) > 5:
            lines.append(f"  ... and {len(these) - 5} more of this kind")
        lines += _wrapped(f"=> {these[0].cure}", "  ")
    lines += ["", "More: docs/debugging.md"]
    return "\n".join(lines)

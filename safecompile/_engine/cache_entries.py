"""torch's cache entries: what each was made for, the copies that a follower leaves, and what becomes of dead ones.

A follower that can't call again makes torch append one more entry for the same compiled code. The copy shares the
guard manager with the first. Two things would go wrong, and are mended here: the copy would count in
``recompile_limit``, and it would outlive the first when an object that its guards know by ``id`` dies.

When an entry is invalidated, torch frees its guards at once. Another thread may be in the middle of them: a look-up
gives the GIL up at each entry (RootGuardManager::check_nopybind_template, seen in gdb on 2.13). So they are kept for
a moment.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator
from time import monotonic
from types import CodeType, ModuleType
from typing import Any, Final

from .._common import thread_frames
from .._patching.families import Part
from .._patching.patches import AttributePatch, Patch
from .._torch import cache, dynamo, threads
from . import frames, later

#: What another thread may be in the middle of: since when (monotonic seconds), the code, the guards. The oldest first.
#: Each use is one operation on a list, atomic by the GIL.
kept: list[tuple[float, Any, Any]] = []


def keep(entry: Any) -> None:
    """Keeps the guards and the code of an entry that is about to be invalidated, if another thread may be in them.

    It runs in finalizers, and so takes no lock.
    """
    if threads.others_are_alive():
        kept.append((monotonic(), entry.code, entry.guard_manager))
        later.soon()


def let_go() -> None:
    """Frees what nobody can be in the middle of any more. Called where a miss ends, by a reset, and a moment later."""
    over = list(taken_if_over(kept))
    # The latest first, and of each the guards before the code, as a tuple does: tracebacks of later compiles hold the
    # code of earlier ones, and must not be the last to do so (``tests/host/test_traceback_facts.py``).
    while over:
        over.pop()


def taken_if_over(items: list[Any]) -> Iterator[Any]:
    """Takes those items away, and yields them, whose time (the first of each) is over. The oldest come first."""
    while True:
        try:
            first = items.pop(0)
        except IndexError:
            return
        if not is_over(first[0]):
            items.insert(0, first)
            return
        yield first


def is_over(since: float) -> bool:
    """Tells whether a step of a look-up or of a publication that was under way at ``since`` has ended.

    It takes microseconds, and seldom a wait for the GIL: five milliseconds for each thread that wants it too. ``since``
    is in monotonic seconds.
    """
    return over_at(since) < monotonic()


def over_at(since: float) -> float:
    """Returns when such a step has ended, in monotonic seconds: with up to 20 other threads, in less than half one."""
    return since + GRACE_S + 0.02 * (len(thread_frames.of_all_threads()) - 1)


#: Seconds that such a step takes at most, if nobody else wants the GIL.
GRACE_S: Final = 0.05


def made_for(guard_manager: Any, backend: Any, region: int, device: str) -> None:
    """Notes what the entry is for. CacheEntry itself shows the backend since torch 2.11, the region since 2.13."""
    guard_manager.__dict__["_safecompile_made_for"] = (backend, region)
    guard_manager.__dict__["_safecompile_device"] = device


def what_for(guard_manager: Any) -> tuple[Any, int] | None:
    """Returns what :func:`made_for` noted, or None for an entry from before the installation, or a dead one."""
    return getattr(guard_manager, "__dict__", {}).get("_safecompile_made_for")


def fits(guard_manager: Any, f_locals: Any) -> bool:
    """Tells whether the guards hold for these arguments in this thread. A guard that raises does not."""
    try:
        return bool(guard_manager.check(f_locals))
    except Exception:  # noqa: BLE001 - torch's own look-up has raised it to the user already, or will
        return False


def mark_copies(guard_manager: Any, code: CodeType) -> None:
    """Notes that ``code`` has more than one entry with this guard manager."""
    guard_manager.__dict__["_safecompile_copies_of"] = weakref.ref(code)


#: The backends that must live as long as an entry; nobody reads it.
_KEPT: Final = "_safecompile_kept_backends"


def keep_backend(guard_manager: Any) -> None:
    """Keeps the backend of an entry alive, over a reset, for as long as the entry is there.

    torch 2.7: a look-up compares backends too, also of entries that fit no call. It has a pointer to them and no
    reference, and at the end of a reset forgets those that it has kept alive so far. With which of these an entry from
    before the installation was made, nobody knows.
    """
    if what_for(guard_manager) is None and _KEPT not in guard_manager.__dict__ and not cache.entries_own_backends():
        guard_manager.__dict__[_KEPT] = cache.backends_kept_alive()


def outdate(guard_manager: Any) -> None:
    """Has the guards never hold again. Frees nothing: another thread may be about to use the entry."""
    if cache.is_live(guard_manager):
        cache.add_failing_guard(guard_manager)
    keep_backend(guard_manager)
    guard_manager.__dict__["_safecompile_outdated"] = monotonic()


def is_outdated(guard_manager: Any) -> bool:
    """Tells whether the entry is from before a reset: it fits no call, and counts in no limit."""
    return "_safecompile_outdated" in getattr(guard_manager, "__dict__", {})


def take_out_outdated(code: CodeType, until: float) -> None:
    """Takes guards and code out of the entries that were outdated ``until`` then. The bare entries stay."""
    due = [
        entry
        for entry in cache.cache_entries(code)
        if is_outdated(manager := entry.guard_manager)
        and cache.is_live(manager)
        and manager.__dict__["_safecompile_outdated"] <= until
    ]
    # Copies share a guard manager, which forgets its extra_state with the first that goes.
    for entry, state in [(entry, entry.guard_manager.extra_state) for entry in reversed(due)]:  # the oldest first
        if state is not None:
            keep(entry)
            manager = entry.guard_manager
            _becomes(manager, cache.take_out(entry, state))


def _becomes(guard_manager: Any, bare: Any) -> None:
    """Hands on what a bare entry must still have. It fits no call."""
    if not cache.entries_own_backends():
        bare.__dict__[_KEPT] = (what_for(guard_manager), guard_manager.__dict__.get(_KEPT))
    if is_outdated(guard_manager):
        outdate(bare)


def without_copies(entries: list[Any]) -> list[Any]:
    """Returns ``entries`` with one only for each guard manager, and none from before a reset."""
    there = [entry for entry in entries if not is_outdated(entry.guard_manager)]
    return list({id(entry.guard_manager): entry for entry in reversed(there)}.values())[::-1]


def counted(entries: list[Any], device: str) -> list[Any]:
    """Returns the ``entries`` that count in a limit for a call on ``device``: of each other device, all but one.

    A function that runs on eight devices has eight entries by that alone, which is torch's limit.
    """
    seen, found = {device, None}, []
    for entry in reversed(without_copies(entries)):
        other = getattr(entry.guard_manager, "__dict__", {}).get("_safecompile_device")
        if other in seen:
            found.append(entry)
        seen.add(other)
    return found[::-1]


class _Link:
    """An entry in a list that is linked by ``next``: what torch 2.7-2.12 walks to count."""

    def __init__(self, entry: Any, following: _Link | None) -> None:
        self.guard_manager, self.next = entry.guard_manager, following


def _linked(head: Any, device: str) -> _Link | None:
    entries = []
    while head:
        entries.append(head)
        head = head.next
    first: _Link | None = None
    for entry in reversed(counted(entries, device)):
        first = _Link(entry, first)
    return first


def patches_of_convert_frame(module: ModuleType) -> list[Patch]:
    """Returns the patch that says which entries count in the recompile limits; changes nothing."""
    original = module.compute_cache_size

    @functools.wraps(original)
    def _patched_compute_cache_size(frame: Any, entries: Any, *totals: int) -> Any:
        # torch 2.7-2.12: the head of a linked list. 2.13+: a list, and the total over all regions.
        # Drop the first form when min torch > 2.12.
        device = frames.device_of(frame)
        if not isinstance(entries, list):
            return original(frame, _linked(entries, device), *totals)
        kept = counted(entries, device)
        everywhere = cache.cache_entries(frame.f_code)
        copies = len(everywhere) - len(without_copies(everywhere))
        return original(frame, kept, *(total - copies for total in totals))

    return [AttributePatch(module, "compute_cache_size", _patched_compute_cache_size)]


def patches_of_guards(module: ModuleType) -> list[Patch]:
    """Returns the patch that lets copies die with the first entry, and keeps what dies a moment; changes nothing."""
    original = module.CheckFunctionManager.invalidate

    @functools.wraps(original)
    def _patched_invalidate(self: Any, *args: Any, **kwargs: Any) -> Any:
        shared = getattr(self, "guard_manager", None)
        copies_of = getattr(shared, "__dict__", {}).get("_safecompile_copies_of")
        extra_state = getattr(shared, "extra_state", None)  # torch forgets it in the call that follows
        entry = getattr(shared, "cache_entry", None)
        if entry is not None:
            keep(entry)
        result = original(self, *args, **kwargs)
        if not cache.is_live(getattr(self, "guard_manager", None)):
            _becomes(shared, self.guard_manager)
        code = copies_of() if copies_of is not None else None
        if code is not None and extra_state is not None:
            for copied in cache.cache_entries(code):
                if copied.guard_manager is shared:
                    extra_state.invalidate(copied, self.guard_manager)
        return result

    return [AttributePatch(module.CheckFunctionManager, "invalidate", _patched_invalidate)]


PARTS: Final = (
    Part("miss", dynamo.CONVERT_FRAME, patches_of_convert_frame),
    Part("miss", dynamo.GUARDS, patches_of_guards),
)

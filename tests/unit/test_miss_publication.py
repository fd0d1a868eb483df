"""The moment between the return of torch's callback, when the lock is free, and the publication of the entry."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch._dynamo import convert_frame

from safecompile._engine import miss, returned
from tests.helpers.compiles import Counting, plain_torch
from tests.helpers.threads import run_threads


class Parked:
    """Stops the first thread that compiles once its callback has returned."""

    def __init__(self, patch: pytest.MonkeyPatch, *, transparent: bool) -> None:
        self.returned, self.go_on = threading.Event(), threading.Event()
        inner, first = convert_frame.CatchErrorsWrapper.__call__, threading.Lock()

        # The engine looks through a frame of this name; through one of another name it does not.
        def _patched_callback(*args: Any) -> Any:
            result = inner(*args)
            if result.guarded_code is not None and first.acquire(blocking=False):
                self.returned.set()
                assert self.go_on.wait(30)
            return result

        def in_the_way(*args: Any) -> Any:
            return _patched_callback(*args)

        stand_in = _patched_callback if transparent else in_the_way
        patch.setattr(convert_frame.CatchErrorsWrapper, "__call__", stand_in)


pytestmark = pytest.mark.usefixtures("installed")


def compiles_while_the_leader_is_parked(followers: int, *, transparent: bool = True) -> int:
    """Returns how often the function is compiled if the leader stops before the publication."""
    torch.compiler.reset()
    backend = Counting()
    compiled = torch.compile(lambda x: x + 1, backend=backend)
    with pytest.MonkeyPatch.context() as patch:
        parked = Parked(patch, transparent=transparent)
        leader = threading.Thread(target=compiled, args=(torch.zeros(2),), daemon=True)
        leader.start()
        try:
            assert parked.returned.wait(30)
            results = run_threads([lambda: compiled(torch.ones(2))] * followers, 20)
            for result in results:
                assert result.tolist() == [2.0, 2.0]
            assert leader.is_alive()
        finally:
            parked.go_on.set()
            leader.join(30)
    assert not leader.is_alive()
    return backend.forward


@pytest.mark.parametrize("transparent", [True, False])
@pytest.mark.parametrize("followers", [1, 8])
def test_a_follower_uses_what_is_not_published_yet(followers: int, transparent: bool) -> None:
    """It neither compiles again nor waits for the publication, whether it can be called again or not."""
    assert compiles_while_the_leader_is_parked(followers, transparent=transparent) == 1


def test_plain_torch_compiles_again() -> None:
    """Red twin: plain torch looks at nothing but the published entries."""
    with plain_torch():
        assert compiles_while_the_leader_is_parked(1) == 2


def test_the_published_entries_alone_are_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red twin: without the note of what was returned, the engine itself compiles again."""

    class Forgetful(dict):  # type: ignore[type-arg]
        def __setitem__(self, key: Any, value: Any) -> None:
            pass

    monkeypatch.setattr(returned, "notes", Forgetful())
    assert compiles_while_the_leader_is_parked(1) == 2


def test_nothing_is_noted_once_the_entry_is_published() -> None:
    """The note of what was returned goes with the publication, so that it keeps no compiled code alive."""
    before = list(returned.notes.values())
    torch.compile(lambda x: x + 1, backend="eager")(torch.zeros(2))
    assert not [ref for ref in list(returned.notes.values()) if ref() is not None and ref not in before]
    assert not miss.flights

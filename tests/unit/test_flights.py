"""Who leads a flight, and whether it is still there."""

from __future__ import annotations

import sys
import threading

import pytest

from safecompile._engine.flights import Flight

CODE = (lambda: None).__code__


def a_flight() -> Flight:
    return Flight((id(CODE), "cpu"), CODE, sys._getframe())


def test_a_flight_is_abandoned_when_its_leader_has_left() -> None:
    """Not while the leader is in it, though another thread asks; but once it has gone with an error that lives on."""
    flights: list[Flight] = []
    errors: list[BaseException] = []
    made, leave = threading.Event(), threading.Event()

    def leads() -> None:
        flights.append(Flight((id(CODE), "cpu"), CODE, sys._getframe()))
        made.set()
        assert leave.wait(30)
        raise ZeroDivisionError

    def run() -> None:
        with pytest.raises(ZeroDivisionError) as raised:
            leads()
        errors.append(raised.value)

    thread = threading.Thread(target=run)
    thread.start()
    assert made.wait(30)
    for _ in range(3):
        assert not flights[0].is_abandoned()
    leave.set()
    thread.join(30)
    assert errors
    assert flights[0].is_abandoned()


def test_a_flight_whose_leader_is_in_no_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    """A greenlet that waits is in no thread's stack, and still leads."""
    monkeypatch.setattr(sys, "_current_frames", dict)
    flight = Flight((id(CODE), "cpu"), CODE, sys._getframe())
    assert not flight.is_abandoned()
    assert a_flight().is_abandoned()


def test_a_flight_of_a_thread_that_has_ended_is_nobody_elses() -> None:
    """Idents are used again; a later thread with the same is not taken for the leader."""
    seen: dict[int, Flight] = {}
    met = False
    for _ in range(200):
        asked: list[bool] = []

        def run(asked: list[bool] = asked) -> None:
            flight = a_flight()
            assert flight.is_this_threads()
            earlier = seen.setdefault(flight.leader, flight)
            if earlier is not flight:
                asked.append(earlier.is_this_threads())

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        met = met or bool(asked)
        assert asked in ([], [False])
    assert met, "no ident was used again"

"""max_wait_s: a call waits that long for another thread's compile, then runs uncompiled, this once."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._dynamo

from safecompile import SafeCompileError, install, safe_compile
from safecompile._common import events
from safecompile._engine import flights, limits
from safecompile._torch import cache
from tests.helpers.compiles import Counting
from tests.helpers.threads import ParkedBackend, in_fresh_process, run_threads

X = torch.ones(3)
EAGER = 100.0


def is_eager(out: torch.Tensor) -> bool:
    """Tells whether what :func:`told` returned came from an uncompiled call."""
    return bool(out.max() > EAGER / 2)


def told(x: torch.Tensor) -> torch.Tensor:
    return x + (1.0 if torch.compiler.is_compiling() else EAGER)


def other(x: torch.Tensor) -> torch.Tensor:
    return x - 1


def callee(x: torch.Tensor) -> torch.Tensor:
    return told(x)


def nothing_compiled(x: torch.Tensor) -> torch.Tensor:
    return callee(x)


@pytest.fixture(autouse=True)
def _clean(installed: None) -> Iterator[None]:
    torch._dynamo.reset()
    yield
    install(max_wait_s=None, ranks_may_differ=False)
    torch._dynamo.reset()


@pytest.fixture
def misses() -> Iterator[list[events.Miss]]:
    seen: list[events.Miss] = []
    unsubscribe = events.subscribe(seen.append)
    yield seen
    unsubscribe()


class Parked:
    """A thread that is in the middle of the compile of a function until the block ends."""

    def __init__(self, fn: Callable[..., Any] = told, **keywords: Any) -> None:
        self.backend = ParkedBackend()
        self.compiled = safe_compile(fn, backend=self.backend, dynamic=False, **keywords)
        self.results: list[Any] = []
        self.thread = threading.Thread(target=lambda: self.results.append(self.compiled(X)), daemon=True)

    def __enter__(self) -> Parked:
        self.thread.start()
        self.backend.wait_parked()
        return self

    def __exit__(self, *_: object) -> None:
        self.backend.release()
        self.thread.join(60)
        assert not self.thread.is_alive()


def test_a_follower_runs_uncompiled_this_once(misses: list[events.Miss], caplog: pytest.LogCaptureFixture) -> None:
    """With a limit of 0 a call beside the compile that it needs is eager, and the next one is compiled."""
    with Parked(max_wait_s=0.0) as parked, caplog.at_level(logging.WARNING, "safecompile"):
        for _ in range(3):
            assert is_eager(parked.compiled(X))
        assert parked.backend.compiles == 1
    assert not is_eager(parked.compiled(X))
    assert not is_eager(parked.results[0])
    assert parked.backend.compiles == 1
    mine = [one for one in misses if one.outcome == "uncompiled"]
    assert [(one.function, one.device, one.role) for one in mine] == [("told", "cpu", "follower")] * 3
    assert sum("runs uncompiled on cpu" in one.getMessage() for one in caplog.records) == 1


def test_a_flight_whose_leader_has_left_is_no_reason_to_run_uncompiled() -> None:
    """Nor with a limit of 0: that thread has left the compile, and will never end it (an error at the wrong moment)."""

    def leads() -> flights.Flight:
        key = (id(told.__code__), "cpu")
        return flights.flights.setdefault(key, flights.Flight(key, told.__code__, sys._getframe()))

    with ThreadPoolExecutor(1) as pool:
        pool.submit(leads).result()
    backend = ParkedBackend(parked=False)
    assert not is_eager(safe_compile(told, backend=backend, max_wait_s=0.0)(X))
    assert backend.compiles == 1


def test_a_thread_that_needs_the_lock_runs_uncompiled() -> None:
    """So is a call of another function, which nobody compiles."""
    backend = ParkedBackend(parked=False)
    mine = safe_compile(told, backend=backend, max_wait_s=0.0)
    with Parked(other):
        assert is_eager(mine(X))
        assert backend.compiles == 0
        assert not flights.flights.keys() & {(id(told.__code__), "cpu")}
    assert not is_eager(mine(X))


def test_the_limit_is_waited_for() -> None:
    """With 0.3 s the call waits for as long, and takes a result that comes in time."""
    with Parked(max_wait_s=0.3) as parked:
        began = time.monotonic()
        assert is_eager(parked.compiled(X))
        assert 0.25 < time.monotonic() - began < 10.0
    with Parked(lambda x: told(x) + 0, max_wait_s=60.0) as parked:
        threading.Timer(0.2, parked.backend.release).start()
        assert not is_eager(parked.compiled(X))


def test_no_limit_waits_as_before() -> None:
    """A limit of one function, or None over one of the process, holds for no other."""
    install(max_wait_s=0.0)
    waiting = safe_compile(told, backend="eager", max_wait_s=None)
    with Parked(other) as parked:
        threading.Timer(0.2, parked.backend.release).start()
        assert not is_eager(waiting(X))


def test_resumed_frames() -> None:
    """A frame that is resumed after a graph break has the limit, too; what it calls keeps no entry and no mark."""
    data = [1]
    seen: list[int] = []

    def body(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        seen.append(1)  # a side effect, which no call may have twice
        torch._dynamo.graph_break()
        return callee(y) + data[0]

    compiled = safe_compile(body, backend="eager", dynamic=False, max_wait_s=0.0)
    assert not is_eager(compiled(X))
    data[0] = 2  # fits no more, after the break alone
    with Parked(other):
        assert is_eager(compiled(X))
    assert len(seen) == 2
    assert not cache.cache_entries(callee.__code__)
    assert not is_eager(compiled(X))


def test_what_it_calls_keeps_no_mark() -> None:
    """A function that an uncompiled call has called is compiled as ever where it is called later."""
    compiled = safe_compile(nothing_compiled, backend="eager", max_wait_s=0.0)
    with Parked(other):
        assert is_eager(compiled(X))
    assert not cache.cache_entries(nothing_compiled.__code__)
    assert not cache.cache_entries(callee.__code__)
    for fn in (callee, nothing_compiled, told):
        assert not is_eager(torch.compile(fn, backend="eager")(X))


def test_nested_functions() -> None:
    """A compiled function in a limited one has its limit; one of its own comes first."""
    for own, eager in (({}, True), ({"max_wait_s": None}, False)):
        torch._dynamo.reset()
        inner = safe_compile(told, backend="eager", **own)

        def outer(x: torch.Tensor, inner: Any = inner) -> Any:
            torch._dynamo.graph_break()
            return inner(x)

        compiled = safe_compile(outer, backend="eager", max_wait_s=0.0)
        with Parked(other) as parked:
            if not eager:
                threading.Timer(0.3, parked.backend.release).start()
            assert is_eager(compiled(X)) == eager


def test_fullgraph_is_no_error() -> None:
    """A call with fullgraph=True that runs uncompiled for its limit is right; one that never compiles is an error."""
    compiled = safe_compile(told, backend="eager", fullgraph=True, max_wait_s=0.0)
    with Parked(other):
        assert is_eager(compiled(X))
    assert not is_eager(compiled(X))

    def breaks(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x

    with pytest.raises(torch._dynamo.exc.Unsupported):
        safe_compile(breaks, backend="eager", fullgraph=True, max_wait_s=0.0)(X)


@pytest.mark.parametrize("fullgraph", [False, True])
def test_inside_a_traced_region(fullgraph: bool) -> None:
    """safe_compile(max_wait_s=...) inside a compiled function is inlined, as without it."""

    def region(x: torch.Tensor) -> Any:
        return safe_compile(told, backend="eager", max_wait_s=0.0)(x) * 2

    compiled = torch.compile(region, backend="eager", fullgraph=fullgraph)
    with Parked(other) as parked:
        threading.Timer(0.2, parked.backend.release).start()
        assert not is_eager(compiled(X))


class Module(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return told(x)

    def step(self, x: torch.Tensor) -> torch.Tensor:
        return told(x)


class Object:
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return told(x)


FORMS: dict[str, Callable[..., Any]] = {
    "function": lambda **k: safe_compile(told, **k),
    "module": lambda **k: safe_compile(Module(), **k),
    "bound method": lambda **k: safe_compile(Module().step, **k),
    "callable object": lambda **k: safe_compile(Object(), **k),
    "class": lambda **k: safe_compile(type("Copy", (Object,), {"__call__": lambda self, x: told(x)}), **k)(),
    "decorator": lambda **k: safe_compile(**k)(told),
    "model=": lambda **k: safe_compile(model=told, **k),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str) -> None:
    """Whatever torch.compile takes, the limit is that of what comes back."""
    compiled = FORMS[form](backend="eager", max_wait_s=0.0)
    with Parked(other):
        assert is_eager(compiled(X))
    assert not is_eager(compiled(X))


def test_of_the_process() -> None:
    """install(max_wait_s=...) sets it for every compiled function, at once, and install() alone leaves it."""
    compiled = torch.compile(told, backend="eager")
    install(max_wait_s=0.0)
    install()
    with Parked(other):
        assert is_eager(compiled(X))
    assert not is_eager(compiled(X))


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), "1"])
def test_what_is_no_limit(wrong: Any) -> None:
    """What can be no number of seconds is an error that says so, and changes nothing."""
    for call in (lambda: install(max_wait_s=wrong), lambda: safe_compile(told, max_wait_s=wrong)):
        with pytest.raises(SafeCompileError, match="max_wait_s"):
            call()
    assert limits.of_process is None


@pytest.mark.parametrize(("text", "expected"), [("1.5", "1.5"), ("", "None"), ("soon", "SafeCompileError")])
def test_environment(text: str, expected: str) -> None:
    """SAFECOMPILE_MAX_WAIT_S is read by the installation."""
    done = in_fresh_process(
        """
        import safecompile
        from safecompile._engine import limits
        try:
            safecompile.install()
            print(limits.of_process)
        except Exception as error:
            print(type(error).__name__)
        """,
        SAFECOMPILE_MAX_WAIT_S=text,
    )
    assert done.stdout.strip() == expected, done.stderr


@pytest.mark.parametrize("fn", [told, other])
@pytest.mark.parametrize("limit", [0.0, 1.0])
def test_a_deadlock_ends(fn: Callable[..., Any], limit: float) -> None:
    """A backend that waits for a thread which calls cold compiled code gets its answer."""

    def backend(graph: Any, inputs: Any) -> Any:
        with ThreadPoolExecutor(1) as pool:
            out = pool.submit(helper, X).result(60)
        assert is_eager(out) or fn is other
        return graph.forward

    compiled = safe_compile(told, backend=backend, max_wait_s=limit)
    helper = compiled if fn is told else safe_compile(other, backend="eager", max_wait_s=limit)
    (out,) = run_threads([lambda: compiled(X)])
    assert not is_eager(out)


class CountingLock:
    """The compile lock, with a count of who waited for it."""

    def __init__(self, lock: Any) -> None:
        self.lock, self.waits = lock, 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        self.waits += blocking and timeout != 0 and not self.lock._is_owned()
        return bool(self.lock.acquire(blocking, timeout))

    def __enter__(self) -> Any:
        return self.lock.__enter__()

    def __exit__(self, *error: object) -> Any:
        return self.lock.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.lock, name)


@pytest.mark.parametrize("kind", ["eager", "inductor"])
def test_nobody_waits_for_a_cold_start(kind: str, misses: list[events.Miss], monkeypatch: pytest.MonkeyPatch) -> None:
    """32 threads, one function, a limit of 0: one compile, no wait but the leader's, and no call eager afterwards."""
    lock = CountingLock(torch._dynamo.convert_frame.compile_lock)
    monkeypatch.setattr(torch._dynamo.convert_frame, "compile_lock", lock)
    waits: list[object] = []
    counted = SimpleNamespace(get_ident=threading.get_ident, Event=counted_event(waits))
    monkeypatch.setattr(flights, "threading", counted)
    first, released = [], threading.Event()
    backend = Counting(kind, lambda: released.wait(60))
    compiled = safe_compile(told, backend=backend, dynamic=False, max_wait_s=0.0)

    def job() -> None:
        eager = is_eager(compiled(X))
        first.append(eager)
        if len(first) == 31:  # all but the leader
            released.set()
        while eager:
            time.sleep(0.1)  # the compile needs the interpreter, too
            eager = is_eager(compiled(X))

    run_threads([job] * 32, 120)
    assert backend.counts == (1, 0)
    assert sum(first) == 31
    assert (lock.waits, waits) == (0, [])
    assert sum(one.outcome == "compiled" for one in misses) == 1
    assert not any(run_threads([lambda: is_eager(compiled(X))] * 8))


def counted_event(waits: list[object]) -> Any:
    class Event(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            if timeout != 0 and not self.is_set():
                waits.append(timeout)
            return super().wait(timeout)

    return Event


class _Compared(type):
    """The type of a user's class, with an ``==`` of its own, and so without a hash."""

    calls = 0

    def __eq__(cls, other: object) -> bool:
        _Compared.calls += 1
        return cls is other


class _Argument(metaclass=_Compared):
    """What a function gets, and does not look at."""


def with_an_object(x: torch.Tensor, _: Any) -> torch.Tensor:
    return told(x)


def test_the_look_through_what_is_called_compares_no_type_of_the_users() -> None:
    """Whether a call may run uncompiled is found out without its ``==``, and a type without a hash is no error."""
    argument = _Argument()
    backend = ParkedBackend()
    compiled = safe_compile(with_an_object, backend=backend, dynamic=False, max_wait_s=0.0)
    leader = threading.Thread(target=compiled, args=(X, argument), daemon=True)
    leader.start()
    backend.wait_parked()
    try:
        before = _Compared.calls
        assert is_eager(compiled(X, argument))
        assert _Compared.calls == before
    finally:
        backend.release()
        leader.join(60)

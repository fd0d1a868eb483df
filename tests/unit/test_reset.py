"""torch._dynamo.reset() while other threads run compiled code: no crash, and the next call compiles."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo

import safecompile
from safecompile._engine import cache_entries, later, resets, returned
from safecompile._torch import cache
from tests.helpers.nursery import in_forked_process
from tests.helpers.threads import ParkedBackend, in_fresh_process, run_threads

pytestmark = pytest.mark.usefixtures("installed")


class Slow:
    """A backend whose compiled code waits until it is let go on, while ``held``; counts compiles."""

    def __init__(self) -> None:
        self.compiles, self.held = 0, False
        self.inside, self.go = threading.Event(), threading.Event()

    def __call__(self, graph: Any, inputs: Any) -> Callable[..., Any]:
        self.compiles += 1

        def run(*args: Any) -> Any:
            if self.held and threading.current_thread() is not threading.main_thread():
                self.inside.set()
                assert self.go.wait(30)
            return graph.forward(*args)

        return run


@pytest.fixture
def another_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One that runs all the time. What is freed a moment later is freed by the test alone."""
    monkeypatch.setattr(later, "soon", lambda: None)
    ended = threading.Event()

    def run() -> None:
        while not ended.is_set():
            sum(range(100))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield
    ended.set()
    thread.join()


def live(code: Any) -> int:
    managers = [entry.guard_manager for entry in cache.cache_entries(code)]
    return sum(cache.is_live(one) and not cache_entries.is_outdated(one) for one in managers)


def miss() -> None:
    """Has one miss, at whose end the library catches up."""
    exec("def f(x):\n    return x + 1", space := {})
    torch.compile(space["f"], backend="eager")(torch.zeros(2))


def test_a_reset_beside_a_call_takes_effect_and_frees_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next call compiles; what was compiled before is freed later; the other thread's result is right."""
    monkeypatch.setattr(later, "soon", lambda: None)  # at a miss, here
    backend = Slow()

    def body(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    compiled = torch.compile(body, backend=backend)
    compiled(torch.zeros(2))
    backend.held = True
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(compiled(torch.zeros(2))), daemon=True)
    thread.start()
    assert backend.inside.wait(30)
    manager = weakref.ref(cache.cache_entries(body.__code__)[0].guard_manager)
    torch._dynamo.reset()
    assert live(body.__code__) == 0
    for _ in range(2):
        assert compiled(torch.zeros(2)).tolist() == [1.0, 1.0]
    assert backend.compiles == 2
    assert manager() is not None
    monkeypatch.setattr(cache_entries, "is_over", lambda since: True)
    miss()  # takes it out
    miss()  # frees it
    gc.collect()
    assert manager() is None
    backend.go.set()
    thread.join(30)
    assert results[0].tolist() == [1.0, 1.0]
    assert compiled(torch.zeros(2)).tolist() == [1.0, 1.0]
    assert backend.compiles == 2


@pytest.mark.usefixtures("another_thread")
def test_what_dies_by_itself_is_kept_for_a_moment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch invalidates a version when an object that its guards know dies; another thread may be in those guards."""

    def body(x: torch.Tensor, factor: Any) -> torch.Tensor:
        return x * factor.value

    factor = type("Factor", (), {"value": 2})()
    torch.compile(body, backend="eager", dynamic=False)(torch.zeros(2), factor)
    manager = weakref.ref(cache.cache_entries(body.__code__)[0].guard_manager)
    del factor
    gc.collect()
    assert not cache.is_live(cache.cache_entries(body.__code__)[0].guard_manager)
    assert manager() is not None
    monkeypatch.setattr(cache_entries, "is_over", lambda since: True)
    miss()
    gc.collect()
    assert manager() is None


@pytest.mark.usefixtures("another_thread")
def test_the_next_reset_frees_what_the_last_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that compiles nothing more has its memory back after two resets and a moment more."""

    def body(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    torch.compile(body, backend="eager")(torch.zeros(2))
    manager = weakref.ref(cache.cache_entries(body.__code__)[0].guard_manager)
    torch._dynamo.reset()
    monkeypatch.setattr(cache_entries, "is_over", lambda since: True)
    torch._dynamo.reset()
    torch._dynamo.reset()
    gc.collect()
    assert manager() is None


@pytest.mark.usefixtures("another_thread")
def test_a_bare_entry_keeps_its_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """On torch 2.7 a look-up compares the backend of bare entries too, to which C has a pointer and no reference.

    From 2.11 on an entry has a reference, and a bare one has given it up: nothing is kept.
    """
    monkeypatch.setattr(cache_entries, "is_over", lambda since: True)

    def body(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    backend = Slow()
    torch.compile(body, backend=backend)(torch.zeros(2))
    torch._dynamo.reset()
    miss()
    miss()
    alive = weakref.ref(backend)
    del backend
    gc.collect()
    assert (alive() is None) == cache.entries_own_backends()
    torch.compile(body, backend=Slow())(torch.zeros(2))


@pytest.mark.usefixtures("another_thread")
def test_what_a_reset_leaves_counts_in_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resets beside another thread use none of the eight recompiles up, copies included."""
    backend = Slow()
    compiled = torch.compile(a_break, backend=backend, dynamic=False)
    run_threads([lambda: compiled(torch.zeros(1))] * 4)
    for count in range(12):
        monkeypatch.setattr(cache_entries, "is_over", lambda since: count > 6)
        before = backend.compiles
        torch._dynamo.reset()
        assert compiled(torch.zeros(1)).tolist() == [2.0]
        assert backend.compiles == before + 2


@pytest.mark.usefixtures("another_thread")
def test_a_function_with_too_many_outdated_versions_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look-up goes through a bounded number of outdated versions; what comes on top is reset later."""
    monkeypatch.setattr(resets, "OUTDATED_AT_MOST", 3)
    monkeypatch.setattr(cache_entries, "is_over", lambda since: False)

    def body(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    compiled = torch.compile(body, backend="eager")
    for _ in range(8):
        compiled(torch.zeros(2))
        torch._dynamo.reset()
    assert len(cache.cache_entries(body.__code__)) <= 5
    assert resets.put_off
    monkeypatch.setattr(cache_entries, "is_over", lambda since: True)
    miss()
    miss()
    assert not resets.put_off
    assert live(body.__code__) == 0
    assert compiled(torch.zeros(2)).tolist() == [1.0, 1.0]


@pytest.mark.usefixtures("another_thread")
def test_a_reset_forgets_what_torch_has_decided() -> None:
    """After a reset beside another thread: no dimension is dynamic, and a function over its limit is compiled."""
    backend = Slow()

    def body(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    compiled = torch.compile(body, backend=backend)
    for size in (2, 3):
        compiled(torch.zeros(size))
    assert backend.compiles == 2
    torch._dynamo.reset()
    for size, compiles in ((2, 3), (3, 4), (4, 4)):  # static, then dynamic, as the first time
        compiled(torch.zeros(size))
        assert backend.compiles == compiles
    skipped = torch.compile(body, backend=backend, dynamic=False)
    with torch._dynamo.config.patch(recompile_limit=1):
        for size in (2, 3, 4):
            skipped(torch.zeros(size))
    torch._dynamo.reset()
    before = backend.compiles
    skipped(torch.zeros(5))
    assert backend.compiles == before + 1


@torch.compiler.disable
def plain(x: torch.Tensor) -> torch.Tensor:
    return x


def a_break(x: torch.Tensor) -> torch.Tensor:
    x = plain(x + 1 if torch.compiler.is_compiling() else x)
    return x + 1 if torch.compiler.is_compiling() else x


def test_a_reset_is_torchs_own_where_no_other_thread_is_alive() -> None:
    """With one Python thread alive no entry is left, bare or not."""
    done = in_fresh_process(
        """
        import os, threading, torch, torch._dynamo, safecompile
        from safecompile._engine import resets
        from safecompile._torch import cache
        def body(x):
            return x + 1
        compiled = safecompile.safe_compile(body, backend="eager")
        compiled(torch.zeros(2))
        from torch._inductor.compile_worker import subproc_pool
        subproc_pool.SubprocPool(1)  # with a thread to hear from its workers
        assert threading.active_count() > 1
        torch._dynamo.reset()
        assert not cache.cache_entries(body.__code__) and not resets.outdated
        compiled(torch.zeros(2))
        os._exit(0)
        """
    )
    assert done.returncode == 0, done.stderr


def test_a_reset_in_the_middle_of_a_miss_frees_nothing() -> None:
    """While a thread compiles a function, a reset frees nothing of it; the compile ends, its result is right."""
    backend = ParkedBackend()

    def body(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    compiled = torch.compile(body, backend=backend)

    def reset() -> None:
        backend.wait_parked()
        resets.reset(body.__code__)  # torch's own reset waits for the lock
        backend.release()

    results = run_threads([lambda: compiled(torch.zeros(2)), reset])
    assert results[0].tolist() == [1.0, 1.0]


LOOP = """
    import os, sys, threading, time
    import torch, torch._dynamo
    if os.environ["SIDE"] == "safe":
        import safecompile.patch_all
    torch._dynamo.config.recompile_limit = 10000
    compiled = torch.compile(lambda x: x.sin() + x.shape[0], backend="eager", dynamic=False)
    stop = time.time() + float(os.environ["SECONDS_"])
    wrong = []
    def call(k):
        torch._dynamo.config.recompile_limit = 10000
        i = 0
        while time.time() < stop:
            n, i = 2 + (i * 7 + k) % 6, i + 1
            if compiled(torch.zeros(n))[0].item() != n:
                wrong.append(n)
    threads = [threading.Thread(target=call, args=(k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    while time.time() < stop:
        torch._dynamo.reset()
        time.sleep(0.01)
    for thread in threads:
        thread.join()
    print("wrong" if wrong else "right", flush=True)
    os._exit(0)
"""


def test_a_loop_of_resets_beside_calls() -> None:
    """Three threads call for seconds while the main thread resets: the process lives, each result is right."""
    done = in_forked_process(LOOP, SIDE="safe", SECONDS_="4")
    assert (done.returncode, done.stdout.strip()) == (0, "right"), done.stderr[-2000:]


def test_plain_torch_crashes_in_such_a_loop() -> None:
    """Red twin: in one of five runs at least."""
    for _ in range(5):
        done = in_forked_process(LOOP, SIDE="plain", SECONDS_="4")
        if done.returncode < 0 or done.stdout.strip() == "wrong":
            return
    pytest.fail("plain torch lived through it")


@pytest.mark.usefixtures("another_thread")
def test_the_backend_of_an_entry_from_before_the_installation_lives_as_long_as_the_entry() -> None:
    """Torch 2.7 compares it at each look-up, with a pointer that it does not own, and a reset forgets it."""

    def body(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    class Backend:
        def __call__(self, graph: Any, inputs: Any) -> Any:
            return graph.forward

    safecompile.uninstall()
    backend = Backend()
    torch.compile(body, backend=backend)(torch.zeros(2))
    reference = weakref.ref(backend)
    del backend
    safecompile.install()
    torch._dynamo.reset()
    gc.collect()
    assert reference() is not None or cache.entries_own_backends()
    time.sleep(0.3)
    miss()  # takes it out
    gc.collect()
    assert cache.cache_entries(body.__code__)
    assert reference() is not None or cache.entries_own_backends()


@pytest.mark.usefixtures("another_thread")
@pytest.mark.parametrize("guard", ["in", "out"])
def test_an_entry_that_is_published_in_the_middle_of_a_reset(guard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is known afterwards, though it came after the entries were read; a red twin that reads entries alone fails."""
    if guard == "out":
        monkeypatch.setattr(returned, "about_to_be_published", list)

    def body(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    compiled = torch.compile(body, backend="eager", dynamic=False)
    compiled(torch.zeros(2))
    torch._dynamo.reset()
    has_returned, go_on = threading.Event(), threading.Event()
    inner, read = torch._dynamo.convert_frame.CatchErrorsWrapper.__call__, cache.cache_entries

    def _patched_callback(*args: Any) -> Any:
        result = inner(*args)
        if threading.current_thread() is leader:
            has_returned.set()
            assert go_on.wait(30)
        return result

    def read_and_publish(code: Any) -> list[Any]:
        entries = read(code)
        if code is body.__code__ and not go_on.is_set():
            go_on.set()
            leader.join(30)
            assert len(read(code)) > len(entries)
        return entries

    leader = threading.Thread(target=compiled, args=(torch.zeros(3),))
    with monkeypatch.context() as patch:
        patch.setattr(torch._dynamo.convert_frame.CatchErrorsWrapper, "__call__", _patched_callback)
        leader.start()
        assert has_returned.wait(30)
        note = cache.note_for_resets  # called where the entries are about to be read

        def noting(code: Any) -> None:
            note(code)
            patch.setattr(cache, "cache_entries", read_and_publish)

        patch.setattr(cache, "note_for_resets", noting)
        torch._dynamo.reset()
    assert go_on.is_set()
    assert not leader.is_alive()
    if guard == "out":
        with pytest.raises(KeyError):
            compiled(torch.zeros(4))
    else:
        assert compiled(torch.zeros(4)).tolist() == [1.0] * 4


@pytest.mark.parametrize("side", ["safe", "plain"])
def test_a_backend_that_comes_in_the_middle_of_a_reset(side: str) -> None:
    """Another thread's ``torch.compile`` adds it while the others are reset: plain torch raises RuntimeError."""
    torch._dynamo.reset()
    if side == "plain":
        safecompile.uninstall()

    class Backend:
        def __call__(self, graph_module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
            return graph_module.forward

        def reset(self) -> None:
            resets.append(self)
            if len(resets) == 1:
                run_threads([lambda: torch.compile(len, backend=later)])

    resets: list[Backend] = []
    first, later = Backend(), Backend()
    torch.compile(len, backend=first)
    with contextlib.nullcontext() if side == "safe" else pytest.raises(RuntimeError, match="changed size"):
        torch._dynamo.reset()
    torch._dynamo.reset()
    assert resets == ([first, later] if side == "safe" else [first, first, later])


@pytest.mark.parametrize("side", ["safe", "plain"])
def test_a_reset_in_the_middle_of_another_threads_phase(side: str) -> None:
    """Plain torch raises KeyError at its end up to 2.12: in a warm backward, for example."""
    if side == "plain":
        safecompile.uninstall()
    inside, go = threading.Event(), threading.Event()
    raised: list[KeyError] = []

    def is_in_a_phase() -> None:
        try:
            with torch._dynamo.utils.dynamo_timed("test_a_reset_in_the_middle"):
                inside.set()
                assert go.wait(30)
        except KeyError as error:
            raised.append(error)

    def resets_then() -> None:
        assert inside.wait(30)
        torch._dynamo.reset()
        go.set()

    run_threads([is_in_a_phase, resets_then])
    assert len(raised) == (side == "plain" and not cache.keeps_its_list(torch._dynamo.utils))


@pytest.mark.usefixtures("another_thread")
def test_the_notes_of_resets_know_no_dead_functions() -> None:
    """What is noted of a function that has died is struck off by the next reset."""
    for _ in range(5):
        miss()
        torch._dynamo.reset()

    def dead() -> list[Any]:
        return [one for notes in (resets.left, resets.cold) for one in notes.copy().values() if one() is None]

    for _ in range(20):  # the thread that frees may let one die between the reset and the look
        gc.collect()
        torch._dynamo.reset()
        if not dead():
            return
        time.sleep(0.05)
    assert dead() == []


def test_an_error_of_the_catching_up_is_not_the_calls(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A call whose miss ends with it has its result, or its own error; what went wrong is logged."""

    def fails() -> None:
        raise ZeroDivisionError

    def wrong(graph: Any, inputs: Any) -> Any:
        raise LookupError("the backend's")

    def body(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    monkeypatch.setattr(resets, "put_off", [weakref.ref(body.__code__)])
    monkeypatch.setattr(resets, "catch_up", fails)
    assert torch.compile(body, backend="eager")(torch.zeros(2)).tolist() == [1.0, 1.0]
    assert "freeing what a reset has left failed" in caplog.text
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="the backend's"):
        torch.compile(body, backend=wrong)(torch.zeros(2))


def test_an_uninstallation_waits_for_the_thread_that_frees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain torch's reset() must not meet it in the middle of torch's list of entries."""
    left, working = [0.0], threading.Event()

    def work() -> None:
        working.set()
        time.sleep(0.2)
        left.clear()

    monkeypatch.setattr(later, "task", (lambda: left[0] if left else None, work))
    safecompile.install()
    later.soon()
    assert working.wait(10)
    safecompile.uninstall()
    assert not later._running
    assert not left

"""An argument that another thread changes while torch traces the call: one more attempt, uncompiled, or a note."""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo

from safecompile._engine import attempts
from safecompile._isolation import graph_trees
from safecompile._torch import cache

FRAME = sys._getframe()


@pytest.fixture(autouse=True)
def another_thread_is_alive() -> Iterator[None]:
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    yield
    ended.set()
    thread.join()


def in_another_thread(change: Callable[[], Any]) -> None:
    thread = threading.Thread(target=change)
    thread.start()
    thread.join()


@pytest.mark.parametrize("backend_called", [False, True])
@pytest.mark.usefixtures("installed")
def test_one_more_attempt_before_the_backend(backend_called: bool) -> None:
    """The trace is made once more if no backend was called, and once only; a class of the user's is never caught."""
    counters = torch._dynamo.utils.counters["stats"]
    calls: list[int] = []

    def original(*_: Any) -> str:
        calls.append(1)
        counters["unique_graphs"] += backend_called
        if len(calls) < 2:
            raise RuntimeError("dictionary changed size during iteration")
        return "compiled"

    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    try:
        if backend_called:
            with pytest.raises(RuntimeError, match="during iteration"):
                attempts.compiled(original, None, FRAME, None, None)
        else:
            assert attempts.compiled(original, None, FRAME, None, None) == "compiled"
            with pytest.raises(ZeroDivisionError):
                attempts.compiled(lambda *_: 1 / 0, None, FRAME, None, None)
    finally:
        ended.set()
        thread.join()
    assert len(calls) == 1 + (not backend_called)


@pytest.mark.usefixtures("installed")
def test_more_attempts_beside_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch raises on a device on which another thread captures a CUDA graph is tried again, a while later."""
    monkeypatch.setattr(graph_trees, "gates", {("capture", 0): threading.RLock()})
    for text in ("Offset increment outside graph capture encountered unexpectedly.", "no CUDA"):
        calls: list[int] = []

        def original(*_: Any, calls: list[int] = calls, text: str = text) -> str:
            calls.append(1)
            if len(calls) < 3:
                raise RuntimeError(text)
            return "compiled"

        if "capture" in text:
            assert attempts.compiled(original, None, FRAME, None, None) == "compiled"
        else:
            with pytest.raises(RuntimeError, match="no CUDA"):
                attempts.compiled(original, None, FRAME, None, None)
        assert len(calls) == (3 if "capture" in text else 1)


@pytest.mark.parametrize("kind", [dict, OrderedDict, list])
def test_a_container_that_shrinks_after_the_trace(side: str, kind: type) -> None:
    """With the backend called already, it is torch's error, with a note of the cause; the next call is right."""
    data: Any = kind([torch.ones(1), torch.ones(1)]) if kind is list else kind(a=torch.ones(1), b=torch.ones(1))
    shrink = [lambda: data.pop() if kind is list else data.pop("b")]

    def backend(graph: Any, inputs: Any) -> Any:
        for change in shrink:
            in_another_thread(change)
        shrink.clear()
        return graph.forward

    def body(x: torch.Tensor, members: Any) -> torch.Tensor:
        for member in members if kind is list else members.values():
            x = x + member
        return x

    compiled = torch.compile(body, backend=backend)
    with pytest.raises((KeyError, IndexError, torch._dynamo.exc.InternalTorchDynamoError)) as raised:
        compiled(torch.zeros(1), data)
    notes = "".join(getattr(raised.value, "__notes__", []))
    assert ("changed an argument" in notes) == (side == "safe" and sys.version_info >= (3, 11))
    assert compiled(torch.zeros(1), data).tolist() == [1.0]


class Changing:
    """Changes ``data`` in another thread, all the time or each time that torch has gone to trace it."""

    def __init__(self, patch: pytest.MonkeyPatch, data: dict[str, Any]) -> None:
        self.traces = 0
        convert = torch._dynamo.convert_frame.ConvertFrame
        plain = convert.__call__

        def traced(*args: Any, **kwargs: Any) -> Any:
            self.traces += 1
            in_another_thread(lambda: data.update({f"more{self.traces}": torch.ones(1)}))
            raise torch._dynamo.exc.InternalTorchDynamoError("as when a key is gone")

        patch.setattr(convert, "__call__", traced)
        self.again = lambda: patch.setattr(convert, "__call__", plain)


def callee(x: torch.Tensor) -> torch.Tensor:
    return x + (0 if torch.compiler.is_compiling() else 1)


def reads(x: torch.Tensor, members: dict[str, torch.Tensor]) -> torch.Tensor:
    return callee(x) + len(list(members)) * 10


def test_a_container_that_changes_all_the_time(
    side: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After two traces the call runs uncompiled, with all that it calls and one WARNING; a later call compiles."""
    data = {"a": torch.ones(1)}
    changing = Changing(monkeypatch, data)
    compiled = torch.compile(reads, backend="eager", dynamic=False)
    if side == "plain":
        with pytest.raises(torch._dynamo.exc.InternalTorchDynamoError):
            compiled(torch.zeros(1), data)
        return
    for traces, result in ((2, 31.0), (4, 51.0)):
        assert compiled(torch.zeros(1), data).tolist() == [result]
        assert changing.traces == traces, "what the function calls is asked about too"
    assert [one.getMessage() for one in caplog.records if "runs uncompiled" in one.getMessage()][1:] == []
    assert "reads" in caplog.text
    assert "container of its own" in caplog.text
    changing.again()
    assert compiled(torch.zeros(1), data).tolist() == [50.0], "the function is left alone for good"
    assert cache.cache_entries(reads.__code__)


@pytest.mark.parametrize("why", ["fullgraph", "nothing changes"])
@pytest.mark.usefixtures("installed")
def test_an_error_that_stays_one(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With fullgraph=True, or where nothing changes, the error is raised beside an idle thread as in plain torch."""
    torch._dynamo.reset()
    data = {"a": torch.ones(1)}
    if why == "fullgraph":
        convert = torch._dynamo.convert_frame.ConvertFrameAssert

        def fails(*args: Any, **kwargs: Any) -> Any:
            in_another_thread(lambda: data.update({str(len(data)): torch.ones(1)}))
            raise RuntimeError("dictionary changed size during iteration")
    else:
        convert = torch._dynamo.convert_frame.ConvertFrame

        def fails(*args: Any, **kwargs: Any) -> Any:
            raise torch._dynamo.exc.InternalTorchDynamoError("an error of torch's own") from KeyError("a")

    monkeypatch.setattr(convert, "__call__", fails)
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    try:
        with pytest.raises(RuntimeError, match=r"during iteration|torch's own"):
            torch.compile(reads, backend="eager", fullgraph=why == "fullgraph")(torch.zeros(1), data)
    finally:
        ended.set()
        thread.join()


@pytest.mark.usefixtures("installed")
def test_a_real_container_that_changes_all_the_time() -> None:
    """A dict that a thread fills and empties without a pause: each call is as in eager mode."""
    torch._dynamo.reset()
    data = {str(one): torch.ones(1) for one in range(300)}
    ended = threading.Event()

    def change() -> None:
        count = 0
        while not ended.is_set():
            data[f"more{count % 50}"] = torch.ones(1)
            data.pop(f"more{(count + 25) % 50}", None)
            count += 1

    def body(x: torch.Tensor, members: dict[str, torch.Tensor]) -> torch.Tensor:
        for member in list(members.values()):
            x = x + 0 * member
        return x + 1

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread = threading.Thread(target=change)
    thread.start()
    try:
        compiled = torch.compile(body, backend="eager", dynamic=False)
        for size in (2, 3):
            assert compiled(torch.zeros(size), data).tolist() == [1.0] * size
    finally:
        ended.set()
        thread.join()
        sys.setswitchinterval(interval)

"""An argument that another thread changes while torch traces the call: one more attempt, or the cause in a note."""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo

from safecompile import install
from safecompile._engine import attempts
from safecompile._isolation import graph_trees


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
def test_one_more_attempt_before_the_backend(backend_called: bool) -> None:
    """The trace is made once more if no backend was called, and once only; a class of the user's is never caught."""
    install()
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
                attempts.compiled(original, None, None, None, None)
        else:
            assert attempts.compiled(original, None, None, None, None) == "compiled"
            with pytest.raises(ZeroDivisionError):
                attempts.compiled(lambda *_: 1 / 0, None, None, None, None)
    finally:
        ended.set()
        thread.join()
    assert len(calls) == 1 + (not backend_called)


def test_more_attempts_beside_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch raises on a device on which another thread captures a CUDA graph is tried again, a while later."""
    install()
    monkeypatch.setattr(graph_trees, "gates", {("capture", 0): threading.RLock()})
    for text in ("Offset increment outside graph capture encountered unexpectedly.", "no CUDA"):
        calls: list[int] = []

        def original(*_: Any, calls: list[int] = calls, text: str = text) -> str:
            calls.append(1)
            if len(calls) < 3:
                raise RuntimeError(text)
            return "compiled"

        if "capture" in text:
            assert attempts.compiled(original, None, None, None, None) == "compiled"
        else:
            with pytest.raises(RuntimeError, match="no CUDA"):
                attempts.compiled(original, None, None, None, None)
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
    assert ("changed an argument meanwhile" in notes) == (side == "safe" and sys.version_info >= (3, 11))
    assert compiled(torch.zeros(1), data).tolist() == [1.0]

"""What the threads of a workload did: calls, errors, wrong numbers, compiles, and calls that silently ran eager."""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable
from typing import Any

from .._torch.dynamo import DYNAMO


class Tally:
    """Counts for all threads of one workload.

    Thread safety: every method may be called from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the counts; held for a few additions
        self._here = threading.local()
        self.calls = self.raised = self.wrong = self.eager = self.compiles = 0
        self.first_error: str | None = None
        self.measured_s: float | None = None
        self._took_ms: list[float] = []
        self._first_ms: list[float] = []

    def step(self, work: Callable[[], bool], *, compiled: bool) -> None:
        """Runs ``work``, which tells whether its numbers were right, and counts what came of it.

        With ``compiled=True`` it must run the code of a compiled function; where it returns without having run any,
        torch has run the function eagerly and said nothing.
        """
        runs, began = self._runs(), time.monotonic()
        try:
            right = work()
        except Exception as error:  # noqa: BLE001  to count what fails is the point
            with self._lock:
                self.calls += 1
                self.raised += 1
                self.first_error = self.first_error or in_one_line(error)
        else:
            ran_eager = compiled and self._runs() == runs
            with self._lock:
                self.calls += 1
                self.wrong += not right
                self.eager += ran_eager
        self._note((time.monotonic() - began) * 1e3)

    def _note(self, took_ms: float) -> None:
        with self._lock:
            self._took_ms.append(took_ms)
            if not getattr(self._here, "has_called", False):
                self._first_ms.append(took_ms)
        self._here.has_called = True

    def snapshot(self) -> dict[str, Any]:
        """Returns the counts of this moment."""
        with self._lock:
            counts = {name: value for name, value in vars(self).items() if not name.startswith("_")}
            took = sorted(self._took_ms)
            longest = max(self._first_ms, default=0.0)
        shares = {f"p{p}_ms": took[min(len(took) - 1, len(took) * p // 100)] if took else 0.0 for p in (50, 95, 99)}
        return {**counts, **shares, "longest_first_ms": longest}

    def backend(self, name: str) -> Callable[..., Any]:
        """Returns the backend ``name`` of torch's, counting its compiles and the runs of what it compiled."""
        compile_with = _lookup_backend(name)

        def counting_backend(graph: Any, inputs: Any) -> Callable[..., Any]:
            with self._lock:
                self.compiles += 1
            compiled = compile_with(graph, inputs)

            def run(*args: Any) -> Any:
                self._here.runs = self._runs() + 1
                return compiled(*args)

            return run

        return counting_backend

    def _runs(self) -> int:
        return int(getattr(self._here, "runs", 0))


def in_one_line(error: BaseException) -> str:
    """Returns the type and the first two lines of the message: torch often names the real error in the second."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])}"


def _lookup_backend(name: str) -> Callable[..., Any]:
    # torch has no public function from a backend's name to the backend.
    return importlib.import_module(DYNAMO).lookup_backend(name)  # type: ignore[no-any-return]

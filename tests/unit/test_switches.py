"""More switches of the process, and counts that calls share: what one thread does with them, the others do not see.

Each scene is the same with the library and in plain torch; a probe tells whether this release has the fault.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from tests.helpers.threads import ParkedBackend, run_threads

Pause = Callable[[], None]


def beside(first: Callable[[Pause], Any], second: Callable[[Pause], Any]) -> list[Any]:
    """Runs ``second`` in a thread while ``first`` stands, in another, where it calls its argument; returns the results.

    ``first`` goes on when ``second`` has ended, or earlier, when it calls *its* argument: there it stays until
    ``first`` has ended.
    """
    stands, goes_on, ended = (threading.Event() for _ in range(3))

    def pause() -> None:
        stands.set()
        assert goes_on.wait(30)

    def stay() -> None:
        goes_on.set()
        assert ended.wait(30)

    def one() -> Any:
        try:
            return first(pause)
        finally:
            stands.set()
            ended.set()

    def other() -> Any:
        try:
            assert stands.wait(30)
            return second(stay)
        finally:
            goes_on.set()

    return run_threads([one, other])


def inside(context: Any) -> Callable[[Pause], None]:
    """Returns a first thread that stands inside ``context``."""

    def first(pause: Pause) -> None:
        with context:
            pause()

    return first


def running(body: Callable[[], None]) -> Callable[[Any, Any], Callable[..., Any]]:
    """Returns a backend whose compiled code calls ``body`` at each run."""

    def backend(graph: Any, _: Any) -> Callable[..., Any]:
        def compiled(*args: Any) -> Any:
            body()
            return graph.forward(*args)

        return compiled

    return backend


def is_of_the_process(exchange: Callable[[int], int], value: int) -> bool:
    """Tells whether what this thread sets by ``exchange``, which returns what was there, is seen in another one."""
    before = exchange(value)
    try:
        return run_threads([lambda: exchange(before)]) == [value]
    finally:
        exchange(before)


def test_an_export_keeps_its_modes_beside_a_printed_tensor(side):
    """An export goes on beside what puts all modes aside for a while, as printing a tensor does, and is right."""

    def exports(pause: Pause) -> Any:
        class Exported(torch.nn.Module):
            def forward(self, x):
                pause()
                return x + 1

        return torch.export.export(Exported(), (torch.zeros(2),), strict=False).module()(torch.zeros(2)).tolist()

    def prints(pause: Pause) -> str:
        with _disable_current_modes():
            pause()
        return str(torch.ones(3))

    try:
        results = beside(exports, prints)
    except BaseException as error:
        results = [error]
    finally:  # in plain torch the modes of the export stay, for the whole process
        state = torch._ops.mode_stack_state_for_pre_dispatch()
        state.set(0, None)
        state.set(1, None)
    assert (results == [[1.0, 1.0], "tensor([1., 1., 1.])"]) == (side == "safe"), results


def test_is_exporting_is_true_in_the_exporting_thread_alone(side):
    """Eager code beside an export is told that nobody exports; the exported module is told the truth."""
    told = []

    def exports(pause: Pause) -> None:
        class Exported(torch.nn.Module):
            def forward(self, x):
                told.append(torch.compiler.is_exporting())
                pause()
                return x + 1

        torch.export.export(Exported(), (torch.zeros(2),), strict=False)

    _, seen = beside(exports, lambda _: torch.compiler.is_exporting())
    assert (seen, told[0], torch.compiler.is_exporting()) == (side == "plain", True, False)


def test_a_dispatch_mode_of_another_thread_hinders_no_compile(side):
    """A function whose first call is beside another thread's dispatch mode is compiled."""

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    backend = ParkedBackend(parked=False)
    compiled = torch.compile(lambda x: x + 2, backend=backend)
    beside(inside(Mode()), lambda _: compiled(torch.zeros(2)))
    compiled(torch.zeros(2))  # in plain torch it is left alone for good
    looks_at_its_own = hasattr(torch._dynamo.convert_frame, "any_torch_dispatch_mode_on_stack")  # since torch 2.11
    assert backend.compiles == (1 if side == "safe" or looks_at_its_own else 0)


def test_error_on_graph_break_is_its_threads_own(side):
    """A graph break is none of the business of a thread that asked for an error in its own."""
    if not hasattr(torch._dynamo, "error_on_graph_break"):
        pytest.skip("this torch has no error_on_graph_break")

    @torch.compile(backend="eager")
    def breaks(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        torch._dynamo.graph_break()
        return x * 2

    def call(_: Pause) -> Any:
        try:
            return breaks(torch.zeros(2)).tolist()
        except torch._dynamo.exc.Unsupported as error:
            return error

    _, result = beside(inside(torch._dynamo.error_on_graph_break(True)), call)
    assert result == [2.0, 2.0] if side == "safe" else isinstance(result, torch._dynamo.exc.Unsupported)


def test_torchs_rules_skip_beside_a_trace_that_looks_into_all_files(side):
    """What a higher-order operator calls is traced wherever it stands: in its own trace."""
    rules = torch._dynamo.trace_rules
    if not hasattr(rules, "_force_inline"):
        pytest.skip("this torch skips by its rules everywhere")
    _, skipped = beside(inside(rules._force_inline()), lambda _: rules.check(torch._dynamo.reset.__code__))
    assert skipped == (side == "safe")


def test_the_active_ddp_module_of_another_thread_splits_no_graph(side):
    """A compile beside the forward of a DistributedDataParallel in another thread makes one graph."""
    if not torch.distributed.is_available():
        pytest.skip("this torch was built without torch.distributed")
    from torch.nn.parallel import DistributedDataParallel

    ddp = DistributedDataParallel.__new__(DistributedDataParallel)  # there is no process group
    ddp.__dict__["bucket_bytes_cap"] = 2**20
    backend = ParkedBackend(parked=False)
    layers = [torch.nn.Linear(600, 600) for _ in range(2)]  # each fills a bucket
    compiled = torch.compile(torch.nn.Sequential(*layers), backend=backend)
    beside(inside(ddp._inside_ddp_forward()), lambda _: compiled(torch.zeros(2, 600)))
    assert backend.compiles == (1 if side == "safe" else 2)


def test_a_fullgraph_call_does_not_lose_its_count_to_others(side, monkeypatch):
    """A warm ``fullgraph=True`` call has run compiled code, whatever other calls end and begin meanwhile."""
    ef = torch._dynamo.eval_frame
    exchange = getattr(ef, "set_fullgraph_compiled_frame_count", None)
    if exchange is None:
        pytest.skip("this torch does not count")
    fault = side == "plain" and is_of_the_process(exchange, 5)
    at_the_end: list[Pause] = []  # of a call, between the two times that it sets the count to -1
    in_the_code: list[Pause] = []

    def _exchange(value: int) -> int:
        before = exchange(value)
        if value == -1 and at_the_end:
            at_the_end.pop()()
        return before

    monkeypatch.setattr(ef, "set_fullgraph_compiled_frame_count", _exchange)
    parked = ParkedBackend()
    cold = torch.compile(lambda x: x + 2, backend=parked, fullgraph=True)
    third = threading.Thread(target=lambda: cold(torch.zeros(2)), daemon=True)
    warm = torch.compile(lambda x: x + 1, backend=running(lambda: in_the_code and in_the_code.pop()()), fullgraph=True)
    warm(torch.zeros(2))

    def first(pause: Pause) -> None:
        at_the_end.append(pause)
        warm(torch.zeros(2))

    def second(stay: Pause) -> Any:
        in_the_code[:] = [lambda: (stay(), third.start(), parked.wait_parked())]
        try:
            return warm(torch.zeros(2)).tolist()
        except RuntimeError as error:
            return str(error)
        finally:
            parked.release()
            third.join(30)

    _, result = beside(first, second)
    assert "found no compiled frames" in result if fault else result == [1.0, 1.0]


def test_isolate_recompiles_beside_a_call_of_another_region(side):
    """A warm call goes on in its own region after another thread's call has begun in another."""
    if "isolate_recompiles" not in inspect.signature(torch.compile).parameters:
        pytest.skip("this torch has no isolate_recompiles")
    ef = torch._C._dynamo.eval_frame
    fault = side == "plain" and is_of_the_process(ef.set_eval_frame_isolate_recompiles_id, 1_000_000)
    at: list[Pause] = []

    @torch._dynamo.disable
    def stand() -> None:
        at and at[0]()

    def breaks(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        stand()
        return x * 2

    def first(pause: Pause) -> None:
        at.append(pause)
        warm(torch.zeros(2))

    def second(stay: Pause) -> None:
        torch.compile(lambda x: x - 1, backend=running(stay), isolate_recompiles=True)(torch.zeros(2))

    backend = ParkedBackend(parked=False)
    warm = torch.compile(breaks, backend=backend, isolate_recompiles=True)
    warm(torch.zeros(2))
    assert backend.compiles == 2
    beside(first, second)
    assert backend.compiles == (3 if fault else 2)


def test_skipping_guards_is_its_threads_own(side):
    """A thread that has not asked to skip guards gets the result for its own arguments."""
    compiled = torch.compile(lambda x, plus: x + 10 if plus else x - 10, backend="eager")
    compiled(torch.zeros(2), True)

    def skips(pause: Pause) -> None:
        with torch.compiler.set_stance(skip_guard_eval_unsafe=True):
            pause()

    _, result = beside(skips, lambda _: compiled(torch.zeros(2), False).tolist())
    assert result == ([-10.0, -10.0] if side == "safe" else [10.0, 10.0])

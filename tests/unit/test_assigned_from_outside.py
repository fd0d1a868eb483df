"""Variables of torch's modules that are per-thread with the library: what is assigned from outside acts."""

from __future__ import annotations

import pickle
from typing import Any
from unittest import mock

import pytest
import torch
import torch._dynamo
import torch.fx._symbolic_trace as tracing

from tests.helpers.threads import run_threads

FLAG = "_is_fx_tracing_flag"
has_flag = pytest.mark.skipif(hasattr(tracing, "_set_is_fx_tracing"), reason="the flag is thread-local in this torch")


@has_flag
def test_a_popular_workaround_acts(side: str) -> None:
    """``_is_fx_tracing_flag = False`` inside a trace lets it call compiled code."""
    compiled = torch.compile(lambda x: x + 1, backend="eager")
    told: list[Any] = []

    class Traced(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            told.append(tracing.is_fx_tracing())
            tracing._is_fx_tracing_flag = False
            told.append((tracing.is_fx_tracing(), tracing._is_fx_tracing_flag, run_threads([tracing.is_fx_tracing])))
            compiled(torch.ones(2))
            tracing._is_fx_tracing_flag = True
            told.append(tracing.is_fx_tracing())
            return x

    torch.fx.symbolic_trace(Traced())
    assert told == [True, (False, False, [False]), True], side
    assert tracing.is_fx_tracing() is False


@has_flag
@pytest.mark.usefixtures("installed")
def test_what_one_thread_assigns_another_does_not_see() -> None:
    """Each thread has its own."""
    tracing._is_fx_tracing_flag = True
    try:
        assert (tracing.is_fx_tracing(), run_threads([tracing.is_fx_tracing])) == (True, [False])
    finally:
        tracing._is_fx_tracing_flag = False


@pytest.mark.parametrize("of_monkeypatch", [True, False])
def test_a_patched_variable_is_as_before_afterwards(
    side: str, of_monkeypatch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``mock.patch.object`` and pytest's ``monkeypatch`` put back what was there."""
    from torch.fx import traceback

    before = traceback.current_meta
    if of_monkeypatch:
        monkeypatch.setattr(traceback, "current_meta", {"a": 1})
        assert traceback.get_current_meta() == {"a": 1}
        monkeypatch.undo()
    else:
        with mock.patch.object(traceback, "current_meta", {"a": 1}):
            assert traceback.get_current_meta() == {"a": 1}, side
    assert traceback.current_meta is before
    assert traceback.get_current_meta() is before


def test_a_flag_of_the_compiler_that_somebody_sets_is_on(side: str) -> None:
    """``torch.compiler._is_compiling_flag = True`` acts in every thread, also after a compile, until it is cleared."""
    torch.compiler._is_compiling_flag = True
    try:
        torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
        assert (torch.compiler.is_compiling(), run_threads([torch.compiler.is_compiling])) == (True, [True]), side
    finally:
        torch.compiler._is_compiling_flag = False
    assert (torch.compiler.is_compiling(), run_threads([torch.compiler.is_compiling])) == (False, [False])


@pytest.mark.usefixtures("installed")
def test_a_module_of_another_class_is_a_module() -> None:
    """Dynamo takes it for one where traced code imports it; it is pickled by its name."""
    from torch.fx import traceback

    if type(traceback) is not type(torch):
        assert pickle.loads(pickle.dumps(traceback)) is traceback

    def imports(x: Any) -> Any:
        import torch.fx.traceback as module

        return x + (1 if module.__name__ == "torch.fx.traceback" else 2)

    assert torch.compile(imports, backend="eager", fullgraph=True)(torch.zeros(1)).item() == 1

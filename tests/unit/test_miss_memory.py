"""What the engine remembers of a compile: nothing, once its result can be found."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from safecompile._engine import miss, returned
from tests.helpers.threads import run_threads

pytestmark = pytest.mark.usefixtures("installed")


def objects_of_the_engine() -> int:
    gc.collect()
    return sum(str(type(one).__module__).startswith("safecompile._engine.") for one in gc.get_objects())


def a_compiled_model() -> weakref.ref[torch.nn.Module]:
    """Compiles a model of its own code in two threads, and drops it."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.weight

    model = Model()
    compiled = torch.compile(model, backend="eager")
    run_threads([lambda: compiled(torch.ones(2))] * 2)
    return weakref.ref(model)


def test_compiled_models_leave_nothing_behind() -> None:
    """300 models that were compiled by two threads and dropped are gone, and so is every flight and result."""
    for _ in range(3):
        a_compiled_model()
    torch.compiler.reset()
    before = objects_of_the_engine()
    models = []
    for index in range(300):
        models.append(a_compiled_model())
        if index % 30 == 29:
            torch.compiler.reset()  # the models share the code of forward, and so its recompile limit
    gc.collect()
    assert miss.flights == {}
    assert not [ref for ref in list(returned.notes.values()) if ref() is not None]
    assert len(returned.notes) <= 2, "a note for each thread that ever compiled"
    assert objects_of_the_engine() <= before
    assert sum(model() is not None for model in models) == 0


def test_a_model_dies_without_reset() -> None:
    """A model that was compiled is collected when its last reference goes, with the entries in place."""
    model = a_compiled_model()
    gc.collect()
    assert model() is None

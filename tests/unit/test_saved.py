"""What is pickled or saved with the library loads without it: no pickle reaches an object of the library."""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo

from tests.helpers.nursery import in_forked_process

WITHOUT = """
    import sys
    sys.modules["safecompile"] = None
    import io, os, pickle, torch
    kind, data = pickle.load(open(os.environ["SAVED"], "rb"))
    loaded = pickle.loads(data) if kind == "pickle" else torch.load(io.BytesIO(data), weights_only=False)
    assert loaded(torch.ones(2, 2)).shape == (2, 2)
"""


def warm() -> Any:
    """Returns a compiled module that was called, and whose backward ran."""
    torch._dynamo.reset()
    module = torch.compile(torch.nn.Linear(2, 2), backend="eager")
    module(torch.ones(2, 2)).sum().backward()
    return module


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("kind", ["pickle", "torch.save", "a copy", "a replica"])
def test_a_compiled_module_loads_without_the_library(kind: str, tmp_path: Path) -> None:
    """And its file does not name it."""
    module = warm()
    if kind == "torch.save":
        buffer = io.BytesIO()
        torch.save(module, buffer)
        data = buffer.getvalue()
    else:
        data = pickle.dumps(
            copy.deepcopy(module)
            if kind == "a copy"
            else module._replicate_for_data_parallel()
            if kind == "a replica"
            else module
        )
    assert b"safecompile" not in data
    file = tmp_path / "saved"
    file.write_bytes(pickle.dumps(("torch.save" if kind == "torch.save" else "pickle", data)))
    if kind != "a replica":  # has no parameters of its own before nn.DataParallel gives it some
        done = in_forked_process(WITHOUT, SAVED=str(file))
        assert done.returncode == 0, done.stderr


def test_nothing_of_the_librarys_is_reachable_from_a_pickle() -> None:
    """Neither from the callback of a compiled function, nor from a decorated class, a patch, a context."""
    module = warm()
    pending: list[Any] = [vars(module), torch.compiler.set_stance("default"), torch._dynamo.config.patch(verbose=True)]
    seen: set[int] = set()
    while pending:
        one = pending.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        for name, value in list(getattr(one, "__dict__", one if type(one) is dict else {}).items()):
            assert "safecompile" not in str(name), one
            kind = type(value)
            assert not kind.__module__.startswith("safecompile"), (name, kind)
            if kind is dict or kind.__module__.startswith("torch"):
                pending.append(value)

"""What the library leaves in the traceback of an error that is not its own."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo

import safecompile

PACKAGE = str(Path(str(safecompile.__file__)).parent)


def breaks(x: torch.Tensor) -> torch.Tensor:
    torch._dynamo.graph_break()
    return x + 1


def raising(graph: Any, inputs: Any) -> Any:
    raise ZeroDivisionError("the backend's")


def backward_raising(graph: Any, inputs: Any) -> Any:
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.aot_autograd import make_boxed_func

    return aot_autograd(fw_compiler=lambda g, _: make_boxed_func(g.forward), bw_compiler=raising)(graph, inputs)


def sin(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


def unsupported() -> None:
    torch.compile(breaks, backend="eager", fullgraph=True)(torch.ones(2))


def unsupported_in_full() -> None:
    with torch._dynamo.config.patch(verbose=True):
        unsupported()


def of_the_backend() -> None:
    torch.compile(sin, backend=raising)(torch.ones(2))


def of_the_backward() -> None:
    torch.compile(sin, backend=backward_raising)(torch.ones(2, requires_grad=True)).sum().backward()


def internal() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch._dynamo.convert_frame.ConvertFrame, "__call__", lambda *_, **__: {}["nothing"])
        torch.compile(sin, backend="eager")(torch.ones(2))


CASES = [unsupported, unsupported_in_full, of_the_backend, of_the_backward, internal]


def of_the_package(error: BaseException | None) -> list[str]:
    frames = []
    while error is not None:
        frames += [one.name for one in traceback.extract_tb(error.__traceback__) if one.filename.startswith(PACKAGE)]
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return frames


def others(error: BaseException) -> list[str]:
    return [one.name for one in traceback.extract_tb(error.__traceback__) if not one.filename.startswith(PACKAGE)]


@pytest.mark.parametrize("case", CASES)
def test_at_most_two_frames_of_the_library(case: Any) -> None:
    """The traceback of an error that torch raises is plain torch's, but for the frames where the library stands in."""
    seen = {}
    for side in ("plain", "safe"):
        torch._dynamo.reset()
        safecompile.install() if side == "safe" else safecompile.uninstall()
        with pytest.raises(Exception) as raised:
            case()
        seen[side] = others(raised.value)
        assert len(of_the_package(raised.value)) <= (2 if side == "safe" else 0), of_the_package(raised.value)
    assert [name for name in seen["plain"] if name in seen["safe"]] == seen["safe"]
    assert set(seen["plain"]) - set(seen["safe"]) <= {"__call__", "get_or_compile"}, (
        "those that the library stands in for"
    )
    safecompile.uninstall()


def test_the_refusal_to_compile_is_a_new_error_each_time() -> None:
    """An error that is raised again and again keeps all its tracebacks, and with them the callers' variables."""
    from safecompile._common.errors import HostMismatchError
    from safecompile._installing import applying
    from safecompile._patching.families import Family, Part
    from safecompile._torch import dynamo

    family = Family("miss", [])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(applying, "mismatch", HostMismatchError("miss", "something", "9.9"))
        convert_frame = torch._dynamo.convert_frame
        applying._refuse_to_compile(family, Part("miss", dynamo.CONVERT_FRAME, lambda _: []), convert_frame)
        try:
            errors = []
            for _ in range(3):
                with pytest.raises(HostMismatchError) as raised:
                    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
                errors.append(raised.value)
        finally:
            applying._undo(family)
    assert len(set(map(id, errors))) == 3
    assert len({len(traceback.extract_tb(one.__traceback__)) for one in errors}) == 1
    assert {(one.family, one.what, one.version) for one in errors} == {("miss", "something", "9.9")}

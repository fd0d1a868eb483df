"""warmup: compiles for each device and signature before the threads start; afterwards a compile is an error."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._dynamo

from safecompile import RecompileError, SafeCompileError, safe_compile, warmup
from safecompile._warmup import Warmed
from tests.helpers.compiles import Counting
from tests.helpers.threads import ParkedBackend, run_threads

META = torch.empty(3, device="meta")


@pytest.fixture(autouse=True)
def _clean(installed: None) -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def body(x: torch.Tensor, scale: Any = None) -> torch.Tensor:
    return x.sin() if scale is None else x * scale


def broken(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    torch._dynamo.graph_break()
    return y + 1


def test_each_signature_in_order() -> None:
    """Each is compiled once, and what was compiled is said; the threads that come then compile nothing."""
    backend = Counting()
    compiled = safe_compile(body, backend=backend, dynamic=False)
    done = warmup(compiled, META, (META, torch.ones(3)), {"x": META}, devices=["cpu"])
    assert [(one.device, one.inputs, one.compiled) for one in done] == [
        ("cpu", "float32[3]", ("body",)),
        ("cpu", "float32[3], float32[3]", ("body",)),
        ("cpu", "float32[3]", ()),
    ]
    assert all(one.seconds > 0 for one in done)
    run_threads([lambda: compiled(torch.ones(3))] * 8)
    assert backend.counts == (2, 0)


def test_a_call_that_would_compile_is_an_error() -> None:
    """It names the guard that failed, nothing is run, and calls that fit go on; a later warmup takes it back."""
    backend = Counting()
    compiled = safe_compile(body, backend=backend, dynamic=False)
    warmup(compiled, torch.ones(3))
    with pytest.raises(
        RecompileError, match=r"body .*test_warmup.py:\d+\) on cpu would compile(.|\n)*size mismatch"
    ) as raised:
        compiled(torch.ones(4))
    assert pickle.loads(pickle.dumps(raised.value)).guards == raised.value.guards
    torch.testing.assert_close(compiled(torch.ones(3)), torch.ones(3).sin())
    warmup(compiled, torch.ones(4), recompiles_are_errors=False)
    compiled(torch.ones(5))
    assert backend.counts == (3, 0)


def test_other_functions_compile() -> None:
    """It holds for the function alone, with its resumed frames and what it calls."""
    compiled = safe_compile(broken, backend="eager", dynamic=False)
    done = warmup(compiled, torch.ones(3))
    assert done[0].compiled[0] == "broken"
    assert len(done[0].compiled) == 2
    torch.compile(body, backend="eager")(torch.ones(3))
    torch._dynamo.reset()
    with pytest.raises(RecompileError, match="no compiled version"):
        compiled(torch.ones(3))


def test_backward_is_compiled_and_no_gradient_is_changed() -> None:
    """With backward=True the backward is compiled, of a model as well."""
    model, backend = torch.nn.Linear(3, 3), Counting("aot_eager")
    compiled = safe_compile(model, backend=backend)
    done = warmup(compiled, META, devices=["cpu"], backward=True)
    assert backend.counts == (1, 1)
    assert done[0].compiled[-1].endswith("(backward)")
    assert model.weight.grad is None
    compiled(torch.ones(3)).sum().backward()
    assert backend.counts == (1, 1)
    with pytest.raises(SafeCompileError, match="no output needs a gradient"):
        warmup(safe_compile(body, backend="eager"), torch.ones(3), backward=True)


def compile_elsewhere() -> list[Warmed]:
    x = torch.ones(3, requires_grad=True)
    safe_compile(lambda y: y.cos(), backend="aot_eager")(x).sum().backward()
    return warmup(safe_compile(body, backend="aot_eager"), x, backward=True)


def test_only_its_own_compiles_are_counted() -> None:
    """What other threads compile meanwhile is not: no function, no backward, and nothing of another warmup."""
    others: list[Warmed] = []
    run_elsewhere = torch._dynamo.disable(lambda: run_threads([lambda: others.extend(compile_elsewhere())]))

    def beside(x: torch.Tensor) -> torch.Tensor:
        run_elsewhere()
        return x.sin()

    compiled = safe_compile(beside, backend="aot_eager")
    done = warmup(compiled, torch.ones(3, requires_grad=True), backward=True)
    assert all("beside" in name for name in done[0].compiled), done
    assert all("body" in name for name in others[0].compiled), others
    for one in (done[0], others[0]):
        assert sum(name.endswith(" (backward)") for name in one.compiled) == 1, one


def test_inputs_are_used_as_they_are() -> None:
    """A tensor is not copied; one on meta gets the strides, dtype and requires_grad that it has."""
    seen: list[torch.Tensor] = []

    def sees(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        seen.append(x)
        return x + 1

    own = torch.ones(3)
    meta = torch.empty(4, 2, device="meta", dtype=torch.float64).t().requires_grad_()
    warmup(safe_compile(sees, backend="eager"), own)
    warmup(safe_compile(sees, backend="eager"), meta, devices=["cpu"])
    assert seen[0] is own
    assert (seen[1].stride(), seen[1].dtype, seen[1].requires_grad) == ((1, 2), torch.float64, True)


def test_what_is_refused() -> None:
    """What is not compiled, and a tensor that would have to be copied, are errors that say what to pass."""
    with pytest.raises(SafeCompileError, match="not compiled"):
        warmup(body, torch.ones(3))
    compiled = safe_compile(body, backend="eager")
    for inputs, devices in ((META, None), (torch.ones(3), ["meta"])):
        with pytest.raises(SafeCompileError, match="copies none"):
            warmup(compiled, inputs, devices=devices)


def test_it_waits_whatever_the_limit() -> None:
    """Beside another thread's compile a warmup of a function with a limit waits, and compiles."""
    parked = ParkedBackend()
    other = safe_compile(lambda x: x - 1, backend=parked)
    thread = threading.Thread(target=lambda: other(torch.ones(3)), daemon=True)
    thread.start()
    parked.wait_parked()
    threading.Timer(0.2, parked.release).start()
    done = warmup(safe_compile(body, backend="eager", max_wait_s=0.0), torch.ones(3))
    assert done[0].compiled == ("body",)
    thread.join(60)

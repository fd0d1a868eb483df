"""Exports, loads of exported programs and decompositions in several threads: each as if it were alone.

Each scene is the same with the library and in plain torch.
"""

from __future__ import annotations

import builtins
import gc
import io
import math
import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import torch._dynamo

from tests.helpers.threads import ParkedBackend, run_threads

from .test_switches import Pause, beside

# What an export replaces: since torch 2.9.
overrides = pytest.mark.skipif(
    not hasattr(__import__("torch._export.non_strict_utils")._export.non_strict_utils, "_override_builtin_ops"),
    reason="exports of this torch replace no builtins",
)


class Model(torch.nn.Module):
    """A module whose forward stands at a pause, between two layers."""

    def __init__(self, pause: Pause = lambda: None) -> None:
        super().__init__()
        self.first, self.second, self.pause = torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), pause

    def forward(self, x):
        x = torch.relu(self.first(x))
        self.pause()
        return self.second(x)


def export(model: torch.nn.Module, **more: Any) -> Any:
    return torch.export.export(model, (torch.ones(3, 4),), **more)


def is_right(program: Any, model: torch.nn.Module) -> bool:
    x = torch.randn(3, 4)
    return bool(torch.allclose(program.module()(x), model(x), atol=1e-6))


def result(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@pytest.fixture(autouse=True)
def nothing_stays_replaced(request, monkeypatch):
    """Brings back what exports that overlap leave behind in plain torch."""
    plain = "side" in request.fixturenames and request.getfixturevalue("side") == "plain"
    modules = (torch.fx.traceback, torch.fx.experimental.proxy_tensor, torch.fx._symbolic_trace, torch.compiler)
    modules = modules if plain else ()
    variables = [(vars(module), dict(vars(module))) for module in modules]
    methods = [(torch.nn.Module, "__call__"), (torch.nn.Module, "__getattr__")]
    for module, name in ((builtins, "max"), (builtins, "min"), (math, "pow"), *methods):
        monkeypatch.setattr(module, name, getattr(module, name))
    for (_, name), space in torch.fx._symbolic_trace._wrapped_fns_to_patch.items():
        if name in space:
            monkeypatch.setitem(space, name, space[name])
    yield
    state = torch._ops.mode_stack_state_for_pre_dispatch()
    state.set(0, None)
    state.set(1, None)
    for space, before in variables:
        space.update(before)
        before.get("current_meta", {}).clear()


def test_an_export_that_begins_and_ends_inside_of_another(side):
    """Two exports at once are both right."""

    def exports(pause: Pause) -> Any:
        model = Model(pause)
        program = export(model, strict=False)
        model.pause = lambda: None
        return is_right(program, model)

    def both() -> list[Any]:
        inner = Model()
        return beside(exports, lambda _: is_right(export(inner, strict=False), inner))

    assert (result(both) == [True, True]) == (side == "safe")


def test_exports_whose_ends_cross(side):
    """An export that ends inside of another one takes nothing from it."""

    def exporting(model: Model) -> bool:
        program = export(model, strict=False)
        model.pause = lambda: None
        return is_right(program, model)

    def both() -> list[Any]:
        return beside(lambda pause: exporting(Model(pause)), lambda stay: exporting(Model(stay)))

    assert (result(both) == [True, True]) == (side == "safe")


@pytest.mark.filterwarnings(
    "ignore:unclosed file:ResourceWarning"
)  # the log that torch 2.15's draft export leaves open
@pytest.mark.parametrize("how", ["not strict", "strict", "draft", "decomposed"])
def test_many_exports_at_once(installed, how):
    """Any number of exports of any kind may run at once."""
    from torch.export._draft_export import draft_export

    def one() -> bool:
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8))
        program = draft_export(model, (torch.ones(3, 4),)) if how == "draft" else export(model, strict=how == "strict")
        return is_right(program.run_decompositions() if how == "decomposed" else program, model)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert run_threads([one] * 4, timeout_s=200) == [True] * 4
        gc.collect()


def test_a_first_call_beside_an_export(installed):
    """A function is compiled once, and right, while another thread exports; the export is right, too."""
    backend = ParkedBackend(parked=False)

    def exports(pause: Pause) -> bool:
        model = Model(pause)
        program = export(model, strict=False)
        model.pause = lambda: None
        return is_right(program, model)

    compiled = torch.compile(lambda x: x.sin() + 1, backend=backend)
    x = torch.ones(3)
    first, second = beside(exports, lambda _: torch.allclose(compiled(x), x.sin() + 1))
    assert (first, second, backend.compiles) == (True, True, 1)


def test_backends_that_exports_switch_off_are_on_again(side):
    """Of exports that overlap the last to end switches MKL-DNN on again."""
    context = torch.export._trace._ignore_backend_decomps
    first, second = context(), context()
    before = torch._C._get_mkldnn_enabled()
    try:
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        between = torch._C._get_mkldnn_enabled()
        second.__exit__(None, None, None)
        after = torch._C._get_mkldnn_enabled()
    finally:
        torch.backends.mkldnn.set_flags(before)
    assert (between, after) == ((False, before) if side == "safe" else (before, False))


def test_loads_at_once(side):
    """A program is loaded while another thread is in the middle of loading one."""
    saved = io.BytesIO()
    model = Model()
    torch.export.save(export(model, strict=False), saved)
    deserializer = torch._export.serde.serialize.GraphModuleDeserializer
    pauses: list[Pause] = []

    def load() -> bool:
        return is_right(torch.export.load(io.BytesIO(saved.getvalue())), model)

    def loads_slowly(pause: Pause) -> bool:
        pauses.append(pause)
        return load()

    original = deserializer.deserialize_graph

    def deserialize_graph(self: Any, *args: Any) -> Any:
        if pauses:
            pauses.pop()()
        return original(self, *args)

    deserializer.deserialize_graph = deserialize_graph
    try:
        loaded = result(lambda: beside(loads_slowly, lambda _: load()))
    finally:
        deserializer.deserialize_graph = original
    assert (loaded == [True, True]) == (side == "safe"), loaded


def exporting_beside(function: Callable[[], Any]) -> Any:
    """Returns what ``function`` returns in a thread while another is in the middle of an export."""
    return beside(lambda pause: export(Model(pause), strict=False), lambda _: function())[1]


@overrides
def test_math_beside_an_export(side):
    """``math.pow`` returns a float in a thread that does not export."""
    assert exporting_beside(lambda: type(math.pow(2, 3))) is (float if side == "safe" else int)
    assert "pow" in vars(math)
    assert type(math).__name__ == "module"


@overrides
def test_builtins_of_compiled_code_beside_an_export(side):
    """Code with ``max`` that was compiled before is not compiled again; what is compiled meanwhile stays good."""
    backend = ParkedBackend(parked=False)
    x = torch.ones(3)
    warm = torch.compile(lambda x, n: x * max(n, 2), backend=backend)
    cold = torch.compile(lambda x, sizes: x * max(sizes) + min(3, x.shape[0]), backend=backend)
    by_attribute = torch.compile(lambda x: x * builtins.max(2, 3), backend=backend)
    keyed = torch.compile(lambda x, names: x * len(max(names, key=len)), backend=backend)
    calls = [lambda: warm(x, 3), lambda: cold(x, [1, 5]), lambda: by_attribute(x), lambda: keyed(x, ["a", "abc"])]
    warm(x, 3)

    def values() -> list[float]:
        return [call()[0].item() for call in calls]

    seen = result(lambda: exporting_beside(values))
    between = backend.compiles
    after = values()
    right = (seen, after, between, backend.compiles) == ([3.0, 8.0, 3.0, 3.0], [3.0, 8.0, 3.0, 3.0], 4, 4)
    assert right == (side == "safe"), (seen, after, between, backend.compiles)


@overrides
def test_an_export_has_its_own_max(installed):
    """In the exporting thread ``max`` of a symbolic size stays symbolic, as in plain torch, beside another export."""

    class Sizes(torch.nn.Module):
        def __init__(self, pause: Pause) -> None:
            super().__init__()
            self.pause = pause

        def forward(self, x):
            self.pause()
            return x.new_zeros(max(x.shape[0], 4) * 2) + math.pow(x.shape[0], 2)

    def exports(pause: Pause) -> list[Any]:
        shapes = ({0: torch.export.Dim("n", min=2, max=64)},)
        program = torch.export.export(Sizes(pause), (torch.ones(3),), dynamic_shapes=shapes, strict=False)
        return [tuple(program.module()(torch.ones(n)).shape) for n in (3, 9)]

    assert beside(exports, exports) == [[(8,), (18,)]] * 2


@overrides
def test_what_an_exported_forward_puts_into_builtins(side):
    """A ``forward`` that replaces ``max`` for a while, as a mock does, calls what it has put there."""

    class Mocking(torch.nn.Module):
        def forward(self, x):
            with mock.patch.object(builtins, "max", return_value=42):
                found = max(1, 2)
            return x + found * 10 + max(1, 2)

    program = torch.export.export(Mocking(), (torch.ones(3),), strict=False)
    assert program.module()(torch.ones(3)).tolist() == [423.0] * 3
    assert max(1, 2) == 2


@overrides
def test_what_somebody_puts_into_builtins_beside_an_export_stays(installed):
    """A function that a program puts in the place of ``max`` meanwhile is not taken away by the end of the export."""
    original = max

    def mine(*args: Any) -> Any:
        return original(*args)

    def replace() -> None:
        builtins.max = mine  # type: ignore[assignment]

    exporting_beside(replace)
    assert max is mine


def test_buffers_of_others_beside_an_export(side):
    """No hook of an export's sees the buffers that other threads register; its own assignments are seen."""
    hooks = torch.nn.modules.module._global_buffer_registration_hooks

    class Counts(torch.nn.Module):
        def __init__(self, pause: Pause) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(4))
            self.pause = pause

        def forward(self, x):
            self.pause()
            self.count = self.count + 1
            return x + self.count

    def exports(pause: Pause) -> int:
        program = torch.export.export(Counts(pause), (torch.ones(3, 4),), strict=False)
        return sum("copy_" in str(node.target) for node in program.graph.nodes)

    def registers() -> int:
        torch.nn.BatchNorm1d(2)
        return len(hooks)

    alone, left = exports(lambda: None), len(hooks)  # exports at once in plain torch have left some, up to torch 2.8
    assert beside(exports, lambda _: registers()) == [alone, left if side == "safe" else left + 1]


def test_the_context_of_a_fake_implementation_is_its_threads_own(side):
    """``torch.library.get_ctx()`` gives the context of the operator that this thread runs, beside another thread's."""
    gc.collect()

    def stands(pause: Pause) -> None:
        with torch._library.fake_impl.set_ctx_getter(lambda: "another's"):
            pause()

    assert beside(stands, lambda _: torch.library.get_ctx())[1] == (None if side == "safe" else "another's")


def test_two_threads_that_call_an_operator_for_the_first_time(side):
    """A kernel that another thread has just cached is used."""
    operator = torch.ops.aten.sin.default
    key = torch._C.DispatchKey.AutogradCPU
    operator._dispatch_cache.pop(key, None)
    kernel = operator._get_dispatch(key)
    assert (result(lambda: operator._get_dispatch(key)) is kernel) == (side == "safe")

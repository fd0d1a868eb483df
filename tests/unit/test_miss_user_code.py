"""A miss reads arguments, modules and backends; it calls no line of the user's code that plain torch does not call."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._dynamo

from safecompile._common import reading
from safecompile._engine import frames
from safecompile._torch import arguments, cache
from tests.helpers.threads import run_threads


class Called(BaseException):
    """Raised by each line of the user's that a miss might call."""


def _refuse(*_: Any, **__: Any) -> Any:
    raise Called


class Proxy:
    """An object that answers for everything, and raises when it is asked."""

    __getattribute__ = __getattr__ = __eq__ = __bool__ = __len__ = __iter__ = __repr__ = __str__ = _refuse
    __hash__ = _refuse
    __class__ = property(_refuse)  # type: ignore[assignment]


class Items(list[Any]):
    """A list whose methods are the user's own."""

    __iter__ = __len__ = __eq__ = __getitem__ = _refuse


class UserTensor(torch.Tensor):
    """A tensor that sees each read of an attribute."""

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> Any:
        raise Called


class Wrapper(torch.Tensor):
    """A tensor that answers for its device by code of its own."""

    @staticmethod
    def __new__(cls) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, (2,), dispatch_device=True)

    @classmethod
    def __torch_dispatch__(cls, *_: Any, **__: Any) -> Any:
        raise Called


class OwnModule(torch.nn.Module):
    """A module whose methods are the user's own."""

    parameters = named_parameters = modules = named_modules = children = _refuse

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(2, 2, device="meta")

    def __getattr__(self, name: str) -> Any:
        raise Called


class Unmade(torch.nn.Module):
    """A module whose constructor has not run."""

    def __init__(self) -> None:
        pass


def device_of(*given: Any) -> str:
    """Returns the device that a miss of a function with these arguments finds."""
    frame = SimpleNamespace(f_code=(lambda a, b: (a, b)).__code__, f_locals=dict(zip("ab", given, strict=False)))
    return frames.device_of(frame)


@pytest.mark.parametrize(
    ("given", "device"),
    [
        ((Proxy(), torch.ones(1, device="meta")), "meta"),
        ((Items([Proxy(), torch.ones(1, device="meta")]),), "meta"),
        ((torch.ones(1, device="meta").as_subclass(UserTensor),), "meta"),
        ((Wrapper(), torch.ones(1, device="meta")), "meta"),
        ((OwnModule(),), "meta"),
        ((Unmade(), OwnModule()), "meta"),
        ((torch.nn.Sequential(Unmade(), torch.nn.Linear(1, 1, device="meta")),), "meta"),
        ((Unmade(),), "cpu"),
        ((torch.nn.Parameter(torch.ones(1, device="meta")),), "meta"),
    ],
)
def test_the_device_of_a_call_is_read(given: Any, device: str) -> None:
    """By the types and dictionaries as the interpreter keeps them."""
    assert device_of(*given) == device


def test_a_mode_of_the_user_sees_no_miss() -> None:
    """A TorchFunctionMode would see each read of ``Tensor.device``."""

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, *_: Any, **__: Any) -> Any:
            raise Called

    with Mode():
        assert device_of(torch.ones_like) == "cpu"
        assert arguments.tensor_device(TENSOR) == "meta"


TENSOR = torch.ones(1, device="meta")


def test_hooks_are_read() -> None:
    """A module under construction may have some, for all that can be read."""
    hooked = torch.nn.Linear(1, 1)
    assert not arguments.has_hooks(hooked)
    hooked.register_forward_pre_hook(lambda *_: None)
    assert arguments.has_hooks(hooked)
    assert arguments.has_hooks(Unmade())


def test_backends_are_compared_without_the_users_comparison() -> None:
    """Torch's own backends are equal by their options; of the user's only the same one is."""
    same = cache.is_same_backend
    inductor = torch._TorchCompileInductorWrapper
    assert same(inductor(None, None, None), inductor(None, None, None))
    assert not same(inductor(None, None, None), inductor(None, None, True))
    assert not same(inductor(None, {"max_autotune": True}, None), inductor(None, None, None))
    user = Proxy()
    assert same(user, user)
    assert not same(user, Proxy())

    class Backend:
        def compile(self, graph: Any, _: Any) -> Any:
            return graph.forward

    backend = Backend()
    assert same(backend.compile, backend.compile)
    assert reading.same({"a": [1, (2.0, None)]}, {"a": [1, (2.0, None)]})
    assert not reading.same({"a": [1, user]}, {"a": [1, Proxy()]})
    assert not reading.same({"a": 1}, {"b": 1})


class Backend:
    """A backend that counts how often it is compared and asked."""

    compared = asked = 0

    def __call__(self, graph: Any, _: Any) -> Any:
        return graph.forward

    def __eq__(self, other: object) -> bool:
        Backend.compared += 1
        return self is other

    __hash__ = object.__hash__

    def __getattr__(self, name: str) -> Any:
        Backend.asked += 1
        raise AttributeError(name)


def test_a_miss_compares_a_backend_as_often_as_plain_torch(side: str) -> None:
    """Two backends of one function, and shapes that miss; the library's misses add nothing."""

    def run() -> tuple[int, int]:
        torch._dynamo.reset()

        def f(x: Any) -> Any:
            return x + 1

        Backend.compared = Backend.asked = 0
        for backend in (Backend(), Backend()):
            compiled = torch.compile(f, backend=backend, dynamic=False)
            for size in (2, 3):
                compiled(torch.ones(size))
        return Backend.compared, Backend.asked

    told[side] = run()
    if len(told) == 2:
        assert told["safe"] == told["plain"]


told: dict[str, tuple[int, int]] = {}


def test_a_module_under_construction_is_compiled_around(side: str) -> None:
    """After a graph break a frame gets a module that ``nn.Module.__init__`` has not seen yet."""

    class Late(torch.nn.Module):
        def __init__(self, size: int) -> None:
            self.hidden = size
            super().__init__()
            self.inner = torch.nn.Linear(size, size)

        def __setattr__(self, name: str, value: Any) -> None:
            if name == "hidden":
                object.__setattr__(self, name, value)
            else:
                super().__setattr__(name, value)

        def forward(self, x: Any) -> Any:
            return self.inner(x)

    @torch.compile(backend="eager")
    def makes(x: Any) -> Any:
        torch._dynamo.graph_break()
        return Late(4)(x)

    assert makes(torch.ones(2, 4)).shape == (2, 4), side


@pytest.mark.usefixtures("installed")
def test_equal_options_are_one_compile() -> None:
    """Threads that each call ``torch.compile`` with the same options share what the first has compiled."""
    torch._dynamo.reset()
    compiles: list[int] = []

    def backend(graph: Any, _: Any) -> Any:
        compiles.append(1)
        return graph.forward

    def f(x: Any) -> Any:
        return x * 3

    run_threads([lambda: torch.compile(f, backend=backend)(torch.ones(2))] * 6)
    assert len(compiles) == 1

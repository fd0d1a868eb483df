"""What a compile of torch's puts back at its end: random states and settings of the process. It names and tells."""

from __future__ import annotations

import ctypes
import functools
import random
import sys
from _random import Random
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, Final, NamedTuple

#: Where Dynamo calls a random function of the traced code's, for an example of what it returns.
USER_DEFINED = "torch._dynamo.variables.user_defined"

#: Modules that draw from ``random`` themselves during a compile: a key for what can't be cached (2.13, 2.14), the name
#: of a buffer (2.7-2.14).
DRAWING = ("torch._functorch._aot_autograd.autograd_cache", "torch._inductor.codegen.wrapper")

#: The check, at the end of a compile, that no setting is different.
CHECKING = "guards.check()"

#: The functions around what must leave random states and settings as they were.
PRESERVING = frozenset({"_fn", "preserve_rng_state"})


class Generator(NamedTuple):
    """A generator of random numbers that all threads share."""

    state: Callable[[], Any]
    same: Callable[[Any, Any], bool]
    steps: Callable[[Any], list[Callable[[], Any]]]
    """Calls, of functions in C, that give it a state."""


def _steps_of_random(state: Any) -> list[Callable[[], Any]]:
    shared: Any = getattr(random.random, "__self__", None)
    set_state = functools.partial(Random.setstate, shared, state[1])
    return [set_state, functools.partial(setattr, shared, "gauss_next", state[2])]


def _state_of_torch() -> Any:
    return _torch().default_generator.get_state()


def _steps_of_torch(state: Any) -> list[Callable[[], Any]]:
    return [functools.partial(_torch().default_generator.set_state, state)]


def _same_tensors(one: Any, other: Any) -> bool:
    # Not by torch.equal: a profiler of the user's would show it.
    with _torch()._C.DisableTorchFunction():
        return one.numel() == other.numel() and _bytes_of(one) == _bytes_of(other)


def _bytes_of(state: Any) -> bytes:
    return ctypes.string_at(state.data_ptr(), state.numel())  # a state is bytes, on the CPU


def _of_device(name: str) -> Generator:
    def generator() -> Any:
        module = getattr(_torch(), name)
        return module.default_generators[module.current_device()]

    def steps(state: Any) -> list[Callable[[], Any]]:
        return [functools.partial(generator().set_state, state)]

    return Generator(lambda: generator().get_state(), _same_tensors, steps)


_TORCHS: Final = Generator(_state_of_torch, _same_tensors, _steps_of_torch)

#: The calls by which torch puts random states back (2.7-2.15).
GENERATORS: Final = {
    "random.setstate": Generator(random.getstate, lambda one, other: bool(one == other), _steps_of_random),
    "torch.random.set_rng_state": _TORCHS,
    "torch.set_rng_state": _TORCHS,
    "torch.cuda.set_rng_state": _of_device("cuda"),
    "torch.xpu.set_rng_state": _of_device("xpu"),
}


class Setting(NamedTuple):
    """A setting of the process that a compile puts back. A value is a tuple: what torch's call takes last."""

    read: Callable[[], tuple[Any, ...]]
    write: Callable[[tuple[Any, ...]], Any]
    is_there: Callable[[], bool] = lambda: True


def _torch() -> Any:
    return sys.modules["torch"]


#: By the call by which torch puts it back (2.7-2.15; the last but one: 2.7, the last: 2.9+).
SETTINGS: Final = {
    "torch.use_deterministic_algorithms": Setting(
        lambda: (
            _torch().are_deterministic_algorithms_enabled(),
            _torch().is_deterministic_algorithms_warn_only_enabled(),
        ),
        lambda value: _torch().use_deterministic_algorithms(value[0], warn_only=value[1]),
    ),
    "torch.set_default_dtype": Setting(
        lambda: (_torch().get_default_dtype(),),
        lambda value: _torch().set_default_dtype(*value),
    ),
    "torch._C._set_cublas_allow_tf32": Setting(
        lambda: (_torch()._C._get_cublas_allow_tf32(),),
        lambda value: _torch()._C._set_cublas_allow_tf32(*value),
        # 2.9+ raises where it is read after the other has been set.
        lambda: not hasattr(_torch()._C, "_get_fp32_precision_getter"),
    ),
    "torch._C._set_fp32_precision_setter": Setting(
        lambda: (_torch()._C._get_fp32_precision_getter("cuda", "matmul"),),
        lambda value: _torch()._C._set_fp32_precision_setter("cuda", "matmul", *value),
        lambda: hasattr(_torch()._C, "_get_fp32_precision_getter"),
    ),
}

_PRECISION: Final = ("torch._C._set_cublas_allow_tf32", "torch._C._set_fp32_precision_setter")

#: The functions in C by which torch's public setters set, and which of SETTINGS each may change.
SETTING: Final = {
    "_set_default_dtype": ("torch.set_default_dtype",),
    "_set_default_tensor_type": ("torch.set_default_dtype",),
    "_set_deterministic_algorithms": ("torch.use_deterministic_algorithms",),
    "_set_float32_matmul_precision": _PRECISION,
    "_set_cublas_allow_tf32": _PRECISION,
    "_set_fp32_precision_setter": _PRECISION,
}


def public_setters() -> list[FunctionType]:
    """Returns torch's functions, in Python, that set one of SETTINGS, and that other threads call."""
    # What bypasses them: functions of torch._C that are called by name, also by a compiled function that sets
    # deterministic mode (2.7-2.15) or torch.backends.cuda.matmul.allow_tf32 (2.13+); torch.backends.flags() and
    # torch.backends.cudnn.flags(fp32_precision=…) (2.9+).
    torch = _torch()
    return [
        torch.set_default_dtype,
        torch.set_default_tensor_type,
        torch.use_deterministic_algorithms,
        torch.set_deterministic_debug_mode,
        torch.set_float32_matmul_precision,
        sys.modules["torch.backends.cuda"].cuBLASModule.__setattr__,
    ]


def precision_setter_maker() -> FunctionType | None:
    """Returns what makes the functions that ``torch.backends.fp32_precision = …`` and the like call (2.9+)."""
    return getattr(sys.modules["torch.backends"], "_set_fp32_precision_setter", None)


def inner_code(code: CodeType) -> CodeType:
    """Returns the code of the function that ``preserve_global_state`` puts around each compile."""
    return next(one for one in code.co_consts if isinstance(one, CodeType) and one.co_name == "_fn")


def restores_random(function: FunctionType) -> bool:
    """Tells whether ``preserve_global_state`` restores ``random`` itself (up to torch 2.12)."""
    return "setstate" in inner_code(function.__code__).co_names

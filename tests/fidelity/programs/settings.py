"""Settings of the process: changed inside compiled code, around it, and in the middle of a compile."""

from __future__ import annotations

import torch

from tests.fidelity.table import program

from ._common import Counting, attempt, named, ones, plus, told


def _called(get, put, value):
    def change():
        before = get()
        put(value)
        return lambda: put(before)

    return change, get


#: A setting -> (changes it and returns what changes it back, reads it).
SETTINGS = {
    "default dtype": _called(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    "deterministic": _called(
        torch.are_deterministic_algorithms_enabled, lambda on: torch.use_deterministic_algorithms(on), True
    ),
    "warn only": _called(
        lambda: torch.get_deterministic_debug_mode(), lambda mode: torch.set_deterministic_debug_mode(mode), 1
    ),
    "matmul precision": _called(
        torch.get_float32_matmul_precision, lambda p: torch.set_float32_matmul_precision(p), "high"
    ),
    "grad mode": _called(torch.is_grad_enabled, lambda on: torch._C._set_grad_enabled(on), False),
    "autocast": _called(
        lambda: torch.is_autocast_enabled("cpu"), lambda on: torch.set_autocast_enabled("cpu", on), True
    ),
    "default device": _called(torch.get_default_device, lambda device: torch.set_default_device(device), "meta"),
    "threads": _called(torch.get_num_threads, lambda n: torch.set_num_threads(n), 3),
    "anomaly": _called(torch.is_anomaly_enabled, lambda on: torch.autograd.set_detect_anomaly(on), True),
}


@program(SETTINGS)
def for_a_while_in_compiled_code(change, read):
    """Changed and changed back in a function with a graph break between: as in eager."""

    def f(x):
        back = change()
        try:
            inside = read()
            y = torch.zeros(3) + 1
            print(end="")
        finally:
            back()
        return y, str(inside), x + 1

    compiled = torch.compile(f, backend="eager")
    return [attempt(compiled, ones()) for _ in range(2)], str(read())


def _default_dtype(x):
    a = torch.ones(2) + x
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        b = torch.zeros(3)
        print(end="")
    finally:
        torch.set_default_dtype(before)
    return a, b


def _deterministic(x):
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    y = x + 1
    print(end="")
    torch.use_deterministic_algorithms(before)
    return y, before


def _grad_mode(x):
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(False)
    print(end="")
    y = x + 1, torch.is_grad_enabled()
    torch.set_grad_enabled(before)
    return y, before, torch.is_grad_enabled()


def _precision(x):
    torch.set_float32_matmul_precision("high")
    y = x @ x
    print(end="")
    torch.set_float32_matmul_precision("highest")
    return y


def _dtype_without_a_break(x):
    torch.set_default_dtype(torch.float64)
    y = torch.zeros(3) + x.sum()
    torch.set_default_dtype(torch.float32)
    return y


def _dtype_in_a_callee(x):
    return [part.dtype == torch.float64 for part in _default_dtype(x + 1)], torch.zeros(1)


WRITTEN = named(_default_dtype, _deterministic, _grad_mode, _precision, _dtype_without_a_break, _dtype_in_a_callee)


@program(WRITTEN, quick=("default_dtype", "deterministic"))
def written_in_compiled_code(function):
    """Torch's own functions, called by code that is compiled, around a graph break: as in eager."""
    compiled = torch.compile(function, backend="eager")
    x = torch.ones(2, 2)
    return told(function(x)), [attempt(compiled, x) for _ in range(3)], [str(read()) for _, read in SETTINGS.values()]


@program(SETTINGS)
def left_on_by_compiled_code(change, read):
    """Changed in compiled code and not changed back: it stays, as in eager."""

    def f(x):
        change()
        print(end="")
        return x + 1

    return attempt(torch.compile(f, backend="eager"), ones()), str(read())


@program(SETTINGS, quick=("deterministic",))
def changed_where_the_compile_fails(change, read):
    """Changed by code that is traced when the backend raises: what plain torch leaves."""

    def fails(gm, inputs):
        raise ValueError

    def f(x):
        change()
        return x + 1

    raised = attempt(torch.compile(f, backend=fails), ones())
    return raised["type"], str(read())


@program(SETTINGS)
def changed_by_a_backend(change, read):
    """Changed by the backend: put back, or not, as in plain torch."""
    backend = Counting(change)
    return [attempt(torch.compile(plus, backend=backend), ones()) for _ in range(2)], backend.calls, str(read())


FEW = {name: SETTINGS[name] for name in ("default dtype", "deterministic", "grad mode", "autocast")}


@program(FEW)
def changed_between_calls(change, read):
    """A guard sees the change, and the change back."""
    backend = Counting()
    compiled = torch.compile(lambda x: x + torch.ones(2), backend=backend)
    seen = [attempt(compiled, ones())]
    back = change()
    seen += [attempt(compiled, ones()), attempt(compiled, ones())]
    back()
    return seen, attempt(compiled, ones()), backend.calls


@program({"inference": torch.inference_mode, "no grad": torch.no_grad, "autocast": lambda: torch.autocast("cpu")})
def in_a_mode(mode):
    """A function is compiled inside and outside of a mode; a hit and a miss in each."""
    backend = Counting()
    x = torch.ones(2, 2, requires_grad=True)
    compiled = torch.compile(lambda x: x @ x, backend=backend)
    seen = []
    for _ in range(2):
        with mode():
            seen += [told(compiled(x)), torch.is_grad_enabled(), torch.is_inference_mode_enabled()]
        seen.append(told(compiled(x)))
    return seen, backend.calls


@program({"in": True, "out": False})
def autocast_in_compiled_code(inside):
    """Autocast entered in compiled code, with a graph break in it."""
    backend = Counting()

    def f(x):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=inside):
            y = x @ x
            torch._dynamo.graph_break()
            return y, x @ y.float(), torch.is_autocast_enabled("cpu")

    return [told(torch.compile(f, backend=backend)(torch.ones(2, 2))) for _ in range(2)], backend.calls


@program(needs="torch._dynamo.error_on_graph_break")
def error_on_graph_break():
    """The switch holds for its block."""
    compiled = torch.compile(lambda x: (torch._dynamo.graph_break(), x + 1)[1], backend="eager")
    with torch._dynamo.error_on_graph_break(True):
        inside = attempt(compiled, ones())
    torch._dynamo.reset()
    return inside["type"], attempt(compiled, ones())


@program()
def anomaly_mode_around_a_compile():
    """detect_anomaly around forward and backward of compiled code."""
    x = torch.ones(2, requires_grad=True)
    with torch.autograd.detect_anomaly(check_nan=False):
        torch.compile(lambda x: (x * 2).sum(), backend="aot_eager")(x).backward()
        inside = torch.is_anomaly_enabled()
    return inside, torch.is_anomaly_enabled(), told(x.grad)

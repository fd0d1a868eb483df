"""Generators and context managers: entered here and left there."""

from __future__ import annotations

import contextlib

import torch

from tests.fidelity.table import program

from ._common import Counting, attempt, in_thread, ones, plus, told

MODES = {
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu"),
    "device": lambda: torch.device("meta"),
    "anomaly": lambda: torch.autograd.detect_anomaly(check_nan=False),
    "config": lambda: torch._dynamo.config.patch(recompile_limit=2),
}


def _modes():
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.is_anomaly_enabled(),
        torch.backends.cudnn.deterministic,
        torch._dynamo.config.recompile_limit,
        str(torch.get_default_device()),
    )


@program(MODES, quick=("config",))
def held_by_a_generator(mode):
    """A generator enters it, yields, and is closed later; a compile meanwhile and after."""
    backend = Counting()
    compiled = torch.compile(plus, backend=backend)

    def numbers():
        with mode():
            yield 1
            yield 2

    generator = numbers()
    next(generator)
    inside = attempt(compiled, ones()), _modes()
    next(generator)
    generator.close()
    return inside, attempt(compiled, ones()), _modes(), backend.calls


@program(MODES)
def in_compiled_code(mode):
    """Entered and left in compiled code, around a graph break."""
    backend = Counting()

    def f(x):
        with mode():
            y = x * 2
            print(end="")
            y = y + 1
        return y

    compiled = torch.compile(f, backend=backend)
    return [attempt(compiled, torch.ones(2, requires_grad=True)) for _ in range(2)], _modes(), backend.calls


@program(MODES)
def left_in_another_thread(mode):
    """Entered in this thread, left in another: what plain torch leaves."""
    context = mode()
    attempt(context.__enter__)
    inside = _modes(), attempt(torch.compile(plus, backend="eager"), ones())
    left = in_thread(lambda: context.__exit__(None, None, None))
    return inside, left, _modes(), in_thread(_modes), attempt(torch.compile(plus, backend="eager"), ones())


@program()
def left_in_another_order():
    """Two modes that are left in the wrong order."""
    a, b = torch.no_grad(), torch.autocast("cpu")
    a.__enter__()
    b.__enter__()
    first = told(torch.compile(plus, backend="eager")(ones())), _modes()
    a.__exit__(None, None, None)
    second = told(torch.compile(plus, backend="eager")(ones())), _modes()
    b.__exit__(None, None, None)
    return first, second, _modes()


@program()
def a_mode_entered_in_compiled_code_and_left_outside():
    """Compiled code returns a context manager that it has entered."""

    def f(x):
        mode = torch.no_grad()
        mode.__enter__()
        return x + 1, mode

    y, mode = torch.compile(f, backend="eager")(torch.ones(2, requires_grad=True))
    inside = _modes()
    mode.__exit__(None, None, None)
    return told(y), inside, _modes()


@program({"send": 0, "throw": 1, "abandoned": 2, "from": 3})
def generators(kind):
    """A generator that calls compiled code, driven in several ways."""
    compiled, said = torch.compile(plus, backend="eager"), []

    def numbers():
        try:
            x = yield compiled(ones())
            yield compiled(x if x is not None else ones(3))
        except KeyError:
            yield compiled(ones(4))
        finally:
            said.append("closed")

    def outer():
        yield from numbers()

    generator = outer() if kind == 3 else numbers()
    seen = [told(next(generator))]
    if kind == 0:
        seen.append(told(generator.send(ones(5))))
    elif kind == 1:
        seen.append(told(generator.throw(KeyError)))
    elif kind == 3:
        seen += [told(v) for v in generator]
    del generator
    return seen, said


@program({"dispatch": 0, "function": 1, "flops": 2})
def modes_of_the_user(kind):
    """Compiled code under modes that see each operator."""
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import FlopCounterMode

    said = []

    class Dispatch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            said.append(str(func))
            return func(*args, **(kwargs or {}))

    class Function(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            said.append(getattr(func, "__name__", "?"))
            return func(*args, **(kwargs or {}))

    mode = (Dispatch, Function, lambda: FlopCounterMode(display=False))[kind]()
    backend = Counting()
    compiled = torch.compile(lambda x: x @ x + 1, backend=backend)
    with mode:
        seen = [attempt(compiled, ones(2, 2)) for _ in range(2)]
    return seen, attempt(compiled, ones(2, 2)), said, backend.calls


@program()
def a_context_manager_of_the_users_as_a_decorator():
    """A ContextDecorator around a compiled function, and a compiled function around it."""
    said = []

    class Says(contextlib.ContextDecorator):
        def __enter__(self):
            said.append("in")
            return self

        def __exit__(self, *_):
            said.append("out")
            return False

    outside = Says()(torch.compile(plus, backend="eager"))
    inside = torch.compile(Says()(plus), backend="eager")
    return told(outside(ones())), attempt(inside, ones()), said


@program()
def profiled():
    """The names of a profiler's events with compiled code."""
    with torch.profiler.profile() as seen:
        torch.compile(plus, backend="eager")(ones())
    return sorted({event.key for event in seen.key_averages() if "aten" in event.key or "Torch" in event.key})

"""Errors: the same one, with the same frames of the user's, and at most two of the library's."""

from __future__ import annotations

import sys
import traceback

import torch

from tests.fidelity.table import program

from ._common import Counting, attempt, error, named, ones, plus, user

user(__file__)


def _raises(x):
    x = x + 1
    raise ValueError("of the user")


def _after_a_break(x):
    torch._dynamo.graph_break()
    raise ValueError("after a break")


def _in_a_callee(x):
    torch._dynamo.graph_break()
    return _raises(x)


def _from_another(x):
    try:
        _raises(x)
    except ValueError as e:
        raise KeyError("from another") from e


def _of_a_shape(x):
    return x @ torch.ones(5, 5)


def _of_python(x):
    return x + {}["there is none"]


def _assertion(x):
    assert x.shape[0] == 99, "a shape"
    return x


def _exit(x):
    sys.exit(3)


def _stop(x):
    return next(iter(()))


def _interrupt(x):
    print(end="")
    raise KeyboardInterrupt


FUNCTIONS = named(
    _raises, _after_a_break, _in_a_callee, _from_another, _of_a_shape, _of_python, _assertion, _exit, _stop, _interrupt
)


@program(FUNCTIONS, quick=("of_a_shape",))
def in_compiled_code(function):
    """Cold and warm."""
    compiled = torch.compile(function, backend="eager")
    return [attempt(compiled, ones(2, 2)) for _ in range(2)]


def _fail(kind):
    def backend(gm, inputs):
        raise kind("of the backend")

    return backend


@program(
    {"ValueError": ValueError, "KeyboardInterrupt": KeyboardInterrupt, "SystemExit": SystemExit,
     "MemoryError": MemoryError, "RuntimeError": RuntimeError, "RecursionError": RecursionError,
     "StopIteration": StopIteration},
    quick=("ValueError",),
)  # fmt: skip
def of_a_backend(kind):
    """Raised in the backend, twice; then another backend compiles."""
    compiled = torch.compile(plus, backend=_fail(kind))
    raised = [attempt(compiled, ones()) for _ in range(2)]
    return raised, attempt(torch.compile(plus, backend="eager"), ones())


@program()
def suppressed():
    """With suppress_errors the call runs uncompiled."""
    with torch._dynamo.config.patch(suppress_errors=True):
        return attempt(torch.compile(plus, backend=_fail(ValueError)), ones())


@program()
def printed():
    """The text that traceback prints has the same lines of the user's, and few of the library's."""
    try:
        torch.compile(_raises, backend="eager")(ones())
    except ValueError:
        text = traceback.format_exc()
    lines = text.splitlines()
    return sum("errors.py" in line for line in lines), sum("safecompile" in line for line in lines) > 2


@program()
def the_stack_as_compiled_code_sees_it():
    """A function that is called from compiled code sees few frames of the library's above it."""
    seen = []

    @torch.compiler.disable
    def look():
        seen.append([frame.filename for frame in traceback.extract_stack()])

    torch.compile(lambda x: (look(), x + 1)[1], backend="eager")(ones())
    return sum("safecompile/" in name for name in seen[0]) > 2, len([n for n in seen[0] if n.endswith("errors.py")])


@program({"compiled": 0, "backend": 1})
def depth_of_recursion(where):
    """A recursion goes as deep as in plain torch, by at most ten calls less."""
    depth = []

    def deeper(n):
        depth.append(n)
        deeper(n + 1)

    def look(*_):
        try:
            deeper(0)
        except RecursionError:
            return None

    sys.setrecursionlimit(2000)
    base = len(traceback.extract_stack())
    if where:
        torch.compile(plus, backend=Counting(look))(ones())
        used = 2000 - max(depth) - base
        return used // 100
    torch.compile(lambda x: (torch.compiler.disable(look)(), x + 1)[1], backend="eager")(ones())
    return (2000 - max(depth) - base) // 30


@program()
def one_instance_raised_again():
    """An instance that the user raises again and again grows by the user's own frames alone."""
    kept = ValueError("one instance")

    def f(x):
        torch._dynamo.graph_break()
        raise kept

    compiled = torch.compile(f, backend="eager")
    lengths = []
    for _ in range(4):
        attempt(compiled, ones())
        lengths.append(error(kept)["frames of the user"].count("errors.py:f"))
    return lengths, error(kept)["frames"] // 20


@program({"group": 0, "notes": 1}, needs="builtins.ExceptionGroup")
def newer_errors(kind):
    """ExceptionGroup and notes."""

    def f(x):
        torch._dynamo.graph_break()
        if kind == 0:
            raise ExceptionGroup("two", [ValueError("a"), KeyError("b")])  # noqa: F821
        raised = ValueError("with a note")
        raised.add_note("a note")
        raise raised

    return attempt(torch.compile(f, backend="eager"), ones())


@program({"warn": 0, "once": 1, "deprecated": 2})
def warnings_of_compiled_code(kind):
    """Warnings of the user's come as often as in plain torch, from the same line."""
    import warnings

    def f(x):
        if kind == 2:
            warnings.warn("old", DeprecationWarning, stacklevel=2)
        else:
            warnings.warn("a warning", UserWarning, stacklevel=1)
        return x + 1

    compiled = torch.compile(f, backend="eager")
    if kind == 1:
        warnings.simplefilter("once")
    return [attempt(compiled, ones())[1:] if False else str(type(attempt(compiled, ones()))) for _ in range(3)]


@program()
def fail_at_the_limit():
    """fail_on_recompile_limit_hit raises torch's own error."""
    with torch._dynamo.config.patch(recompile_limit=1, fail_on_recompile_limit_hit=True):
        compiled = torch.compile(plus, backend="eager", dynamic=False)
        compiled(ones(1))
        raised = attempt(compiled, ones(2))
    return raised


@program()
def exception_in_flight():
    """A cold call inside an except block keeps the error that is being handled."""
    try:
        raise KeyError("in flight")
    except KeyError:
        called = attempt(torch.compile(plus, backend="eager"), ones())
        return called, repr(sys.exc_info()[1])


@program()
def an_internal_error():
    """A graph that Dynamo can't make: its own error type, text and frames."""

    class Strange:
        def __torch_function__(self, *a, **k):
            raise RuntimeError("strange")

    return attempt(torch.compile(lambda x, s: torch.add(x, s), backend="eager"), ones(), Strange())

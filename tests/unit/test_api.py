"""safe_compile is torch.compile: the same results, types, attributes and errors, for every form of call."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import pytest
import torch
import torch._dynamo

from safecompile import safe_compile
from tests.helpers.nursery import in_forked_process
from tests.helpers.threads import in_fresh_process

X = torch.arange(6.0).reshape(3, 2)
BOTH = {"torch": torch.compile, "safe": safe_compile}


@pytest.fixture(autouse=True)
def _clean():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def function(x, scale=2.0):
    """A docstring."""
    return x.sin() * scale


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.name = torch.nn.Linear(2, 2), "a model"

    def forward(self, x):
        return self.linear(x).relu()

    def other(self, x):
        return self.linear(x) + 1


class Callable:
    def __call__(self, x):
        return x.cos()

    def method(self, x):
        return x.exp()

    @staticmethod
    def static(x):
        return x.tan()

    @classmethod
    def of_class(cls, x):
        return x.tanh()


MODEL, OBJECT = Model(), Callable()


def outcome(call: Any) -> tuple[Any, ...]:
    """Returns what a call gives, as something that can be compared: the type and value, or the error and its text."""
    try:
        value = call()
    except BaseException as error:
        depth, trace = 0, error.__traceback__
        while trace is not None:
            depth, trace = depth + 1, trace.tb_next
        return "raises", type(error), str(error), depth
    if isinstance(value, torch.Tensor):
        return "tensor", value.tolist()
    return "value", type(value), value if isinstance(value, (str, bool, tuple)) else None


def same(call: Any) -> tuple[Any, ...]:
    """Calls with torch.compile and with safe_compile, and raises unless both come to the same."""
    theirs = outcome(lambda: call(torch.compile))
    torch._dynamo.reset()
    ours = outcome(lambda: call(safe_compile))
    assert ours[:3] == theirs[:3]
    if theirs[0] == "raises":
        assert ours[3] <= theirs[3] + 1, f"{ours[3] - theirs[3]} frames more"
    return ours


FORMS = {
    "function": lambda c: c(function, backend="eager")(X),
    "with its default": lambda c: c(function, backend="eager")(X, scale=3.0),
    "bound method": lambda c: c(OBJECT.method, backend="eager")(X),
    "method of a module": lambda c: c(MODEL.other, backend="eager")(X),
    "static method": lambda c: c(OBJECT.static, backend="eager")(X),
    "class method": lambda c: c(Callable.of_class, backend="eager")(X),
    "module": lambda c: c(MODEL, backend="eager")(X),
    "callable object": lambda c: c(OBJECT, backend="eager")(X),
    "partial": lambda c: c(functools.partial(function, scale=5.0), backend="eager")(X),
    "lambda": lambda c: c(lambda x: x + 1, backend="eager")(X),
    "builtin": lambda c: c(torch.sin, backend="eager")(X),
    "decorator with arguments": lambda c: c(backend="eager")(function)(X),
    "decorator with arguments, module": lambda c: c(backend="eager", dynamic=False)(MODEL)(X),
    "keyword model": lambda c: c(model=function, backend="eager")(X),
    "fullgraph": lambda c: c(function, fullgraph=True, backend="eager")(X),
    "dynamic": lambda c: c(function, dynamic=True, backend="eager")(X),
    "aot_eager": lambda c: c(function, backend="aot_eager")(X),
    "disable": lambda c: c(function, disable=True)(X),
    "disable, module": lambda c: c(MODEL, disable=True)(X),
    "disabled function": lambda c: c(torch.compiler.disable(function), backend="eager")(X),
    "calls a disabled one": lambda c: c(lambda x: torch.compiler.disable(function)(x) + 1, backend="eager")(X),
    "compiled twice": lambda c: c(c(function, backend="eager"), backend="eager")(X),
    "module compiled twice": lambda c: c(c(MODEL, backend="eager"), backend="eager")(X),
    "nested": lambda c: c(lambda x: c(function, backend="eager")(x) + 1, backend="eager")(X),
    "compiled in a compiled one": lambda c: c(lambda x: c(lambda y: y + 1, backend="eager")(x), backend="eager")(X),
    "a class": lambda c: c(Callable, backend="eager")()(X),
}


@pytest.mark.parametrize("form", FORMS)
def test_call_form(form):
    """Each form of call gives what it gives with torch.compile."""
    kind = same(FORMS[form])[0]
    assert kind == "tensor" or form in ("a class", "builtin")


def graph_break(x):
    torch._dynamo.graph_break()
    return x.sin()


def raising(x):
    raise ValueError("of the user")


BAD = {
    "not callable": lambda c: c(3),
    "a tensor": lambda c: c(X),
    "None called": lambda c: c(None)(3),
    "unknown keyword": lambda c: c(function, nonsense=1),
    "unknown backend": lambda c: c(function, backend="nonsense")(X),
    "unknown mode": lambda c: c(function, mode="nonsense")(X),
    "mode and options": lambda c: c(function, mode="default", options={"max_autotune": True})(X),
    "unknown option": lambda c: c(function, options={"nonsense": 1})(X),
    "options of another type": lambda c: c(function, options={"max_autotune": "yes"})(X),
    "positional keywords": lambda c: c(function, True),
    "fullgraph with a break": lambda c: c(graph_break, fullgraph=True, backend="eager")(X),
    "the function raises": lambda c: c(raising, backend="eager")(X),
    "wrong arguments": lambda c: c(function, backend="eager")(),
    "the backend raises": lambda c: c(function, backend=lambda *_: raising(X))(X),
    "the backend returns None": lambda c: c(function, backend=lambda *_: None)(X),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.filterwarnings("ignore")
def test_bad_input(case):
    """The type and the text of each error are torch's, with at most one frame more."""
    assert same(BAD[case])[0] == "raises"


@pytest.mark.timeout(300)
def test_inductor():
    """The default backend compiles, with a mode, and gives the right numbers."""
    assert torch.equal(safe_compile(lambda x: x + 1, mode="default")(X), X + 1)


def test_decorator_without_arguments():
    """``@safe_compile`` above a function gives torch's wrapper: name, doc, signature and attributes."""

    def decorated(compile_):
        @compile_(backend="eager")
        def inner(x: torch.Tensor, *, scale: float = 2.0) -> torch.Tensor:
            """Its docstring."""
            return x * scale

        return inner

    theirs, ours = decorated(torch.compile), decorated(safe_compile)
    assert ours.__name__ == "inner"
    assert ours.__doc__ == "Its docstring."
    assert inspect.signature(ours) == inspect.signature(theirs)
    assert set(vars(ours)) == set(vars(theirs))
    assert type(ours) is type(theirs)
    assert ours.__code__ is theirs.__code__
    bare = safe_compile(function)
    assert bare.__wrapped__ is function
    assert bare._torchdynamo_orig_callable is function


def test_arguments_are_passed_on_untouched(monkeypatch):
    """Every argument, also of a release to come, reaches torch.compile as it is, and its result comes back."""
    seen, result = [], object()
    monkeypatch.setattr(torch, "compile", lambda *args, **kwargs: seen.append((args, kwargs)) or result)
    options, backend, thing = {"a": 1}, object(), object()
    assert safe_compile(function, options=options, backend=backend, to_come=thing) is result
    assert safe_compile(to_come=thing) is result
    assert safe_compile(None, dynamic=None) is result
    assert safe_compile() is result
    (args, kwargs), second, third, fourth = seen
    assert args == (function,)
    assert kwargs["options"] is options
    assert kwargs["backend"] is backend
    assert kwargs["to_come"] is thing
    assert set(kwargs) == {"options", "backend", "to_come"}
    assert second == ((), {"to_come": thing})
    assert third == ((None,), {"dynamic": None})
    assert fourth == ((), {})


def test_every_keyword_of_the_installed_torch():
    """Ours accepts each parameter of ``inspect.signature(torch.compile)``, at its default."""
    defaults = {
        name: one.default for name, one in inspect.signature(torch.compile).parameters.items() if name != "model"
    }
    defaults["backend"] = "eager"
    assert torch.equal(safe_compile(function, **defaults)(X), function(X))


def test_inside_a_traced_region():
    """safe_compile called inside a compiled function, a symbolic trace or export is torch.compile there."""
    for trace in (
        lambda f: torch.compile(f, backend="eager")(X),
        lambda f: torch.fx.symbolic_trace(f)(X),
        lambda f: torch.compile(f, backend="eager", fullgraph=True)(X),
    ):

        def region(compile_, trace=trace):
            return trace(lambda x: compile_(lambda y: y + 1, backend="eager")(x) * 2)

        torch._dynamo.reset()
        theirs = outcome(lambda region=region: region(torch.compile))
        torch._dynamo.reset()
        ours = outcome(lambda region=region: region(safe_compile))
        assert ours[:2] == theirs[:2], f"{ours}\n{theirs}"


def test_the_first_call_inside_a_compiled_region():
    """It is torch.compile there. An installation is done, and Dynamo, which would compile it, does not see it."""
    done = in_forked_process(
        """
        import torch, safecompile
        inner = lambda x: x + 1
        compiled = lambda x: safecompile.safe_compile(inner)(x) * 2
        for options in ({}, {"fullgraph": True}):
            assert torch.compile(compiled, backend="eager", **options)(torch.ones(1)).item() == 4
        assert not safecompile.is_installed()
        torch._dynamo.export(lambda x: safecompile.safe_compile(inner) and x + 1)(torch.ones(1))

        @torch.compile(backend="eager")
        def installs(x):
            y = x + 1
            safecompile.install()
            return safecompile.safe_compile(inner)(y)

        assert installs(torch.ones(1)).item() == 3
        assert safecompile.is_installed()
        assert torch._C._is_multithreading_enabled()
        """
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("variable", ["TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE"])
def test_disabled_by_the_environment(variable):
    """With torch's own switches nothing is compiled, in either way."""
    done = in_fresh_process(
        """
        import torch, safecompile
        from torch._dynamo.testing import CompileCounter
        for compile_ in (torch.compile, safecompile.safe_compile):
            counter = CompileCounter()
            for thing in (lambda x: x + 1, torch.nn.Linear(2, 2)):
                assert torch.is_tensor(compile_(thing, backend=counter)(torch.ones(1, 2)))
            assert counter.frame_count == 0
        """,
        **{variable: "1"},
    )
    assert done.returncode == 0, done.stderr

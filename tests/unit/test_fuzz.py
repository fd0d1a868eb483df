"""Call forms, orders, variables and bad input at random: what torch does, or one clear sentence."""

from __future__ import annotations

import contextlib
import io
import math
import threading

import pytest
import torch
import torch._dynamo
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import safecompile
from safecompile.__main__ import main
from tests.helpers.threads import run_threads
from tests.patching.processes import passes

#: A machine that is busy is no failure, and what fails is shown as it is found.
FUZZ = settings(
    max_examples=30,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)


def function(x, k=1.0):
    return torch.sin(x) * k


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))

    def forward(self, x, k=1.0):
        return (x * self.weight * k).detach()

    def other(self, x):
        return (x + self.weight).detach()


class Callable:
    def __call__(self, x):
        return x + 1.0


def backend_of_mine(graph, inputs):
    return graph.forward


net = Net()
SUBJECTS = {
    "function": function,
    "lambda": lambda x: x * 2.0,
    "method": net.other,
    "module": net,
    "callable": Callable(),
    "class": Callable,
    "builtin": len,
    "torch function": torch.sin,
    "number": 7,
    "text": "f",
    "none": None,
}
KEYWORDS = st.fixed_dictionaries(
    {"backend": st.sampled_from(["eager", "eager", "aot_eager", backend_of_mine, "no such", 7])},
    optional={
        "fullgraph": st.sampled_from([True, False, None, 1]),
        "dynamic": st.sampled_from([True, False, None, "x"]),
        "mode": st.sampled_from([None, "default", "no such"]),
        "options": st.sampled_from([None, {}, {"no such": 1}, 3]),
        "disable": st.booleans(),
        "no_such_keyword": st.just(1),
        "name": st.sampled_from([None, "a name"]),
    },
)
FORMS = ("call", "keyword", "decorator", "two positions")


def outcome(compile_with, subject, keywords, form, inputs):
    """Returns what came of compiling and calling: types and numbers, or the error's type and first words."""
    torch._dynamo.reset()
    try:
        if form == "call":
            made = compile_with(subject, **keywords)
        elif form == "keyword":
            made = compile_with(model=subject, **keywords)
        elif form == "decorator":
            made = compile_with(**keywords)(subject)
        else:
            made = compile_with(subject, True, **keywords)
        kind = type(made).__name__
        result = made(*inputs)
    except Exception as error:
        return type(error).__name__, str(error).split("\n", 1)[0][:60].partition(" at 0x")[0]
    return kind, type(result).__name__, result.tolist() if isinstance(result, torch.Tensor) else None


@FUZZ
@given(
    st.sampled_from(sorted(SUBJECTS)),
    KEYWORDS,
    st.sampled_from(FORMS),
    st.sampled_from([(3,), (2, 3), (0, 3)]),
    st.sampled_from([0, 1, 2]),
)
def test_safe_compile_is_torch_compile_in_every_form(subject, keywords, form, shape, extra):
    """The same type, the same numbers, or the same error, whatever is compiled, and however."""
    inputs = (torch.ones(shape), *([2.0] * extra))
    safecompile.uninstall()
    try:
        want = outcome(torch.compile, SUBJECTS[subject], keywords, form, inputs)
        got = outcome(safecompile.safe_compile, SUBJECTS[subject], keywords, form, inputs)
    finally:
        torch._dynamo.reset()
        safecompile.uninstall()
    assert got == want


STEPS = ("install", "uninstall", "patch_all", "compile", "call", "call in a thread", "late reference", "reset", "trace")


@FUZZ
@given(st.lists(st.sampled_from(STEPS), min_size=3, max_size=12))
def test_any_order_of_installing_and_calling(steps):
    """What was compiled before, between and after is right, in any thread; taken out, all is torch's."""
    safecompile.uninstall()
    torch._dynamo.reset()
    original = torch.nn.Module.__call__
    held = [torch.compile(function, backend="eager"), torch.compile(net, backend="eager")]
    x = torch.ones(3)

    def call_all():
        for one in held:
            assert one(x).tolist() == (net(x) if isinstance(one, torch.nn.Module) else function(x)).tolist()

    from torch import compile as late

    try:
        for step in steps:
            if step == "install":
                safecompile.install()
                assert safecompile.is_installed()
            elif step == "uninstall":
                safecompile.uninstall()
                assert not safecompile.is_installed()
            elif step == "patch_all":
                import importlib

                import safecompile.patch_all as again

                importlib.reload(again)
                assert safecompile.is_installed()
            elif step == "compile":
                held.append(safecompile.safe_compile(function, backend="eager", dynamic=True))
            elif step == "late reference":
                held.append(late(function, backend="eager"))
            elif step == "call":
                call_all()
            elif step == "call in a thread":
                run_threads([call_all])
            elif step == "reset":
                torch._dynamo.reset()
            else:
                assert "mul" in torch.fx.symbolic_trace(Net()).code
        call_all()
    finally:
        safecompile.uninstall()
        torch._dynamo.reset()
    assert torch.nn.Module.__call__ is original


BAD_TIMES = st.one_of(st.none(), st.text(max_size=3), st.just(math.nan), st.lists(st.integers(), max_size=1))
GOOD_TIMES = st.one_of(st.integers(-3, 10**30), st.floats(allow_nan=False), st.booleans())


@FUZZ
@given(BAD_TIMES, st.booleans())
def test_a_bad_time_is_one_sentence_and_changes_nothing(timeout_s, inside):
    """install() and uninstall() name the argument and what it should be."""
    safecompile.install() if inside else safecompile.uninstall()
    for command in (safecompile.install, safecompile.uninstall):
        with pytest.raises((TypeError, ValueError), match="timeout_s must be a number of seconds"):
            command(timeout_s=timeout_s)
        assert safecompile.is_installed() is inside
    safecompile.uninstall()


@FUZZ
@given(GOOD_TIMES)
def test_any_number_is_a_time(timeout_s):
    """Also one below zero, which waits for nothing, and one that is longer than the system can wait."""
    safecompile.install(timeout_s=timeout_s)
    safecompile.uninstall(timeout_s=timeout_s)
    assert not safecompile.is_installed()


OPTIONS = ["demo", "report", "--threads", "--device", "--workload", "--time-limit", "--json", "--side"]
WORDS = st.sampled_from([*OPTIONS, "--", "-1", "0", "x", "nan", "1e9", "cuda:99", "tracing", "é"])


@FUZZ
@given(st.lists(WORDS, max_size=4), st.sampled_from(["--no-such", "--threads=0", "--side=none", "--device=toaster"]))
def test_a_bad_command_is_one_line_and_exit_code_2(words, bad):
    """Whatever stands on the command line beside what is wrong, nothing runs."""
    said, shown = io.StringIO(), io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(shown), pytest.raises(SystemExit) as ended:
        main(["demo", *(word for word in words if word != "--"), bad])
    assert ended.value.code == 2
    assert shown.getvalue() == ""
    assert len(said.getvalue().splitlines()) == 1


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="no fork here")
@pytest.mark.parametrize("text", ["", "1", "-1", "nan", "16 ", "é", "9" * 30])
def test_any_text_in_the_environment(text):
    """A variable's text is taken, or named in one line that says what to do; nothing else is raised."""
    names = ("DISABLE",), ("STRICT", "SETTINGS", "CUDA_GRAPH_THREADS", "WAIT_WARNING_S")
    for some in names:
        passes(
            """
        import logging, torch
        logging.basicConfig()
        import safecompile
        try:
            assert safecompile.safe_compile(lambda x: x + 1, backend="eager")(torch.ones(2)).tolist() == [2, 2]
        except safecompile.SafeCompileError as error:
            assert "SAFECOMPILE_" in str(error)
            assert len(str(error).splitlines()) == 1
        """,
            **{f"SAFECOMPILE_{name}": text for name in some},
        )


def test_public_names_that_are_not_there():
    """A name that the package lacks is an AttributeError that says so, from any thread."""

    def ask():
        with pytest.raises(AttributeError, match="no_such_name"):
            safecompile.no_such_name  # noqa: B018

    run_threads([ask] * 4)
    assert threading.active_count() < 50

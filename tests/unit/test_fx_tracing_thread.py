"""On the tracing thread itself everything is as in plain torch."""

from __future__ import annotations

import threading
from math import sqrt

import pytest
import torch
import torch._dynamo
import torch.fx
from torch.fx.experimental.proxy_tensor import make_fx

from safecompile import safe_compile
from tests.helpers.nursery import in_forked_process
from tests.helpers.threads import ParkedBackend, run_threads

INTO_A_COMPILED_FUNCTION = """
import torch, torch.fx
from torch.fx.experimental.proxy_tensor import make_fx
if {safe}:
    import safecompile.patch_all
compiled = torch.compile(lambda x: x.sin(), backend="eager")
module = torch.compile(torch.nn.Linear(2, 2), backend="eager")
def attempt(call):
    try:
        print("gives", getattr(call(), "code", None))
    except BaseException as error:
        print(type(error).__module__, type(error).__name__, error)
for warm in (False, True):
    attempt(lambda: torch.fx.symbolic_trace(lambda x: compiled(x)))
    attempt(lambda: torch.fx.symbolic_trace(module))
    attempt(lambda: make_fx(compiled)(torch.ones(2)))
    attempt(lambda: make_fx(lambda x: compiled(x) + 1)(torch.ones(2)))
    compiled(torch.ones(2)), module(torch.ones(1, 2))
print(torch.fx._symbolic_trace.is_fx_tracing(), torch.compiler.is_compiling())
print(torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.ReLU())).code)
"""


pytestmark = pytest.mark.usefixtures("installed")


def test_tracing_into_a_compiled_function_is_refused_as_before():
    """symbolic_trace and make_fx into a compiled function, cold and warm, say what they say in plain torch."""
    outputs = [in_forked_process(INTO_A_COMPILED_FUNCTION.format(safe=safe)) for safe in (False, True)]
    assert outputs[0].returncode == outputs[1].returncode == 0, outputs[1].stderr
    assert outputs[0].stdout == outputs[1].stdout
    assert "Detected that you are using FX to symbolically trace" in outputs[1].stdout


def test_tracing_into_a_compiled_function_beside_another_trace():
    """The error comes on the thread that traces into it, while the same function runs in another thread."""
    torch._dynamo.reset()
    compiled = safe_compile(lambda x: x.sin(), backend="eager")
    x = torch.ones(2)
    compiled(x)

    def tracing():
        for _ in range(50):
            with pytest.raises(RuntimeError, match="using FX to symbolically trace a dynamo-optimized function"):
                torch.fx.symbolic_trace(lambda y: compiled(y))

    def calling():
        for _ in range(500):
            assert torch.equal(compiled(x), x.sin())

    run_threads([tracing, calling, tracing, calling])


def test_a_trace_inside_a_backend():
    """A backend that traces symbolically in the middle of a compile gets its graph, and is seen by nobody."""
    inner = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    alone = str(torch.fx.symbolic_trace(inner).graph)
    parked = ParkedBackend()
    graphs = []

    def backend(module, inputs):
        graphs.append(str(torch.fx.symbolic_trace(inner).graph))
        return parked(module, inputs)

    compiled = torch.compile(lambda x: x.cos(), backend=backend)
    thread = threading.Thread(target=compiled, args=(torch.ones(2),), daemon=True)
    thread.start()
    parked.wait_parked()
    assert torch.is_tensor(inner(torch.ones(1, 2)))
    assert str(torch.fx.symbolic_trace(inner).graph) == alone
    parked.release()
    thread.join(30)
    assert graphs == [alone]


def test_make_fx_in_threads_beside_compiles():
    """make_fx in four threads, with modes of its own each, gives what it gives alone while two others compile."""
    model = torch.nn.Sequential(torch.nn.Sigmoid(), torch.nn.ReLU())

    def traced(x):
        return model(x).sin() * sqrt(4.0)

    modes = ["real", "fake", "symbolic"]
    example = torch.ones(3, 2)
    alone = {mode: make_fx(traced, tracing_mode=mode)(example).code for mode in modes}

    def tracing(index):
        def work():
            for step in range(8):
                mode = modes[(index + step) % 3]
                assert make_fx(traced, tracing_mode=mode)(example).code == alone[mode]

        return work

    def compiling():
        for _ in range(4):
            space = {}
            exec("def f(x):\n    return x.sin() * 2", space)
            assert torch.equal(torch.compile(space["f"], backend="aot_eager")(example), example.sin() * 2)

    run_threads([*(tracing(index) for index in range(4)), compiling, compiling])


def test_export_in_a_thread():
    """torch.export in a thread gives its program while others trace, compile and call."""
    torch._dynamo.reset()
    # Each its own: export puts fake parameters into the module itself while it runs.
    model, other = (torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()) for _ in range(2))
    x = torch.ones(1, 2)
    want = [str(node) for node in torch.export.export(model, (x,)).graph.nodes]
    compiled = safe_compile(lambda y: y.sin(), backend="eager")
    stop = threading.Event()

    def exporting():
        try:
            for _ in range(3):
                program = torch.export.export(model, (x,))
                assert [str(node) for node in program.graph.nodes] == want
                assert torch.equal(program.module()(x), model(x))
        finally:
            stop.set()

    def tracing():
        while not stop.is_set():
            assert len(torch.fx.symbolic_trace(other).graph.nodes) == 4

    def calling():
        while not stop.is_set():
            assert torch.equal(compiled(x), x.sin())
            assert torch.is_tensor(other(x))

    run_threads([exporting, tracing, calling])


def test_is_fx_tracing_by_an_earlier_reference():
    """``from torch.fx._symbolic_trace import is_fx_tracing``, taken before the patches, tells of this thread."""
    done = in_forked_process(
        """
        import threading, torch, torch.fx
        from torch.fx._symbolic_trace import is_fx_tracing
        import safecompile
        same = is_fx_tracing
        safecompile.install()
        assert torch.fx._symbolic_trace.is_fx_tracing is same
        inside, go = threading.Event(), threading.Event()
        def forward(x):
            inside.set(); go.wait(30)
            assert is_fx_tracing()
            return x
        thread = threading.Thread(target=torch.fx.symbolic_trace, args=(forward,))
        thread.start()
        assert inside.wait(30)
        assert not is_fx_tracing()
        go.set(); thread.join()
        """
    )
    assert done.returncode == 0, done.stderr

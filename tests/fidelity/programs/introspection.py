"""What torch's own objects look like."""

from __future__ import annotations

import inspect
import logging

import torch

from tests.fidelity.table import program

from ._common import Counting, attempt, ones, plus, user

user(__file__)

#: Functions and classes that the library changes, or that programs look at. Not CatchErrorsWrapper.__call__, in whose
#: place the library stands.
NAMES = (
    "torch.compile",
    "torch.compiler.set_stance",
    "torch.compiler.is_compiling",
    "torch.compiler.reset",
    "torch._dynamo.reset",
    "torch._dynamo.eval_frame._TorchDynamoContext.__call__",
    "torch._dynamo.eval_frame.OptimizedModule",
    "torch._dynamo.convert_frame.CatchErrorsWrapper",
    "torch.fx.Tracer.trace",
    "torch.fx.symbolic_trace",
    "torch.fx._symbolic_trace.is_fx_tracing",
    "torch.nn.Module.__call__",
    "torch.nn.Module.__getattr__",
    "torch.nn.Module._call_impl",
    "torch.nn.DataParallel.replicate",
    "torch.fx.GraphModule.recompile",
    "torch.autograd.backward",
    "math.sqrt",
    "math",
    "torch.fx.traceback.get_current_meta",
    "torch._dynamo.config",
    "torch._dynamo.utils.preserve_rng_state",
    "torch.random.fork_rng",
    "torch.set_default_dtype",
    "random.random",
)


@program(quick=True)
def of_names():
    """Name, signature, source, type, attributes."""
    return {name: _looks(name) for name in NAMES}


def _looks(name):
    found = eval(name, {"torch": torch, "math": __import__("math"), "random": __import__("random")})
    told = {a: str(getattr(found, a, "none")) for a in ("__name__", "__qualname__", "__module__", "__doc__")}
    told["type"] = type(found).__qualname__
    told["signature"] = attempt(lambda: str(inspect.signature(found)))
    told["source"] = attempt(lambda: hash(inspect.getsource(found)))
    told["file"] = attempt(lambda: inspect.getsourcefile(found).rpartition("/")[2])
    told["dict"] = sorted(getattr(found, "__dict__", ()))
    code = getattr(found, "__code__", None)
    told["line"] = code and (code.co_firstlineno, code.co_name, code.co_filename.rpartition("/")[2])
    told["closure"] = code and (code.co_freevars, found.__defaults__, str(found.__annotations__))
    return told


OWNERS = ("torch.nn.Module", "torch.fx.Tracer", "torch.Tensor", "torch.fx.GraphModule", "torch._dynamo", "torch",
          "torch._dynamo.eval_frame", "torch.compiler", "torch.fx._symbolic_trace", "torch.fx.traceback")  # fmt: skip


@program()
def names_in():
    """Classes and modules have the same names, for dir(), hasattr and vars()."""
    owners = {name: eval(name, {"torch": torch}) for name in OWNERS}
    return {name: (dir(owner), sorted(vars(owner))) for name, owner in owners.items()}


@program(needs="torch._dynamo.config.recompile_limit")
def called_as_a_user_would():
    """State that users ask for: the number of graphs, list_backends, is_dynamo_supported."""
    torch.compile(plus, backend="eager")(ones())
    return torch._dynamo.list_backends(), torch._dynamo.is_dynamo_supported(), torch.compiler.is_dynamo_compiling()


@program({"recompiles": "recompiles", "graph_breaks": "graph_breaks", "guards": "guards"})
def logs(name):
    """torch._logging.set_logs: the same artifacts, as often."""
    lines = []

    class Keep(logging.Handler):
        def emit(self, record):
            lines.append(f"{record.name}: {len(record.getMessage().splitlines()) > 1}")

    logging.getLogger("torch").addHandler(Keep())
    torch._logging.set_logs(**{name: True})
    compiled = torch.compile(lambda x: (x + 1, print(end=""), x + 2)[2], backend="eager", dynamic=False)
    compiled(ones(2))
    compiled(ones(3))
    torch._logging.set_logs()
    return lines


@program({"warning": logging.WARNING, "info": logging.INFO})
def verbose(level):
    """With everything logged the library may say more, torch itself the same number of lines."""
    lines = []

    class Keep(logging.Handler):
        def emit(self, record):
            lines.append(record.name)

    logging.getLogger("torch").addHandler(Keep())
    torch._logging.set_logs(dynamo=level)
    torch.compile(plus, backend="eager")(ones())
    torch._logging.set_logs()
    return len(lines)


@program()
def is_compiling_inside():
    """is_compiling() in the traced code, in the backend, in what the backend calls, afterwards."""
    seen = []
    backend = Counting(lambda: seen.append((torch.compiler.is_compiling(), torch.compiler.is_dynamo_compiling())))

    def f(x):
        return x + (1 if torch.compiler.is_compiling() else 2)

    return attempt(torch.compile(f, backend=backend), ones()), attempt(f, ones()), seen


@program()
def compile_times():
    """torch._dynamo.utils.compile_times counts the same phases."""
    torch.compile(plus, backend="aot_eager")(ones())
    phases = torch._dynamo.utils.compilation_time_metrics
    return {name: len(times) for name, times in sorted(phases.items())}


@program()
def compilation_metrics():
    """The metrics of each compile, that tools read."""
    for n in (2, 3):
        torch.compile(plus, backend="eager", dynamic=False)(ones(n))
    return [
        (str(m.compile_id), m.graph_op_count, str(m.co_name)) for m in torch._dynamo.utils.get_compilation_metrics()
    ]


@program()
def a_wrapper_of_the_users_around_torch_compile():
    """A program puts its own function in the place of torch.compile, and back."""
    said, plain = [], torch.compile

    def own(*args, **kwargs):
        said.append(len(args))
        return plain(*args, **kwargs)

    torch.compile = own
    try:
        result = attempt(torch.compile(plus, backend="eager"), ones())
        torch.nn.Linear(2, 2).compile(backend="eager")
    finally:
        torch.compile = plain
    return result, said, torch.compile is plain


@program()
def a_patch_of_the_users_on_torch():
    """mock.patch of a function of torch's, taken away again."""
    from unittest import mock

    with mock.patch("torch.nn.Module.__call__", lambda self, x: x + 10):
        inside = attempt(torch.nn.Linear(2, 2), ones(2, 2))
    with mock.patch("torch._dynamo.reset", lambda: "patched"):
        inside = inside, torch._dynamo.reset()
    module = torch.nn.Linear(2, 2)
    return inside, list(torch.compile(module, backend="eager")(ones(2, 2)).shape), torch._dynamo.reset()


@program()
def weak_keys():
    """A compiled object that can't be hashed."""

    class Strange:
        __hash__ = None

        def __call__(self, x):
            return x + 1

    return attempt(torch.compile(Strange(), backend="eager"), ones())

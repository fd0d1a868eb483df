"""What the threads of ``chaos.py`` do: each operation takes a random generator and checks its result against eager.

What known issues name is kept apart by locks of this file's own: one export at a time, and of what it replaces
(``max``, ``min``, ``math.pow``) nothing is used; default dtype and deterministic mode, which are the process's, are set
by one thread at a time.
"""

from __future__ import annotations

import contextlib
import copy
import faulthandler
import gc
import os
import pickle
import random
import signal
import threading
import time
from collections.abc import Callable

import torch
import torch._dynamo
import torch.fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention.flex_attention import create_block_mask

from safecompile import safe_compile

Random = random.Random
F32 = torch.float32
WIDTH = 6
FORK_LIMIT_S = 40

operations: dict[str, Callable[[Random], None]] = {}
weights: dict[str, int] = {}
_export = threading.Lock()
_process = threading.Lock()


class Meant(Exception):
    """Raised on purpose."""


def operation(weight: int):
    def add(function):
        operations[function.__name__] = function
        weights[function.__name__] = weight
        return function

    return add


def check(got, want, what="result") -> None:
    assert isinstance(got, torch.Tensor), f"{what} is {type(got)}"
    assert not isinstance(got, torch.fx.Proxy)
    assert got.dtype == want.dtype, f"{what}: {got.dtype}, not {want.dtype}"
    assert torch.allclose(got, want, atol=1e-5, equal_nan=True), f"{what}: {got} is not {want}"


def tensor(rng: Random, rows: int | None = None) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
    return torch.rand(rows or rng.randint(2, 9), WIDTH, generator=generator, dtype=F32)


def plain(x, k: float):
    return torch.tanh(x * k) + 1.0


def branching(x, k: float):
    return x.sin() + k if x.shape[0] > 4 else x.cos() - k


def breaking(x, k: float):
    y = x * 2.0
    torch._dynamo.graph_break()
    return inner(y, k).sum(0)


@torch._dynamo.disable
def uncompiled(x):
    return x + 1.0


def inner(x, k: float):
    return uncompiled(x.exp()) * k


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, 8, dtype=F32), torch.nn.Tanh(), torch.nn.Linear(8, 3, dtype=F32)
        )

    def forward(self, x):
        return self.layers(x).relu()


def net(seed: int) -> Net:
    made = Net()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.rand(parameter.shape, generator=generator, dtype=F32) - 0.5)
    return made


FUNCTIONS = (plain, branching, breaking)
BACKENDS = ("eager", "eager", "aot_eager")
shared = [(f, safe_compile(f, backend=b)) for f in FUNCTIONS for b in ("eager", "aot_eager")]
shared_net = net(0)
shared_compiled = safe_compile(shared_net, backend="aot_eager")
traced_code = torch.fx.symbolic_trace(net(1)).code


@operation(12)
def call(rng):
    """A shared compiled function with a shape that may be new."""
    function, compiled = rng.choice(shared)
    x, k = tensor(rng), float(rng.randint(1, 3))
    check(compiled(x, k), function(x, k))


@operation(6)
def call_a_module(rng):
    x = tensor(rng)
    with torch.no_grad() if rng.random() < 0.5 else contextlib.nullcontext():
        check(shared_compiled(x), shared_net(x))


@operation(4)
def backward(rng):
    x = tensor(rng).requires_grad_()
    (got,) = torch.autograd.grad(shared_compiled(x).sum(), x)
    (want,) = torch.autograd.grad(shared_net(x).sum(), x)
    check(got, want, "gradient")


@operation(4)
def new_function(rng):
    """A function of the thread's own: a compile for certain."""
    k = rng.random()

    def own(x):
        return (x + k).cos() * 2.0

    x = tensor(rng)
    check(safe_compile(own, backend=rng.choice(BACKENDS), dynamic=rng.choice((None, True, False)))(x), own(x))


@operation(1)
def whole_graph(rng):
    x, k = tensor(rng), rng.random()
    check(safe_compile(lambda x: x.sin() * k, backend="eager", fullgraph=True)(x), x.sin() * k)


@operation(5)
def trace(rng):
    graph = torch.fx.symbolic_trace(net(rng.randrange(9)))
    assert graph.code == traced_code, graph.code
    x = tensor(rng)
    assert graph(x).shape == (x.shape[0], 3)


@operation(2)
def trace_with_make_fx(rng):
    x, k = tensor(rng), rng.random()
    check(make_fx(lambda x: plain(x, k))(x)(x), plain(x, k))


@operation(1)
def export(rng):
    own, x = net(rng.randrange(9)), tensor(rng)
    with _export:
        exported = torch.export.export(own, (x,))
    check(exported.module()(x), own(x))


@operation(3)
def train(rng):
    seed = rng.randrange(9)
    mine, eager, x = net(seed), net(seed), tensor(rng)
    for model, forward in ((mine, safe_compile(mine, backend="aot_eager")), (eager, eager)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            forward(x).square().mean().backward()
            optimizer.step()
    for got, want in zip(mine.parameters(), eager.parameters(), strict=True):
        check(got.detach(), want.detach(), "weight")


@operation(2)
def reset(rng):
    rng.choice((torch._dynamo.reset, torch.compiler.reset))()


@operation(2)
def patched_setting(rng):
    x, k = tensor(rng), rng.random()
    with torch._dynamo.config.patch(automatic_dynamic_shapes=rng.random() < 0.5, specialize_int=True):
        check(safe_compile(lambda x: x * k + 1.0, backend="eager")(x), x * k + 1.0)


@operation(1)
def assigned_setting(rng):
    torch._dynamo.config.verbose = False  # as it is
    call(rng)


@operation(3)
def stance(rng):
    backends = []

    def backend(graph, inputs):
        backends.append(graph)
        return graph.forward

    x, k = tensor(rng), rng.random()
    function = lambda x: x - k
    # A code of its own: versions of one code count in recompile_limit, whatever their backends.
    function.__code__ = function.__code__.replace()
    own = safe_compile(function, backend=backend)
    with torch.compiler.set_stance("force_eager"):
        check(own(x), x - k)
    assert not backends, "compiled under force_eager"
    check(own(x), x - k)
    assert backends, "not compiled: another thread's stance was seen"


@operation(1)
def seeds(rng):
    torch.manual_seed(rng.randrange(99))
    random.seed(rng.randrange(99))


@operation(1)
def process_wide(rng):
    """Set and put back, by one thread at a time."""
    with _process:
        if rng.random() < 0.5:
            torch.set_default_dtype(torch.float64)
            call(rng)
            torch.set_default_dtype(F32)
        else:
            # Not deterministic mode: torch refuses a compiled backward whose forward ran in the other one.
            torch.set_float32_matmul_precision("high")
            call(rng)
            torch.set_float32_matmul_precision("highest")


@operation(3)
def raise_in_code(rng):
    def raising(x):
        raise Meant

    try:
        safe_compile(raising, backend="eager")(tensor(rng))
    except Meant:
        return
    raise AssertionError("Meant was lost")


@operation(3)
def raise_in_backend(rng):
    def backend(graph, inputs):
        raise Meant

    k = rng.random()
    try:
        safe_compile(lambda x: x * k, backend=backend)(tensor(rng))
    except Exception as error:
        assert isinstance(error, Meant) or "Meant" in repr(error) + str(error), repr(error)
        return
    raise AssertionError("the backend's error was lost")


@operation(2)
def short_lived_thread(rng):
    """One that calls, and dies in the middle of a compile."""
    errors = []

    def backend(graph, inputs):
        raise SystemExit

    def work():
        try:
            call(rng)
            safe_compile(lambda x: x + 1.5, backend=backend)(tensor(rng))
        except SystemExit:
            return  # and the thread ends
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


@operation(1)
def fork(rng):
    if not hasattr(os, "fork"):
        return
    pid = os.fork()
    if pid == 0:
        faulthandler.register(signal.SIGALRM, chain=True)  # its stacks, then its end
        signal.alarm(FORK_LIMIT_S)
        code = 1
        try:
            x, k = tensor(rng), rng.random()
            # Not ``call``: its functions' guards may have been locked by another thread (docs/known-issues.md).
            check(safe_compile(lambda x: x * k, backend="eager")(x), x * k)
            trace(rng)
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
        time.sleep(0.02)
    assert ended[1] == 0, f"the forked child ended with {ended[1]}"


@operation(2)
def flags(rng):
    assert not torch.compiler.is_compiling()
    assert not torch.fx._symbolic_trace.is_fx_tracing()
    repr(tensor(rng))


@operation(1)
def block_mask(rng):
    create_block_mask(lambda b, h, q, kv: q >= kv, None, None, 64, 64, device="cpu")


@operation(1)
def conditional(rng):
    def function(x):
        return torch.cond(x.sum() > 3.0, lambda x: x.sin(), lambda x: x.cos(), (x,))

    x = tensor(rng)
    want = x.sin() if x.sum() > 3.0 else x.cos()
    check(safe_compile(function, backend="eager")(x) if rng.random() < 0.5 else function(x), want)


@operation(1)
def copies(rng):
    own, x = net(rng.randrange(9)), tensor(rng)
    compiled = safe_compile(own, backend="eager")
    want = own(x)
    for other in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled)), compiled):
        check(other(x).detach(), want.detach())


@operation(1)
def collect(rng):
    gc.collect()

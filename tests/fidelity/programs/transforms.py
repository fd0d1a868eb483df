"""Functional transforms and autograd with compiled code."""

from __future__ import annotations

import torch

from tests.fidelity.table import program

from ._common import Counting, attempt, ones, told


def _square(x):
    return (x * x).sum()


TRANSFORMS = {
    "grad": lambda f: torch.func.grad(f),
    "vmap": lambda f: torch.func.vmap(f),
    "jacrev": lambda f: torch.func.jacrev(f),
    "vjp": lambda f: lambda x: torch.func.vjp(f, x)[1](torch.tensor(1.0)),
    "jvp": lambda f: lambda x: torch.func.jvp(f, (x,), (x,)),
    "functionalize": lambda f: torch.func.functionalize(f),
    "linearize": lambda f: lambda x: torch.func.linearize(f, x)[1](x),
}


@program(TRANSFORMS)
def compiled_outside(transform):
    """compile(transform(f))."""
    backend = Counting()
    compiled = torch.compile(transform(_square), backend=backend)
    return [attempt(compiled, ones(2, 2)) for _ in range(2)], backend.calls


@program(TRANSFORMS)
def compiled_inside(transform):
    """transform(compile(f))."""
    backend = Counting()
    made = transform(torch.compile(_square, backend=backend))
    return (
        [attempt(made, ones(2, 2)) for _ in range(2)],
        attempt(torch.compile(_square, backend=backend), ones()),
        backend.calls,
    )


@program()
def functional_call():
    """functional_call of a compiled module, and compiled functional_call."""
    module = torch.nn.Linear(2, 2)
    weights = {"weight": torch.ones(2, 2), "bias": torch.zeros(2)}
    inside = attempt(torch.func.functional_call, torch.compile(module, backend="eager"), weights, (ones(2, 2),))
    outside = attempt(
        torch.compile(lambda w, x: torch.func.functional_call(module, w, (x,)), backend="eager"), weights, ones(2, 2)
    )
    return inside, outside


@program({"eager": "eager", "aot_eager": "aot_eager"}, quick=("aot_eager",))
def backward(backend):
    """Forward, backward, double backward, retained graphs."""
    x = torch.ones(2, requires_grad=True)
    compiled = torch.compile(lambda x: (x**3).sum(), backend=backend)
    y = compiled(x)
    y.backward(retain_graph=True)
    y.backward()
    double = attempt(lambda: torch.autograd.grad(torch.autograd.grad(compiled(x), x, create_graph=True)[0].sum(), x))
    return told(x.grad), double if not isinstance(double, dict) else double["type"]


@program()
def checkpointed():
    """Activation checkpointing of and in compiled code."""
    from torch.utils.checkpoint import checkpoint

    seen = []
    for reentrant in (False, True):
        x = torch.ones(2, requires_grad=True)
        f = torch.compile(lambda x: x.sin().sin(), backend="aot_eager")
        checkpoint(f, x, use_reentrant=reentrant).sum().backward()
        seen.append(told(x.grad))
    return seen


OPTIMIZERS = {"SGD": torch.optim.SGD, "Adam": torch.optim.Adam, "AdamW": torch.optim.AdamW}


@program(OPTIMIZERS)
def optimizers(kind):
    """Compiled steps of an optimizer, and steps beside a compiled model."""
    backend = Counting()
    p = torch.ones(2, requires_grad=True)
    optimizer = kind([p], lr=0.1)
    step = torch.compile(optimizer.step, backend=backend)
    for _ in range(3):
        p.grad = torch.ones(2)
        step()
    p.grad = torch.ones(2)
    optimizer.step()
    return [round(v, 5) for v in p.tolist()], backend.calls


@program({"mark": 0, "custom": 1})
def operators_of_the_user(kind):
    """A custom operator, and a function marked with allow_in_graph."""
    backend = Counting()
    if kind == 0:

        @torch._dynamo.allow_in_graph
        def op(x):
            return x + 3

    else:

        @torch.library.custom_op("fidelity::op", mutates_args=())
        def op(x: torch.Tensor) -> torch.Tensor:
            return x + 3

        op.register_fake(lambda x: torch.empty_like(x))
    return [
        attempt(torch.compile(lambda x: op(x) * 2, backend=backend, fullgraph=True), ones()) for _ in range(2)
    ], backend.calls


@program()
def forward_mode():
    """Dual tensors in compiled code."""
    import torch.autograd.forward_ad as forward

    with forward.dual_level():
        x = forward.make_dual(ones(), ones() * 2)
        y = attempt(lambda: tuple(forward.unpack_dual(torch.compile(lambda x: x * 3, backend="eager")(x))))
    return y


@program({"mutated": 0, "view": 1, "out": 2, "requires_grad": 3})
def effects_on_tensors(kind):
    """Mutation of inputs, views, out=, requires_grad_."""
    x, out = torch.ones(4), torch.zeros(4)

    def f(x):
        if kind == 0:
            x.add_(1)
        elif kind == 1:
            x = x.view(2, 2)
            x[0] += 1
        elif kind == 2:
            torch.add(x, 1, out=out)
        else:
            x.requires_grad_()
        return x * 2

    return [attempt(torch.compile(f, backend="aot_eager"), x) for _ in range(2)], told(x), told(out)


@program({"fake": 0, "meta": 1, "sparse": 2, "nested": 3, "complex": 4})
def kinds_of_tensors(kind):
    """Tensors of other kinds as arguments."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    backend = Counting()
    compiled = torch.compile(lambda x: x * 2, backend=backend)
    if kind == 0:
        with FakeTensorMode():
            return attempt(lambda: str(compiled(torch.ones(2)).shape)), backend.calls
    makes = {
        1: lambda: torch.ones(2, device="meta"),
        2: lambda: torch.ones(2).to_sparse(),
        3: lambda: torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged),
        4: lambda: torch.ones(2, dtype=torch.complex64),
    }
    return attempt(lambda: str(compiled(makes[kind]()).shape)), backend.calls

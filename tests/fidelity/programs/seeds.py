"""Random numbers: drawn in compiled code, by a backend, around a compile."""

from __future__ import annotations

import random

import numpy
import torch

from tests.fidelity.table import program

from ._common import Counting, attempt, in_thread, ones, plus, told


def _draw():
    """What each generator gives next."""
    return round(random.random(), 9), round(torch.rand(1).item(), 6), round(float(numpy.random.rand()), 9)


def _seed():
    random.seed(7)
    torch.manual_seed(7)
    numpy.random.seed(7)


DRAWS = {
    "random": lambda x: x * random.random(),
    "randint": lambda x: x + random.randint(0, 1000),
    "uniform": lambda x: x + random.uniform(2, 3),
    "several": lambda x: x + random.random() + random.randint(0, 1000) + random.random(),
    "seeded inside": lambda x: (random.seed(3), x + random.random())[1],
    "torch": lambda x: x + torch.rand(2),
    "dropout": lambda x: torch.nn.functional.dropout(x, 0.5),
    "manual_seed": lambda x: (torch.manual_seed(3), x + torch.rand(2))[1],
    "numpy": lambda x: x + float(numpy.random.rand()),
    "break": lambda x: (x + random.random(), print(end=""), x + random.random())[2],
    "torch and break": lambda x: (torch.rand(1), print(end=""), x + torch.rand(2))[2],
    "shuffle": lambda x: x + random.sample(range(100), 3)[0],
    "generator": lambda x: x + torch.rand(2, generator=torch.Generator().manual_seed(5)),
}


@program(DRAWS, quick=("several",))
def drawn_in_compiled_code(draw):
    """Two calls of a function that draws, and what comes after them: with eager beside it."""
    seen = {}
    for name, f in (("eager", draw), ("compiled", torch.compile(draw, backend="eager"))):
        _seed()
        seen[name] = attempt(f, ones()), attempt(f, ones()), _draw()
    return seen


SOURCES = {
    "torch": lambda: torch.randn(3),
    "random": lambda: random.random(),
    "numpy": lambda: numpy.random.rand(3),
    "all": lambda: _draw(),
    "seeds": lambda: torch.manual_seed(99),
    "random.seed": lambda: random.seed(99),
    "nothing": lambda: None,
}


@program(SOURCES, quick=("torch",))
def drawn_by_a_backend(draw):
    """What a backend draws is put back, or not, as in plain torch; once more after a recompile."""
    backend = Counting(draw)
    compiled = torch.compile(plus, backend=backend)
    _seed()
    return told(compiled(ones(2))), _draw(), told(compiled(ones(2, 2))), _draw(), _draw(), backend.calls


@program({name: SOURCES[name] for name in ("torch", "random", "seeds")})
def drawn_by_a_backend_that_fails(draw):
    """What a backend draws before it raises."""

    def fails(gm, inputs):
        draw()
        raise ValueError

    _seed()
    return attempt(torch.compile(plus, backend=fails), ones())["type"], _draw()


@program({"main": 0, "thread": 1})
def drawn_around_a_compile(thread):
    """The numbers before and after a compile go on where they were."""
    _seed()
    seen = [_draw()]
    (in_thread if thread else lambda f: f())(lambda: torch.compile(plus, backend=Counting(_draw))(ones()))
    return seen, _draw()


@program()
def fork_rng():
    """torch.random.fork_rng around a compile, and in compiled code."""
    _seed()
    with torch.random.fork_rng():
        inside = told(torch.compile(lambda x: x + torch.rand(2), backend="eager")(ones())), _draw()

    def f(x):
        with torch.random.fork_rng():
            y = x + torch.rand(2)
        return y

    return inside, _draw(), attempt(torch.compile(f, backend="eager"), ones()), _draw()


@program()
def state_put_back_by_hand():
    """get_rng_state and set_rng_state around compiled code give the same numbers again."""
    compiled = torch.compile(lambda x: x + torch.rand(2), backend="eager")
    state, other = torch.get_rng_state(), random.getstate()
    first = told(compiled(ones())), _draw()[:2]
    torch.set_rng_state(state)
    random.setstate(other)
    return first, (told(compiled(ones())), _draw()[:2])


@program({"aot_eager": "aot_eager", "eager": "eager"})
def training_with_dropout(backend):
    """A small training is the same with the same seed: forward, backward, optimizer."""
    _seed()
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
    compiled = torch.compile(model, backend=backend)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        loss = compiled(torch.rand(3, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(round(loss.item(), 5))
    return losses, _draw()


@program()
def checkpoint_with_dropout():
    """Activation checkpointing draws the same numbers in its second forward."""
    _seed()
    layer = torch.nn.Linear(4, 4)

    def f(x):
        return torch.utils.checkpoint.checkpoint(
            lambda y: torch.nn.functional.dropout(layer(y), 0.5), x, use_reentrant=False
        ).sum()

    torch.compile(f, backend="aot_eager")(torch.ones(2, 4, requires_grad=True)).backward()
    return [round(v, 4) for v in layer.weight.grad.flatten().tolist()], _draw()


@program({"export": 0, "symbolic_trace": 1, "make_fx": 2, "reset": 3})
def drawn_around_other_entries(kind):
    """Export, traces and resets draw nothing."""
    from torch.fx.experimental.proxy_tensor import make_fx

    _seed()
    layer = torch.nn.Linear(2, 2)
    before = _draw()
    if kind == 0:
        torch.export.export(layer, (ones(2, 2),))
    elif kind == 1:
        torch.fx.symbolic_trace(layer)
    elif kind == 2:
        make_fx(lambda x: x + torch.rand(2))(ones())
    else:
        torch.compile(plus, backend="eager")(ones())
        torch._dynamo.reset()
    return before, _draw()

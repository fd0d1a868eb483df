"""Stances: as a block, a decorator, a plain call, an object that is kept; entered here and left there."""

from __future__ import annotations

import contextlib
import threading

import torch
from torch.compiler import set_stance

from tests.fidelity.table import program

from ._common import Probe, attempt, in_thread, named, ones

STANCES = ("default", "force_eager", "eager_on_recompile", "fail_on_recompile")


@program({name: name for name in STANCES}, quick=("force_eager",))
def as_a_block(stance):
    """Inside, after it, and after an error in it."""
    probe = Probe()
    seen = [probe()]
    with set_stance(stance):
        seen += [probe(), probe()]
    seen.append(probe())
    with contextlib.suppress(KeyError), set_stance(stance):
        raise KeyError
    return seen, probe()


@program({name: name for name in STANCES})
def as_a_decorator(stance):
    """In each call of the function, and nowhere else."""
    probe = Probe()
    decorated = set_stance(stance)(probe.__call__)
    return [probe(), decorated(), probe(), decorated(), probe()]


@program({name: name for name in STANCES})
def as_a_plain_call(stance):
    """For the process, in every thread, until the next call."""
    probe = Probe()
    set_stance(stance)
    seen = [probe(), in_thread(probe), probe()]
    set_stance("default")
    return seen, probe(), in_thread(probe)


def _with_exit_stack(probe):
    with contextlib.ExitStack() as stack:
        stack.enter_context(set_stance("force_eager"))
        inside = probe()
    return inside


def _by_hand(probe):
    stance = set_stance("force_eager")
    stance.__enter__()
    inside = probe()
    stance.__exit__(None, None, None)
    return inside


def _in_a_context_manager(probe):
    @contextlib.contextmanager
    def eager():
        with set_stance("force_eager"):
            yield

    with eager():
        return probe()


def _in_a_generator(probe):
    def numbers():
        with set_stance("force_eager"):
            yield probe()
            yield probe()

    generator = numbers()
    inside = next(generator), probe()
    generator.close()
    return inside


def _two_in_one_with(probe):
    with set_stance("force_eager"), set_stance("default"):
        return probe()


def _closing_order(probe):
    a, b = set_stance("force_eager"), set_stance("default")
    a.__enter__()
    b.__enter__()
    seen = [probe()]
    a.__exit__(None, None, None)
    seen.append(probe())
    b.__exit__(None, None, None)
    return seen


def _plain_call_inside(probe):
    with set_stance("force_eager"):
        set_stance("default")
        inside = probe()
    return inside, probe()


def _conditional(probe):
    with set_stance("force_eager") if probe.n >= 0 else contextlib.nullcontext():
        return probe()


BLOCKS = named(
    _with_exit_stack,
    _by_hand,
    _in_a_context_manager,
    _in_a_generator,
    _two_in_one_with,
    _closing_order,
    _plain_call_inside,
    _conditional,
)


@program(BLOCKS)
def entered(block):
    """However it is entered, the stance holds until it is left."""
    probe = Probe()
    seen = [probe(), block(probe), probe(), in_thread(probe)]
    set_stance("default")
    return seen, probe()


@program()
def entered_in_a_coroutine():
    """A stance over an await, in the thread of the loop."""
    import asyncio

    probe = Probe()

    async def main():
        with set_stance("force_eager"):
            await asyncio.sleep(0)
            return probe()

    return asyncio.run(main()), probe()


@program({"main": 0, "threads": 1, "dead thread": 2}, quick=("threads",))
def left_in_another_thread(kind):
    """Entered in one thread and left in another: nothing stays behind, in later threads neither."""
    probe = Probe()
    stance = set_stance("force_eager")
    if kind == 0:
        stance.__enter__()
        left = in_thread(lambda: stance.__exit__(None, None, None))
    elif kind == 1:
        entered, over = threading.Event(), threading.Event()  # both threads live, so that no ident is used again
        thread = threading.Thread(target=lambda: (stance.__enter__(), entered.set(), over.wait()))
        thread.start()
        entered.wait()
        left = in_thread(lambda: stance.__exit__(None, None, None))
        over.set()
        thread.join()
    else:
        in_thread(stance.__enter__)
        left = attempt(stance.__exit__, None, None, None)
    return left, [in_thread(probe) for _ in range(3)], probe()


@program(quick=True)
def skipped_guards():
    """With guards skipped, a call with other values runs the first version."""

    @torch.compile(backend="eager")
    def f(x, n):
        return x + n

    seen = [attempt(f, ones(), 1), attempt(f, ones(), 2)]
    with set_stance(skip_guard_eval_unsafe=True):
        seen += [torch._dynamo.eval_frame._stance.skip_guard_eval_unsafe, attempt(f, ones(), 2), attempt(f, ones(), 1)]
    return seen, attempt(f, ones(), 3)


@program({"number": 3, "unknown": "there is none"})
def wrong(stance):
    """The error is torch's own."""
    return attempt(set_stance, stance), Probe()()


@program()
def in_compiled_code():
    """A stance inside compiled code is refused as in plain torch."""

    @torch.compile(backend="eager")
    def f(x):
        with set_stance("force_eager"):
            return x + 1

    return attempt(f, ones()), Probe()()


@program()
def with_a_backend():
    """A stance that names another backend."""
    probe = Probe()
    with set_stance("default", force_backend="eager"):
        inside = probe()
    return inside, probe()


@program()
def looked_at():
    """The class, its text, its attributes."""
    stance = set_stance("default")
    return (
        repr(type(stance)),
        sorted(vars(stance)),
        type(stance).__mro__[1].__name__,
        str(torch._dynamo.eval_frame._stance),
    )

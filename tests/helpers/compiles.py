"""Backends that count their compiles, and the same jobs by one thread alone and by many at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch._dynamo

import safecompile

from .threads import run_threads


class Counting:
    """A backend for ``torch.compile`` that counts: ``"eager"``, ``"aot_eager"`` or ``"inductor"``.

    Attributes:
        forward, backward: graphs compiled so far; a function without a gradient counts as forward.
    """

    def __init__(self, kind: str = "eager", before: Callable[[], None] = lambda: None) -> None:
        self.__name__ = f"counting_{kind}"
        self.kind, self.before = kind, before
        self.forward = self.backward = 0
        # Guards the counts.
        self._counts = threading.Lock()

    def __call__(self, graph_module: Any, example_inputs: list[Any]) -> Callable[..., Any]:
        self.before()
        if self.kind == "eager":
            self._count(is_backward=False)
            return graph_module.forward
        if self.kind == "aot_eager":
            from torch._dynamo.backends.common import aot_autograd

            return aot_autograd(fw_compiler=self._eager(False), bw_compiler=self._eager(True))(
                graph_module, example_inputs
            )
        from torch._inductor.compile_fx import compile_fx, compile_fx_inner

        def inner(graph: Any, inputs: Any, **kwargs: Any) -> Any:
            self._count(is_backward=bool(kwargs.get("is_backward", False)))
            return compile_fx_inner(graph, inputs, **kwargs)

        return compile_fx(graph_module, example_inputs, inner_compile=inner)

    def _eager(self, is_backward: bool) -> Any:
        from functorch.compile import make_boxed_func

        def compiler(graph: Any, inputs: Any) -> Any:
            self._count(is_backward=is_backward)
            return make_boxed_func(graph.forward)

        return compiler

    def _count(self, *, is_backward: bool) -> None:
        with self._counts:
            if is_backward:
                self.backward += 1
            else:
                self.forward += 1

    @property
    def counts(self) -> tuple[int, int]:
        return self.forward, self.backward


Jobs = Callable[[Counting], "list[Callable[[], Any]]"]


def alone(jobs: Jobs, kind: str = "eager") -> tuple[tuple[int, int], list[Any]]:
    """Runs the jobs one after the other; returns the counts and the results."""
    torch.compiler.reset()
    backend = Counting(kind)
    results = [job() for job in jobs(backend)]
    return backend.counts, results


def together(
    jobs: Jobs, kind: str = "eager", before: Callable[[], None] = lambda: None, timeout_s: float = 60.0
) -> tuple[tuple[int, int], list[Any]]:
    """Runs the jobs in threads that start at once; returns the counts and the results."""
    torch.compiler.reset()
    backend = Counting(kind, before)
    results = run_threads(jobs(backend), timeout_s)
    return backend.counts, results


#: What ``dynamic=False`` sets during a call, up to torch 2.11: threads of plain torch leave it set for good.
DYNAMIC = ("automatic_dynamic_shapes", "assume_static_by_default")


@contextmanager
def plain_torch() -> Iterator[None]:
    """Takes the patches out: what happens inside shows what a test proves."""
    config = torch._dynamo.config
    before = {name: getattr(config, name) for name in DYNAMIC}
    safecompile.uninstall()
    try:
        yield
    finally:
        safecompile.install()
        for name, value in before.items():
            if getattr(config, name) != value:
                setattr(config, name, value)

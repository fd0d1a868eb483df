"""A scene of two overlapping make_fx, which test_fx_beside runs."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

WAIT_S = 30.0


def overlapping_make_fx():
    """A make_fx that ends while another thread's goes on does not take its tracer away."""
    inside = [threading.Event(), threading.Event()]
    go = [threading.Event(), threading.Event()]

    def conditional(index):
        def traced(x):
            inside[index].set()
            assert go[index].wait(WAIT_S)
            return torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (x,))

        return lambda: make_fx(traced, tracing_mode="real")(torch.ones(2)).code

    for one in go:
        one.set()
    alone = conditional(0)()
    for one in (*go, *inside):
        one.clear()
    results: dict[int, Any] = {}

    def run(index):
        try:
            results[index] = conditional(index)()
        except BaseException as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(2)]
    for index in range(2):
        threads[index].start()
        assert inside[index].wait(WAIT_S)
    for index in range(2):
        go[index].set()
        threads[index].join(WAIT_S)
    assert results == {0: alone, 1: alone}, results

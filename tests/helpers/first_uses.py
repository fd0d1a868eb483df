"""Uses of torch's that are the first to need Dynamo, Inductor or export, and processes in which nothing has been used.

A child is forked where torch is imported and Dynamo is not, so that a cold start costs the import of Dynamo alone.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable


def compile_eager() -> None:
    import torch

    torch.compile(lambda x: x.sin() + 1, backend="eager")(torch.ones(3))


def compile_inductor() -> None:
    import torch

    torch.compile(lambda x: x.cos() + 1)(torch.ones(3))


def adam() -> None:
    import torch

    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([parameter])
    parameter.sum().backward()
    optimizer.step()


def export() -> None:
    import torch

    torch.export.export(torch.nn.Linear(3, 3), (torch.ones(2, 3),))


def checkpoint() -> None:
    import torch
    from torch.utils.checkpoint import checkpoint as checkpointed

    x = torch.ones(3, requires_grad=True)
    checkpointed(lambda y: y.sin() + 1, x, use_reentrant=False).sum().backward()


def flex_attention() -> None:
    import torch
    from torch.nn.attention import flex_attention as flex

    query = torch.ones(1, 1, 16, 16)
    flex.flex_attention(query, query, query)


def symbolic_trace() -> None:
    import torch.fx

    torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()))


def vmap() -> None:
    import torch

    torch.func.vmap(lambda x: x.sin())(torch.ones(3, 3))


USES: tuple[Callable[[], None], ...] = (
    compile_eager,
    compile_inductor,
    adam,
    export,
    checkpoint,
    flex_attention,
    symbolic_trace,
    vmap,
)


def prepare() -> None:
    """Imports what the programs of users import at their top, and neither Dynamo nor Inductor."""
    import torch.fx
    import torch.nn.attention.flex_attention
    import torch.utils.checkpoint  # noqa: F401


def at_once(uses: Iterable[Callable[[], None]], limit_s: float = 600.0) -> list[str]:
    """Calls each in a thread of its own, all at once; returns what went wrong, a line for each."""
    jobs = list(uses)
    start, wrong = threading.Barrier(len(jobs)), []

    def run(use: Callable[[], None]) -> None:
        start.wait(limit_s)
        try:
            use()
        except BaseException as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            wrong.append(
                f"{use.__name__}: {type(error).__name__}: {str(error)[:200]} ({where.filename}:{where.lineno})"
            )

    threads = [threading.Thread(target=run, args=(use,), name=use.__name__, daemon=True) for use in jobs]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + limit_s
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return wrong + [f"{thread.name}: hung" for thread in threads if thread.is_alive()]


def cold_start(uses: Iterable[Callable[[], None]], limit_s: float = 600.0) -> list[str]:
    """As :func:`at_once`, in a forked child."""
    jobs = list(uses)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            wrong = at_once(jobs, limit_s)
        except BaseException as error:
            wrong = [f"{type(error).__name__}: {error}"]
        os.write(write, "\n".join(wrong).encode()[:4000])
        os._exit(0)
    os.close(write)
    watchdog = threading.Timer(limit_s + 30.0, os.kill, (child, signal.SIGKILL))
    watchdog.start()
    with os.fdopen(read, "rb") as pipe:
        text = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    watchdog.cancel()
    watchdog.join()  # no thread is alive at the next fork
    return [line for line in text.splitlines() if line] + [f"exit status {status}"] * bool(status)

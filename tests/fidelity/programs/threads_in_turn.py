"""Threads and processes that work one after the other: asyncio, pools, DataLoader, fork."""

from __future__ import annotations

import asyncio
import concurrent.futures
import multiprocessing
import os
import signal
import threading
import time

import torch

from tests.fidelity.table import program

from ._common import Counting, attempt, fresh, in_thread, ones, plus, told


@program({"gather": 0, "tasks": 1, "to_thread": 2, "taskgroup": 3}, quick=("gather",))
def in_asyncio(kind):
    """Coroutines that call compiled code in turn."""
    backend = Counting()
    compiled = torch.compile(plus, backend=backend)

    async def call(n):
        await asyncio.sleep(0)
        return told(compiled(ones(n)))

    async def main():
        if kind == 0:
            return await asyncio.gather(*(call(n) for n in (2, 3, 2)))
        if kind == 1:
            tasks = [asyncio.create_task(call(n)) for n in (2, 3)]
            return [await task for task in tasks]
        if kind == 2:
            return [await asyncio.to_thread(lambda n=n: told(compiled(ones(n)))) for n in (2, 2, 3)]
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, lambda: told(compiled(ones(2))))

    return asyncio.run(main()), backend.calls


@program(quick=True)
def settings_of_a_task():
    """A task assigns a setting; a compile outside of it, and in another task, sees what plain torch shows."""
    seen = []

    def limited():
        backend = Counting(lambda: seen.append(torch._dynamo.config.recompile_limit))
        compiled = torch.compile(fresh(), backend=backend, dynamic=False)
        for n in range(1, 6):
            compiled(ones(n))
        return backend.calls

    async def assign():
        torch._dynamo.config.recompile_limit = 2
        return limited()

    async def read():
        return torch._dynamo.config.recompile_limit, limited()

    async def main():
        return await asyncio.create_task(assign()), await asyncio.create_task(read()), await read()

    return asyncio.run(main()), torch._dynamo.config.recompile_limit, limited(), seen


@program()
def modes_of_a_task():
    """A task that is in no_grad while another compiles, in one thread."""
    seen = []

    async def quiet():
        with torch.no_grad():
            await asyncio.sleep(0.01)
            seen.append(torch.is_grad_enabled())

    async def compiles():
        await asyncio.sleep(0)
        seen.append(told(torch.compile(plus, backend="eager")(torch.ones(2, requires_grad=True))))

    async def main():
        await asyncio.gather(quiet(), compiles())

    asyncio.run(main())
    return seen, torch.is_grad_enabled()


@program({"thread": 0, "pool": 1, "timer": 2, "three": 3})
def in_threads_in_turn(kind):
    """The first call is in a thread that ends; the next are in others, and in the main one."""
    backend = Counting()
    compiled = torch.compile(plus, backend=backend)
    call = lambda: told(compiled(ones()))
    if kind == 0:
        seen = [in_thread(call)]
    elif kind == 1:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            seen = [pool.submit(call).result() for _ in range(3)]
    elif kind == 2:
        seen = []
        timer = threading.Timer(0.01, lambda: seen.append(call()))
        timer.start()
        timer.join()
    else:
        seen = [in_thread(call) for _ in range(3)]
    return seen, call(), backend.calls


@program()
def idents_used_again():
    """Threads that come and go: thirty, each compiles a function of its own, with a backward."""
    backend = Counting()

    def work():
        x = torch.ones(2, requires_grad=True)
        torch.compile(lambda x: (x * 2).sum(), backend=backend)(x).backward()
        return told(x.grad)

    return [in_thread(work) for _ in range(10)], backend.calls


@program()
def thread_locals_of_the_user():
    """threading.local in compiled code."""
    local = threading.local()
    local.n = 3

    def f(x):
        return x + local.n

    return attempt(torch.compile(f, backend="eager"), ones()), in_thread(
        lambda: torch.compile(f, backend="eager")(ones())
    )["type"]


class _Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        return torch.compile(plus, backend="eager")(torch.full((2,), float(i)))


@program({"0": 0, "1": 1}, timeout_s=120)
def data_loader(workers):
    """Compiled code in the dataset, in this process or a worker; shuffled with a seed."""
    torch.manual_seed(0)
    loader = torch.utils.data.DataLoader(_Data(), batch_size=2, num_workers=workers, shuffle=True)
    return [batch.tolist() for batch in loader], round(torch.rand(1).item(), 6)


@program({"cold": 0, "warm": 1, "in a backend": 2}, timeout_s=120)
def forked(kind):
    """A child of fork compiles, also one that is forked in the middle of a compile."""
    compiled = torch.compile(plus, backend="eager")
    if kind == 1:
        compiled(ones())

    def child():
        pid = os.fork()
        if not pid:
            ok = compiled(ones(3)).tolist() == [2.0] * 3
            os._exit(7 if ok else 8)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    if kind < 2:
        return child(), told(compiled(ones()))
    seen = []
    torch.compile(lambda x: x * 2, backend=Counting(lambda: seen.append(child())))(ones())
    return seen


@program(timeout_s=120)
def a_process_of_multiprocessing():
    """A forked Process returns what compiled code gives."""
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=lambda: queue.put(torch.compile(plus, backend="eager")(ones()).tolist()))
    process.start()
    process.join()
    return queue.get(), process.exitcode


@program()
def in_a_signal_handler():
    """A handler of a signal calls compiled code, between two calls and in the middle of a compile."""
    seen = []
    compiled = torch.compile(lambda x: x - 1, backend="eager")
    signal.signal(signal.SIGUSR2, lambda *_: seen.append(attempt(compiled, ones())))
    os.kill(os.getpid(), signal.SIGUSR2)
    time.sleep(0)
    backend = Counting(lambda: os.kill(os.getpid(), signal.SIGUSR2))
    result = attempt(torch.compile(plus, backend=backend), ones())
    signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    return seen, result


@program()
def interrupted():
    """Ctrl-C in a backend: KeyboardInterrupt, and the next call compiles."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    first = []

    def interrupt():
        if not first:
            first.append(1)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)

    backend = Counting(interrupt)
    compiled = torch.compile(plus, backend=backend)
    raised = attempt(compiled, ones())
    return raised["type"], attempt(compiled, ones()), backend.calls


@program({"trace": 0, "profile": 1})
def with_a_trace_function(kind):
    """sys.settrace and sys.setprofile, as debuggers and coverage have them: calls of the user's are seen once."""
    import sys

    said = []

    def look(frame, event, arg):
        if frame.f_code.co_name in ("plus", "backend") and event == "call":
            said.append(frame.f_code.co_name)
        return look

    (sys.settrace if kind == 0 else sys.setprofile)(look)
    try:
        result = attempt(torch.compile(plus, backend="eager"), ones())
    finally:
        (sys.settrace if kind == 0 else sys.setprofile)(None)
    return result, said

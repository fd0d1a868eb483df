"""CUDA graphs (``mode="reduce-overhead"``) from several threads, on one or two GPUs.

``python tests/gpu/cuda_graphs.py [--steps a,b] [--modes plain,safe] [--repeats 2] [--json FILE]``
On a machine without a GPU the steps run on the CPU without graphs, which only shows that they are written rightly.
"""

import logging
import os
import threading
import time
from collections import Counter

from harness import devices, in_threads, lock, main, step

captures: Counter = Counter()


def count_captures():
    import torch

    if not torch.cuda.is_available():
        return
    cls = torch.cuda.CUDAGraph
    for name in ("capture_begin", "replay"):
        original = getattr(cls, name)

        def counted(self, *args, _original=original, _name=name, **kwargs):
            with lock:
                captures[_name] += 1
            return _original(self, *args, **kwargs)

        setattr(cls, name, counted)


def cuda_graph_case(count, where, warm_up, train=False, rounds=12):
    import torch

    count_captures()
    on_gpu = torch.cuda.is_available()
    weights = [torch.randn(256, 256, device=d, generator=torch.Generator(d).manual_seed(1)) / 16 for d in where]

    def body(x, w):
        return torch.nn.functional.gelu(x @ w) @ w + x.sin()

    function = torch.compile(body, mode="reduce-overhead" if on_gpu else None)
    wrong: list = []

    def one(i, n):
        device, w = where[i % len(where)], weights[i % len(where)]
        x = torch.randn(64, 256, device=device, generator=torch.Generator(device).manual_seed(1000 * i + n))
        x.requires_grad_(train)
        torch.compiler.cudagraph_mark_step_begin()
        with torch.set_grad_enabled(train):
            got = function(x, w)
            if train:
                got.square().sum().backward()
                got_grad, x.grad = x.grad.clone(), None
            got = got.detach().clone()
            want = body(x, w)
            if train:
                want.square().sum().backward()
                if not torch.allclose(got_grad, x.grad, rtol=1e-3, atol=1e-2):
                    wrong.append(f"gradient of thread {i}, call {n}")
        if not torch.allclose(got, want, rtol=1e-3, atol=1e-3):
            wrong.append(f"output of thread {i}, call {n}")

    if warm_up:
        for n in range(4):
            one(0, n)
        before = dict(captures)
    start = threading.Barrier(count)

    def work(i):
        if on_gpu:
            torch.cuda.set_device(where[i % len(where)])
        start.wait()
        for n in range(rounds):
            one(i, n)
        if on_gpu:
            torch.cuda.synchronize()

    try:
        in_threads(count, work)
    except AssertionError as error:
        raise AssertionError(f"{error} | wrong: {len(wrong)} {wrong[:2]} | {dict(captures)}") from None
    assert not wrong, f"{len(wrong)} of {count * rounds} calls wrong: {wrong[:3]} | {dict(captures)}"
    from torch._dynamo.utils import counters

    more = {"before_threads": before} if warm_up else {}
    skips = counters["inductor"].get("cudagraph_skips", 0)
    if on_gpu:
        assert captures["replay"], f"right results, but no graph was replayed (skips {skips}, {dict(captures)})"
    return {**captures, "cudagraph_skips": skips, **more}


@step
def graphs_main_then_4_threads():
    """mode="reduce-overhead" warmed up in the main thread, then called in 4 threads on one device."""
    return cuda_graph_case(4, devices()[:1], warm_up=True)


@step
def graphs_cold_4_threads():
    """mode="reduce-overhead", cold in 4 threads on one device."""
    return cuda_graph_case(4, devices()[:1], warm_up=False)


@step
def graphs_thread_per_device():
    """mode="reduce-overhead", cold, one thread for each device."""
    return cuda_graph_case(2, devices(), warm_up=False)


@step
def graphs_train_thread_per_device():
    """The same with a backward."""
    return cuda_graph_case(2, devices(), warm_up=False, train=True)


@step
def graphs_train_two_threads_per_device():
    """Forward and backward, cold, two threads for each device."""
    return cuda_graph_case(2 * len(devices()), devices(), warm_up=False, train=True)


@step
def graphs_lone_worker():
    """For comparison: one worker thread alone, cold."""
    return cuda_graph_case(1, devices()[:1], warm_up=False)


def body(x, w):
    return (x @ w).relu() @ w + x.sin()


def weight(device):
    import torch

    return torch.randn(256, 256, device=device, generator=torch.Generator(device).manual_seed(1)) / 16


def inputs(device, seed, rows=64):
    import torch

    return torch.randn(rows, 256, device=device, generator=torch.Generator(device).manual_seed(seed))


def reduced(function, **options):
    import torch

    return torch.compile(function, mode="reduce-overhead" if torch.cuda.is_available() else None, **options)


def same(got, want, what):
    import torch

    assert torch.allclose(got, want, rtol=1e-3, atol=1e-3), (
        f"wrong: {what}, off by {(got - want).abs().max().item():.3g}"
    )


@step
def graphs_train_4_threads():
    """Forward and backward, cold in 4 threads on one device: one autograd worker runs all four backwards."""
    return cuda_graph_case(4, devices()[:1], warm_up=False, train=True)


@step
def graphs_one_thread_for_each_request():
    """60 threads, three at a time: outputs are read after their thread has ended, then dropped; memory is bounded."""
    import torch

    count_captures()
    device = devices()[0]
    w = weight(device)
    function = reduced(body)
    kept, reserved = {}, []
    for group in range(20):

        def work(i, group=group):
            with torch.no_grad():
                for n in range(4):
                    out = function(inputs(device, 100 * group + 10 * i + n), w)
            kept[group, i] = out

        in_threads(3, work)
        for i in range(3):
            same(
                kept.pop((group, i)), body(inputs(device, 100 * group + 10 * i + 3), w), f"thread {i} of group {group}"
            )
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            reserved.append(torch.cuda.memory_reserved() // 2**20)
    if reserved:
        # One more stream with its workspace, if more threads than ever before were there at once.
        assert reserved[-1] <= max(reserved[:10]) + 64, f"memory grows: {reserved} MiB"
    return {**captures, "reserved_mib": reserved}


@step
def graphs_outputs_are_the_threads_own():
    """A thread keeps an output without a copy while another replays 200 times: it does not change."""
    import torch

    count_captures()
    device = devices()[0]
    w = weight(device)
    function = reduced(body)
    kept, go = {}, threading.Event()

    def work(i):
        with torch.no_grad():
            for n in range(4):
                kept[i] = function(inputs(device, 10 * i + n), w)
            if i == 0:
                go.set()
                time.sleep(1.0)
            else:
                assert go.wait(40)
                for n in range(200):
                    function(inputs(device, 1000 + n), w)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
        if i == 0:
            same(kept[0], body(inputs(device, 3), w), "the output that was kept")

    in_threads(2, work)
    return dict(captures)


@step
def graphs_across_a_break():
    """What runs before a graph break is used after it, while another thread makes compiled calls and marks steps."""
    import torch

    count_captures()
    device = devices()[0]
    w = weight(device)

    def broken(x, w):
        y = (x @ w).relu()
        torch._dynamo.graph_break()
        time.sleep(0.002)
        return y @ w + y

    function = reduced(broken)
    done = threading.Event()

    def work(i):
        with torch.no_grad():
            if i == 0:
                for n in range(100):
                    x = inputs(device, n)
                    same(function(x, w), broken(x, w), f"call {n}")
                done.set()
                return
            n = 0
            while not done.is_set():
                torch.compiler.cudagraph_mark_step_begin()
                function(inputs(device, 5000 + n), w)
                n += 1

    in_threads(3, work)
    return dict(captures)


@step
def graphs_beside_eager_work():
    """Three threads capture 8 shapes each, while others synchronize the device, copy, allocate and launch eagerly."""
    import torch

    count_captures()
    device = devices()[0]
    w = weight(device)
    function = reduced(body, dynamic=False)
    torch._dynamo.config.recompile_limit = 100
    ended = []

    def work(i):
        if i >= 3:
            x = inputs(device, i, 512)
            while len(ended) < 3:
                (x @ x[:256]).sum().item()
                torch.empty(2**20 + 2**12 * (time.monotonic_ns() % 97), device=device)
                x.cpu().to(device)
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
            return
        torch._dynamo.config.recompile_limit = 100
        try:
            with torch.no_grad():
                for rows in range(64, 72):
                    for n in range(4):
                        x = inputs(device, 10 * rows + n, rows)
                        same(function(x, w).clone(), body(x, w), f"{rows} rows, call {n}")
        finally:
            ended.append(i)

    in_threads(5, work)
    return dict(captures)


@step
def graphs_beyond_the_number_of_threads():
    """Six threads where two may have graphs: the others run without, all right, one WARNING."""
    import torch

    os.environ["SAFECOMPILE_CUDA_GRAPH_THREADS"] = "2"
    count_captures()
    device = devices()[0]
    w = weight(device)
    function = reduced(body)
    told = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())
    logging.getLogger("safecompile").addHandler(handler)
    start = threading.Barrier(6)

    def work(i):
        train = i % 2 == 0
        try:
            for n in range(5):
                x, y = (inputs(device, i).requires_grad_(train) for _ in range(2))
                with torch.set_grad_enabled(train):
                    out = function(x, w)
                    same(out, want := body(y, w), f"thread {i}, call {n}")
                    if train:
                        out.sum().backward()
                        want.sum().backward()
                        same(x.grad, y.grad, f"gradient of thread {i}, call {n}")
                del out
        finally:
            start.wait(40)  # all are alive until all have called

    in_threads(6, work)
    return {**captures, "warnings": [one[:60] for one in told]}


@step
def graphs_beside_resets():
    """torch._dynamo.reset() ten times while three threads replay: right results."""
    import torch

    count_captures()
    device = devices()[0]
    w = weight(device)
    function = reduced(body)
    ended = []

    def work(i):
        if i == 3:
            for _ in range(10):
                time.sleep(0.5)
                torch._dynamo.reset()
            ended.append(i)
            return
        with torch.no_grad():
            n = 0
            while not ended:
                x = inputs(device, 100 * i + n)
                torch.compiler.cudagraph_mark_step_begin()
                same(function(x, w).clone(), body(x, w), f"thread {i}, call {n}")
                n += 1

    in_threads(4, work)
    return dict(captures)


@step
def graphs_of_the_cudagraphs_backend():
    """``backend="cudagraphs"``, forward and backward, cold in three threads."""
    import torch

    count_captures()
    device = devices()[0]
    w = weight(device)
    function = torch.compile(body, backend="cudagraphs" if torch.cuda.is_available() else "aot_eager")

    def work(i):
        for n in range(6):
            x, y = inputs(device, 10 * i + n).requires_grad_(), inputs(device, 10 * i + n).requires_grad_()
            torch.compiler.cudagraph_mark_step_begin()
            function(x, w).square().sum().backward()
            body(y, w).square().sum().backward()
            same(x.grad, y.grad, f"gradient of thread {i}, call {n}")

    in_threads(3, work)
    return dict(captures)


if __name__ == "__main__":
    main(__file__, __doc__)

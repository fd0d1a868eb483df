"""Threads with a CUDA stream each train copies of one small network, cold, beside captures made by hand.

One compiled graph serves all of them, so their first launches of its kernels meet: what is compiled, tried and unloaded
there is one object. Each step's gradients are compared with those of eager code.

``python tests/gpu/streams.py [--steps a,b] [--modes plain,safe] [--repeats 10] [--json FILE]``
On a machine without a GPU the steps run on the CPU without streams, which only shows that they are written rightly.
"""

import contextlib
import copy
import sys
import threading
import time
from collections import Counter

import harness
from harness import lock, main, step

harness.LONGER_S.update(streams=150.0, reduce_overhead=150.0, autotune=300.0)
harness.LONGER_S.update(four_threads_two_graphs=300.0, one_thread_two_graphs=300.0)

results: Counter = Counter()
errors: Counter = Counter()


def on_gpu():
    import torch

    return torch.cuda.is_available()


def note(good):
    with lock:
        results["right" if good else "wrong"] += 1


def failed(error):
    first = next((line for line in str(error).splitlines() if line.strip()), "")
    with lock:
        errors[f"{type(error).__name__}: {first[:140]}"] += 1


def net():
    import torch

    nn = torch.nn
    made = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256), nn.LayerNorm(256))
    return made.cuda() if on_gpu() else made


def stream():
    import torch

    return torch.cuda.stream(torch.cuda.Stream()) if on_gpu() else contextlib.nullcontext()


def train(i, mode, shapes=2, steps=6, kinds=None):
    """Six steps of a network of its own; with autocast in every second thread, or in turns."""
    import torch

    device = "cuda" if on_gpu() else "cpu"
    with stream():
        compiled_net = net()
        eager = copy.deepcopy(compiled_net)
        compiled = torch.compile(compiled_net, mode=mode if on_gpu() else None)
        for k in range(steps):
            generator = torch.Generator(device).manual_seed(k)
            x = torch.randn(32 * (1 + k % shapes), 256, device=device, generator=generator)
            low = (i if kinds is None else k) % 2 == 0
            try:
                if mode in ("reduce-overhead", "max-autotune") and on_gpu():
                    torch.compiler.cudagraph_mark_step_begin()
                with torch.autocast(device, dtype=torch.bfloat16, enabled=low):
                    a, b = compiled(x).float().pow(2).mean(), eager(x).float().pow(2).mean()
                a.backward()
                b.backward()
                pairs = zip(compiled_net.parameters(), eager.parameters(), strict=True)
                right = all(torch.allclose(p.grad, q.grad, atol=5e-3, rtol=5e-2) for p, q in pairs)
                note(right and torch.allclose(a, b, rtol=3e-2))
                compiled_net.zero_grad()
                eager.zero_grad()
            except Exception as error:
                failed(error)


def capture():
    """Forty captures by hand, each replayed and compared."""
    import torch

    if not on_gpu():
        return
    made, x, mine = net().eval(), torch.randn(64, 256, device="cuda"), torch.cuda.Stream(priority=-1)
    with torch.no_grad():
        with torch.cuda.stream(mine):
            made(x)
        mine.synchronize()
        for _ in range(40):
            try:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, stream=mine, capture_error_mode="thread_local"):
                    y = made(x)
                graph.replay()
                mine.synchronize()
                torch.cuda.current_stream().synchronize()
                note(torch.allclose(y, made(x), atol=1e-4))
                time.sleep(0.05)
            except Exception as error:
                failed(error)


def in_threads_at_once(*jobs):
    """Runs the jobs, and returns what the line says; raises if anything was wrong."""
    from torch._dynamo.utils import counters

    misses = []
    if "safecompile" in sys.modules:
        from safecompile._common import events

        events.subscribe(misses.append)
    began = time.monotonic()
    threads = [threading.Thread(target=job, daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(290)
    took = round(time.monotonic() - began, 1)
    said = f"right {results['right']}, wrong {results['wrong']}, errors {dict(errors)}, {took} s"
    assert not any(thread.is_alive() for thread in threads), f"HUNG: {said}"
    assert (errors, results["wrong"]) == ({}, 0), said
    compiled, waited = sum(one.compiled_s for one in misses), sum(one.waited_s for one in misses)
    times = {"compiled_s": round(compiled, 1), "waited_s": round(waited, 1)} if misses else {}
    return {"right": results["right"], "took_s": took, "graphs": counters["stats"]["unique_graphs"], **times}


@step
def streams():
    """Four threads train, default mode; a fifth captures."""
    return in_threads_at_once(*[lambda i=i: train(i, None) for i in range(4)], capture)


@step
def reduce_overhead():
    """Four threads with CUDA graphs of their own."""
    return in_threads_at_once(*[lambda i=i: train(i, "reduce-overhead") for i in range(4)])


@step
def autotune():
    """Four threads, the templates of max-autotune, beside captures."""
    return in_threads_at_once(*[lambda i=i: train(i, "max-autotune-no-cudagraphs") for i in range(4)], capture)


@step
def four_threads_two_graphs():
    """max-autotune with CUDA graphs: four threads that want two graphs. Its time is compared with the next one's."""
    return in_threads_at_once(*[lambda i=i: train(i, "max-autotune", shapes=1) for i in range(4)])


@step
def one_thread_two_graphs():
    """max-autotune with CUDA graphs: one thread that makes both."""
    return in_threads_at_once(lambda: train(0, "max-autotune", shapes=1, kinds=2))


if __name__ == "__main__":
    main(__file__, __doc__)

"""DataParallel, CUDA graphs, barriers, settings and first kernel launches with several threads, on one or two GPUs.

Each step runs in a process of its own, with empty caches and a time limit, once with plain torch and once after
``import safecompile.patch_all``. One line each: PASS or FAIL, the step, which of the two, and what was seen.
The library does not treat CUDA graphs or DataParallel: what fails there is recorded, not asserted, and the exit
code is always 0. python tests/gpu/dataparallel_and_threads.py [--steps a,b] [--modes plain,safe] [--repeats 2]
[--json FILE] On a machine without a GPU the steps run on the CPU where they can, which only shows that they are
written rightly.
"""

import argparse
import concurrent.futures
import faulthandler
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from pathlib import Path

LIMIT_S = 60.0
LONGER_S = {"triton_first_launch": 110.0, "triton_cold": 110.0}  # 20 compiles each
STEPS: dict = {}


def step(function):
    STEPS[function.__name__] = function
    return function


# ---------------------------------------------------------------------------------------------- in the child

compiles: list = []  # (device of the first tensor, thread), one for each call of the backend
runs: Counter = Counter()  # runs of compiled code by device
lock = threading.Lock()


def devices():
    import torch

    return [torch.device("cuda", i) for i in range(torch.cuda.device_count())] or [torch.device("cpu")]


def device_of(arguments):
    import torch

    return next((str(a.device) for a in arguments if isinstance(a, torch.Tensor)), "none")


def counting(gm, examples):
    """Inductor (aot_eager without a GPU), with its calls and the runs of what it returns counted."""
    import torch
    from torch._inductor.compile_fx import compile_fx

    with lock:
        compiles.append((device_of(examples), threading.current_thread().name))
    if torch.cuda.is_available():
        inner = compile_fx(gm, examples)
    else:
        inner = torch._dynamo.lookup_backend("aot_eager")(gm, examples)

    def ran(*arguments):
        with lock:
            runs[device_of(arguments)] += 1
        return inner(*arguments)

    return ran


def seen():
    """What the counters say, for the line."""
    import torch._dynamo.utils as utils

    return {
        "compiles": len(compiles),
        "compiles_by_device": dict(Counter(d for d, _ in compiles)),
        "compiled_runs": dict(runs),
        "graph_breaks": sum(utils.counters["graph_break"].values()),
    }


def make_net(compiled_inside):
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.norm = nn.Linear(64, 128), nn.Linear(128, 64), nn.LayerNorm(64)

        def body(self, x):
            return self.norm(self.second(torch.nn.functional.gelu(self.first(x))) + x)

        if compiled_inside:
            forward = torch.compile(body, backend=counting)
        else:

            def forward(self, x):
                return self.body(x)

    torch.manual_seed(0)
    return Net().to(devices()[0])


def grads(net, out):
    net.zero_grad()
    out.square().mean().backward()
    return [p.grad.clone() for p in net.parameters()]


def check_training(net, call, steps=4):
    """Outputs and gradients of ``call`` against those of the eager ``net.body``, for some steps."""
    import torch

    for n in range(steps):
        torch.manual_seed(100 + n)
        x = torch.randn(64, 64, device=devices()[0])
        want = net.body(x)
        want_grads = grads(net, want)
        got = call(x)
        got_grads = grads(net, got)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
        for a, b in zip(got_grads, want_grads, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def compiled_on(wanted):
    missing = [str(d) for d in wanted if not runs[str(d)]]
    assert not missing, f"right results, but no compiled code ran on {missing}: {seen()}"


@step
def dp_around_compiled():
    """nn.DataParallel(torch.compile(net))."""
    import torch

    net = make_net(False)
    check_training(net, torch.nn.DataParallel(torch.compile(net, backend=counting)))
    compiled_on(devices())


@step
def dp_compiled_inside():
    """nn.DataParallel(net) where net.forward is compiled."""
    import torch

    net = make_net(True)
    check_training(net, torch.nn.DataParallel(net))
    compiled_on(devices())


@step
def compile_around_dp():
    """torch.compile(nn.DataParallel(net))."""
    import torch

    net = make_net(False)
    check_training(net, torch.compile(torch.nn.DataParallel(net), backend=counting))
    compiled_on(devices())


def replicas_on_one_device(net, module):
    import torch
    from torch.nn.parallel import parallel_apply, replicate

    def call(x):
        where = [0] * 4
        parts = [(part,) for part in x.chunk(4)]
        return torch.cat(parallel_apply(replicate(module, where), parts, devices=where))

    check_training(net, call)
    compiled_on(devices()[:1])


@step
def replicas_compiled_inside():
    """Replicate and parallel_apply, four on cuda:0, net.forward compiled."""
    net = make_net(True)
    replicas_on_one_device(net, net)


@step
def replicas_of_compiled():
    """Replicate and parallel_apply of torch.compile(net), four on cuda:0."""
    import torch

    net = make_net(False)
    replicas_on_one_device(net, torch.compile(net, backend=counting))


def in_threads(count, work, limit=50.0):
    """``work(i)`` in ``count`` threads; raises with all errors, shortened."""
    errors = []

    def run(i):
        try:
            work(i)
        except BaseException as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            errors.append(f"{type(error).__name__}: {str(error)[:200]!r} at {Path(where.filename).name}:{where.name}")

    threads = [threading.Thread(target=run, args=(i,), name=f"worker-{i}", daemon=True) for i in range(count)]
    for t in threads:
        t.start()
    end = time.monotonic() + limit
    for t in threads:
        t.join(max(0.0, end - time.monotonic()))
    stuck = [t.name for t in threads if t.is_alive()]
    if stuck:
        faulthandler.dump_traceback(all_threads=True)
    parts = [f"{n} of {count} threads: {e}" for e, n in Counter(errors).most_common()]
    if stuck:
        parts.insert(0, f"HUNG: {stuck}")
    assert not parts, " | ".join(parts)


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
def graphs_lone_worker():
    """For comparison: one worker thread alone, cold."""
    return cuda_graph_case(1, devices()[:1], warm_up=False)


def barrier_case(backward):
    import torch

    met = []
    barrier = threading.Barrier(2)

    @torch.library.custom_op("safecompile_gpu::meet", mutates_args=())
    def meet(x: torch.Tensor) -> torch.Tensor:
        barrier.wait(35)
        met.append(threading.current_thread().name)
        return x.clone()

    @meet.register_fake
    def _(x):
        return torch.empty_like(x)

    @torch.library.custom_op("safecompile_gpu::back", mutates_args=())
    def back(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @back.register_fake
    def _(x):
        return torch.empty_like(x)

    back.register_autograd(lambda ctx, g: meet(g), setup_context=lambda ctx, inputs, output: None)

    def body(x):
        x = torch.nn.functional.gelu(x * 2)
        return (back(x) if backward else meet(x)) + 1

    function = torch.compile(body, backend=counting)

    def work(i):
        device = devices()[i % len(devices())]
        if device.type == "cuda":
            torch.cuda.set_device(device)
        x = torch.randn(32, 32, device=device, requires_grad=backward)
        for _ in range(3):
            out = function(x)
            torch.testing.assert_close(out, torch.nn.functional.gelu(x * 2) + 1, rtol=1e-4, atol=1e-4)
            if backward:
                out.sum().backward()

    in_threads(2, work)
    assert len(met) == 6, f"met {len(met)} times and not 6"
    return seen()


@step
def barrier_in_forward():
    """One thread for each device; the compiled code waits until the other thread's has come as far; cold."""
    return barrier_case(False)


@step
def barrier_in_backward():
    """The same inside the compiled backward."""
    return barrier_case(True)


@step
def settings_in_threads():
    """torch._dynamo.config.recompile_limit raised in the main thread: read and effective in worker threads?"""
    import torch
    import torch._dynamo.config as config
    from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list as entries

    device = devices()[0]
    config.recompile_limit = 40
    values: dict = {}
    names = itertools.count()

    def make():
        def body(x):
            return (x + 1) * 2

        body.__code__ = body.__code__.replace(co_name=f"body_{next(names)}")  # entries of its own
        return body, torch.compile(body, backend="eager", dynamic=False)

    def shapes(function):
        for n in range(3, 18):  # 15 shapes, more than the usual limit of 8
            function(torch.ones(n, device=device))

    body, function = make()
    in_threads(1, lambda i: (values.update(worker=config.recompile_limit), shapes(function)))
    values["entries_worker"] = len(entries(body.__code__))

    inner, in_backward = make()

    class Probe(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            values["autograd"] = config.recompile_limit
            values["autograd_thread_is_main"] = threading.current_thread() is threading.main_thread()
            shapes(in_backward)
            return g

    Probe.apply(torch.ones(3, device=device, requires_grad=True)).sum().backward()
    values["entries_autograd"] = len(entries(inner.__code__))

    config.recompile_limit = 8
    patched, in_patch = make()
    with config.patch(recompile_limit=41):
        in_threads(1, lambda i: (values.update(worker_in_patch=config.recompile_limit), shapes(in_patch)))
    values["entries_worker_in_patch"] = len(entries(patched.__code__))
    wanted = {"worker": 40, "autograd": 40, "worker_in_patch": 41}
    wanted.update(entries_worker=15, entries_autograd=15, entries_worker_in_patch=15)
    assert all(values[k] == v for k, v in wanted.items()), f"not seen: {values}"
    return values


def numbered(n):
    """The n-th of a row of functions, each of other code: a pointwise part, a reduction over 4000, a normalisation."""
    import torch

    def body(x):
        y = torch.sin(x * (1.0 + n)) + n
        y = torch.softmax(y[:, : 2000 + 97 * n], dim=-1) * (n + 1)
        return y + y.mean(dim=0, keepdim=True)

    body.__code__ = body.__code__.replace(co_name=f"body_{n}")  # else all share one recompile limit
    return body


def launch_case(cold, count=8):
    import torch
    from torch._inductor.compile_fx import compile_fx

    device = devices()[0]
    functions = 20 if device.type == "cuda" else 2
    x = torch.randn(64, 4000, device=device)
    wrong: list = []
    with torch.no_grad():
        wants = [numbered(n)(x) for n in range(functions)]
        made = []
        for n in range(functions):
            if cold:
                made.append(torch.compile(numbered(n), backend=counting, dynamic=False))
            else:
                made.append(compile_fx(torch.fx.symbolic_trace(numbered(n)), [x]))
    if device.type == "cuda":
        torch.cuda.synchronize()
    barrier = threading.Barrier(count)

    def work(i):
        with torch.no_grad():
            for n in range(functions):
                barrier.wait(40)
                for again in range(3):
                    try:
                        got = made[n](x)
                    except BaseException:
                        barrier.abort()
                        raise
                    got = got[0] if isinstance(got, (tuple, list)) else got
                    if not torch.allclose(got, wants[n], rtol=1e-3, atol=1e-4):
                        wrong.append((n, i, again))

    in_threads(count, work, 80.0)
    assert not wrong, f"{len(wrong)} wrong results, (function, thread, call): {wrong[:5]}"
    more = seen() if cold else {}
    return {"right_results": functions * count * 3, **more}


@step
def triton_first_launch():
    """Kernels compiled by Inductor and not yet launched; 8 threads launch each at once for the first time."""
    return launch_case(False)


@step
def triton_cold():
    """The same through torch.compile, cold in all 8 threads."""
    return launch_case(True)


def child(name, mode):
    if mode == "safe":
        import safecompile.patch_all  # noqa: F401
    import torch

    os.environ.setdefault("OMP_NUM_THREADS", "2")
    torch.set_num_threads(2)
    faulthandler.dump_traceback_later(LONGER_S.get(name, LIMIT_S) - 6, exit=False)
    import torch._dynamo
    import torch._inductor.compile_fx

    faulthandler.enable()
    start = time.monotonic()
    try:
        details = STEPS[name]() or seen()
        verdict = "PASS"
    except BaseException as error:
        verdict = "FAIL"
        text = " ".join(str(error).split())
        cut = text if len(text) < 700 else text[:350] + " … " + text[-350:]
        details = {"error": f"{type(error).__name__}: {cut}"}
        if compiles:
            details.update(seen())
        traceback.print_exc()
    if mode == "safe":
        from safecompile import _install

        off = {k: v for k, v in _install.state().items() if v not in ("on", "waiting")}
        if off:
            details["families_not_on"] = off
    print(
        "RESULT "
        + json.dumps({"verdict": verdict, "seconds": round(time.monotonic() - start, 1), **details}, default=repr)
    )
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


# --------------------------------------------------------------------------------------------- in the parent


def one_run(name, mode, repeat, deadline, logs):
    limit = min(LONGER_S.get(name, LIMIT_S), deadline - time.monotonic())
    if limit < 20:
        return {"step": name, "mode": mode, "repeat": repeat, "verdict": "NOT RUN", "error": "no time left"}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        environment = dict(
            os.environ,
            TORCHINDUCTOR_CACHE_DIR=f"{folder}/inductor",
            TRITON_CACHE_DIR=f"{folder}/triton",
            TORCHINDUCTOR_COMPILE_THREADS="3",
            OMP_NUM_THREADS="2",
        )
        command = [sys.executable, __file__, "--child", name, mode]
        process = subprocess.Popen(
            command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        try:
            out, err = process.communicate(timeout=limit)
            hung = False
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            out, err = process.communicate()
            hung = True
    if logs:
        (Path(logs) / f"{name}-{mode}-{repeat}.log").write_text(out + "\n--- stderr\n" + err[-200_000:])
    found = [line for line in out.splitlines() if line.startswith("RESULT ")]
    result = json.loads(found[-1][7:]) if found else {"verdict": "FAIL", "error": f"exit {process.returncode}"}
    if hung and not found:
        result["error"] = f"HUNG: killed after {limit:.0f} s"
    if not found and not hung:
        result["error"] += ": " + " ".join(err.split())[-200:]
    return {"step": name, "mode": mode, "repeat": repeat, **result}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--child", nargs=2)
    parser.add_argument("--steps", default=",".join(STEPS))
    parser.add_argument("--modes", default="plain,safe")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--budget-s", type=float, default=420.0)
    parser.add_argument("--json")
    parser.add_argument("--logs")
    arguments = parser.parse_args()
    if arguments.child:
        child(*arguments.child)
    deadline = time.monotonic() + arguments.budget_s
    if arguments.logs:
        Path(arguments.logs).mkdir(parents=True, exist_ok=True)
    jobs = [
        (name, mode, repeat)
        for repeat in range(arguments.repeats)
        for name in arguments.steps.split(",")
        for mode in arguments.modes.split(",")
    ]
    results = []
    with concurrent.futures.ThreadPoolExecutor(arguments.at_once) as pool:
        waiting = [pool.submit(one_run, *job, deadline, arguments.logs) for job in jobs]
        for done in concurrent.futures.as_completed(waiting):
            r = done.result()
            results.append(r)
            rest = {k: v for k, v in r.items() if k not in ("step", "mode", "repeat", "verdict")}
            line = (
                f"{r['verdict']:8}{r['step']:32}{r['mode']:6}#{r['repeat'] + 1}  {json.dumps(rest, ensure_ascii=False)}"
            )
            print(line, flush=True)
            if arguments.json:
                Path(arguments.json).write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()

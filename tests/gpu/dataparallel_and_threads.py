"""DataParallel, barriers, settings and first kernel launches with several threads, on one or two GPUs.

``python tests/gpu/dataparallel_and_threads.py [--steps a,b] [--modes plain,safe] [--repeats 2] [--json FILE]``
On a machine without a GPU the steps run on the CPU where they can, which only shows that they are written rightly.
"""

import itertools
import sys
import threading

from harness import compiles, device_of, devices, in_threads, lock, main, runs, seen, step


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


def collective_case(backward):
    """A rank for each thread of this one process; the collective is a part of the compiled graph."""
    import datetime as dt

    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import _register_process_group

    on_gpu = torch.cuda.is_available()
    if on_gpu and torch.cuda.device_count() < 2:
        return {"not_run": "needs two GPUs"}
    store = dist.PrefixStore("safecompile", dist.HashStore())
    limit = dt.timedelta(seconds=40)
    groups = []

    def join(rank, device):
        group = dist.ProcessGroup(store, rank, 2)
        if on_gpu:
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = limit
            backend, kind = dist.ProcessGroupNCCL(store, rank, 2, options), dist.ProcessGroup.BackendType.NCCL
        else:
            backend, kind = dist.ProcessGroupGloo(store, rank, 2, timeout=limit), dist.ProcessGroup.BackendType.GLOO
        group._register_backend(torch.device(device.type), kind, backend)
        group._set_default_backend(kind)
        group._set_group_name(f"rank-{rank}")
        _register_process_group(f"rank-{rank}", group)
        groups.append(group)  # the registry of names keeps none alive

    def summed(x, group):
        ops = torch.ops._c10d_functional
        return ops.wait_tensor(ops.all_reduce(x, "sum", group))

    class SumOfGradients(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, group):
            ctx.group = group
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            return summed(g.contiguous(), ctx.group), None

    def body(x, group):
        x = torch.nn.functional.gelu(x * 2)
        return (SumOfGradients.apply(x, group) if backward else summed(x, group)) + 1

    function = torch.compile(body, backend=counting)
    done = []

    def work(i):
        device = devices()[i % len(devices())]
        if on_gpu:
            torch.cuda.set_device(device)
        join(i, device)
        for n in range(3):
            xs = [torch.randn(32, 32, generator=torch.Generator().manual_seed(10 * n + r)) for r in range(2)]
            x = xs[i].to(device).requires_grad_(backward)
            out = function(x, f"rank-{i}")
            each = [torch.nn.functional.gelu(one.detach() * 2) for one in xs]
            want = (each[i] if backward else sum(each)) + 1
            torch.testing.assert_close(out.detach().cpu(), want, rtol=1e-4, atol=1e-4)
            if backward:
                out.sum().backward()
                leaf = xs[i].detach().clone().requires_grad_()
                (2 * torch.nn.functional.gelu(leaf * 2)).sum().backward()
                torch.testing.assert_close(x.grad.cpu(), leaf.grad, rtol=1e-4, atol=1e-4)
            done.append((i, n))

    in_threads(2, work)
    assert len(done) == 6, f"{len(done)} of 6 calls"
    return {"backend": "nccl" if on_gpu else "gloo", **seen()}


@step
def collective_in_forward():
    """A rank for each device, each in a thread: an all-reduce (NCCL) inside the compiled forward; cold."""
    return collective_case(False)


@step
def collective_in_backward():
    """The same inside the compiled backward."""
    return collective_case(True)


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
    patched, while_patched = make()
    with config.patch(recompile_limit=41):
        in_threads(1, lambda i: (values.update(worker_in_patch=config.recompile_limit), shapes(while_patched)))
    values["entries_worker_in_patch"] = len(entries(patched.__code__))
    wanted = {"worker": 40, "autograd": 40, "worker_in_patch": 41}
    # With the library, config.patch stays in its thread.
    in_patch = 8 if "safecompile" in sys.modules else 15
    wanted.update(entries_worker=15, entries_autograd=15, entries_worker_in_patch=in_patch)
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


if __name__ == "__main__":
    main(__file__, __doc__)

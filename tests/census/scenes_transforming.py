"""Scenes of ``torch.func``, autograd's modes and hooks, and what changes modules for a while."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn.utils import parametrizations, parametrize, stateless
from torch.utils.checkpoint import checkpoint

from .parking import Run, here
from .scenes import Absent, batch, model, part_of_torch, scene


def _looked_at(x: torch.Tensor) -> torch.Tensor:
    here()
    return x.sin().sum()


@scene(quick=True)
def vmap_of_grad() -> Run:
    return lambda: torch.func.vmap(torch.func.grad(_looked_at))(batch())


@scene()
def vmap_random() -> Run:
    def draws(x: torch.Tensor) -> torch.Tensor:
        here()
        return x + torch.rand(4)

    return lambda: torch.func.vmap(draws, randomness="different")(batch())


@scene(quick=True)
def jvp() -> Run:
    return lambda: torch.func.jvp(_looked_at, (batch(),), (batch(),))


@scene()
def jacobians() -> Run:
    def run() -> None:
        torch.func.jacrev(_looked_at)(batch())
        torch.func.jacfwd(_looked_at)(batch())
        torch.func.hessian(_looked_at)(batch())

    return run


@scene()
def vjp_and_linearize() -> Run:
    def run() -> None:
        torch.func.vjp(_looked_at, batch())[1](torch.tensor(1.0))
        torch.func.linearize(_looked_at, batch())[1](batch())

    return run


@scene()
def functionalize() -> Run:
    return lambda: torch.func.functionalize(_looked_at)(batch())


@scene()
def forward_mode() -> Run:
    def run() -> None:
        with forward_ad.dual_level():
            forward_ad.unpack_dual(_looked_at(forward_ad.make_dual(batch(), batch())))

    return run


@scene()
def autograd_functional() -> Run:
    return lambda: torch.autograd.functional.hessian(_looked_at, torch.ones(3))


@scene()
def functional_call() -> Run:
    def run() -> None:
        one = model()
        torch.func.functional_call(one, dict(one.named_parameters()), (batch(),))
        with stateless._reparametrize_module(one, {}):
            here()
        torch.func.stack_module_state([one])

    return run


@scene()
def parametrizations_of_modules() -> Run:
    class Looks(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            here()
            return x

    def run() -> None:
        linear = parametrizations.weight_norm(nn.Linear(4, 4))
        parametrize.register_parametrization(linear, "bias", Looks())
        with parametrize.cached():
            linear(batch())

    return run


@scene()
def checkpoints() -> Run:
    def run() -> None:
        for reentrant in (False, True):
            checkpoint(_looked_at, batch().requires_grad_(), use_reentrant=reentrant).backward()

    return run


@scene()
def saved_tensor_hooks() -> Run:
    def run() -> None:
        with torch.autograd.graph.saved_tensors_hooks(lambda x: (here(), x)[1], lambda x: x):
            out = _looked_at(batch().requires_grad_())
        out.backward()
        for block in (torch.autograd.graph.save_on_cpu(), torch.autograd.graph.disable_saved_tensors_hooks("not here")):
            with block:
                here()

    return run


@scene()
def anomaly_mode() -> Run:
    def run() -> None:
        with torch.autograd.detect_anomaly(check_nan=False):
            _looked_at(batch().requires_grad_()).backward()

    return run


@scene()
def autograd_modes() -> Run:
    def run() -> None:
        for mode in (
            torch.no_grad,
            torch.inference_mode,
            lambda: torch.autograd.set_multithreading_enabled(False),
            lambda: torch.autograd._force_original_view_tracking(True),
            torch.autograd.graph.allow_mutation_on_saved_tensors,
        ):
            with mode():
                here()

    return run


@scene()
def hooks_of_backward() -> Run:
    def run() -> None:
        one = model()
        one.register_full_backward_hook(lambda *_: here())
        one.first.register_forward_hook(lambda *_: here())
        for parameter in one.parameters():
            parameter.register_post_accumulate_grad_hook(lambda _: here())
        one(batch()).sum().backward()

    return run


@scene()
def data_parallel() -> Run:
    def run() -> None:
        nn.DataParallel(model())(batch())

    return run


def _one_process() -> Any:
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_gloo_available():
        raise Absent("gloo")
    if not distributed.is_initialized():
        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    return distributed


@scene()
def distributed_data_parallel() -> Run:
    _one_process()

    def run() -> None:
        parallel = nn.parallel.DistributedDataParallel(model())
        parallel(batch()).sum().backward()
        with parallel.no_sync():
            here()

    return run


@scene()
def dtensor() -> Run:
    _one_process()
    from torch.distributed.device_mesh import init_device_mesh

    distribute, shard = (part_of_torch("torch.distributed.tensor", name) for name in ("distribute_tensor", "Shard"))

    def run() -> None:
        mesh = init_device_mesh("cpu", (1,))
        one = distribute(batch(), mesh, [shard(0)])
        here()
        (one @ one.T).full_tensor()

    return run


@scene()
def fully_shard() -> Run:
    _one_process()
    from torch.distributed.device_mesh import init_device_mesh

    shard = part_of_torch("torch.distributed.fsdp", "fully_shard")

    def run() -> None:
        one = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        one.register_forward_hook(lambda *_: here())
        shard(one, mesh=init_device_mesh("cpu", (1,)))(batch()).sum().backward()

    return run

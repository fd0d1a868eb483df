"""Scenes of modes, blocks and settings: what users switch on for a while."""

from __future__ import annotations

import io
import warnings
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from .parking import Run, here
from .scenes import batch, model, parks, part_of_torch, scene


def _block(*blocks: Any) -> Run:
    def run() -> None:
        for block in blocks:
            with block():
                here()
                (batch() @ batch().T).sum()

    return run


class _Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        here()
        return function(*args, **(kwargs or {}))


class _Function(TorchFunctionMode):
    def __torch_function__(self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        here()
        return function(*args, **(kwargs or {}))


@scene()
def modes_of_the_users() -> Run:
    return _block(_Dispatch, _Function, torch._C.DisableTorchFunctionSubclass)


@scene(quick=True)
def fake_tensor_mode() -> Run:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    def run() -> None:
        with FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True) as mode:
            parks(mode.from_tensor(batch()))
            torch.ones(3).nonzero()

    return run


@scene()
def flop_counter() -> Run:
    from torch.utils.flop_counter import FlopCounterMode

    return _block(lambda: FlopCounterMode(display=False))


@scene()
def profiler() -> Run:
    return _block(
        lambda: torch.profiler.profile(with_stack=True, record_shapes=True), lambda: torch.profiler.record_function("a")
    )


@scene()
def attention_kernels() -> Run:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return _block(lambda: sdpa_kernel([SDPBackend.MATH]))


@scene()
def autocast() -> Run:
    return _block(lambda: torch.autocast("cpu", torch.bfloat16), lambda: torch.autocast("cpu", cache_enabled=False))


@scene(quick=True)
def device_block() -> Run:
    def run() -> None:
        with torch.device("meta"):
            here()
            nn.Linear(4, 4)

    return run


@scene()
def default_device() -> Run:
    def run() -> None:
        torch.set_default_device("meta")
        here()
        torch.set_default_device(None)

    return run


@scene()
def settings_of_the_process() -> Run:
    def run() -> None:
        torch.set_default_dtype(torch.float64)
        torch.use_deterministic_algorithms(True)
        torch.set_float32_matmul_precision("medium")
        here()
        torch.set_float32_matmul_precision("highest")
        torch.use_deterministic_algorithms(False)
        torch.set_default_dtype(torch.float32)

    return run


@scene(quick=True)
def stance() -> Run:
    def run() -> None:
        with torch.compiler.set_stance("force_eager"):
            here()
            torch.compile(model(), backend="eager")(batch())

    return run


@scene()
def config_patches() -> Run:
    return _block(
        lambda: torch._dynamo.config.patch(recompile_limit=3),
        lambda: torch._inductor.config.patch(epilogue_fusion=False),
        lambda: torch._functorch.config.patch(cse=False),
    )


@scene()
def backend_flags() -> Run:
    return _block(lambda: torch.backends.cudnn.flags(enabled=False), lambda: torch.backends.mkldnn.flags(enabled=False))


@scene()
def custom_operators() -> Run:
    names = iter("abcdef")

    def run() -> None:
        @torch.library.custom_op(f"census::own_{next(names)}", mutates_args=())
        def own(x: torch.Tensor) -> torch.Tensor:
            return x.nonzero().contiguous()

        @own.register_fake
        def _(x: torch.Tensor) -> torch.Tensor:
            size = torch.library.get_ctx().new_dynamic_size()
            here()
            return x.new_empty(size, 2, dtype=torch.int64)

        own(batch())
        torch.library.opcheck(own, (batch(),), test_utils="test_faketensor")

    return run


@scene()
def random_state_forked() -> Run:
    return _block(lambda: torch.random.fork_rng(devices=[]))


@scene()
def saving_and_loading() -> Run:
    safe_globals = part_of_torch("torch.serialization", "safe_globals")

    class Pickled:
        def __reduce__(self) -> Any:
            here()
            return dict, ()

    def run() -> None:
        file = io.BytesIO()
        torch.save([model().state_dict(), Pickled()], file)
        file.seek(0)
        with safe_globals([dict]), torch.serialization.skip_data():
            here()
        torch.load(file, map_location=lambda storage, _: (here(), storage)[1], weights_only=False)

    return run


@scene()
def printing_tensors() -> Run:
    return lambda: (repr(batch()), repr(torch.tensor([1 + 1j])))


@scene()
def building_modules() -> Run:
    def run() -> None:
        nn.utils.skip_init(nn.Linear, 4, 4)
        nn.LazyLinear(4)(batch())
        hook = nn.modules.module.register_module_parameter_registration_hook(lambda *_: here())
        nn.Linear(4, 4)
        hook.remove()

    return run


@scene()
def training_eager() -> Run:
    def run() -> None:
        one = model()
        optimizer = torch.optim.AdamW(one.parameters())
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(one(batch()).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()

    return run


@scene()
def higher_order_operators_eager() -> Run:
    flex_attention = part_of_torch("torch.nn.attention.flex_attention", "flex_attention")

    def run() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            flex_attention(*3 * [torch.ones(1, 1, 16, 16)])
        torch.cond(torch.tensor(True), lambda x: parks(x).sin(), lambda x: x + 1, (batch(),))

    return run


@scene()
def sending_logs() -> Run:
    def run() -> None:
        torch._logging.set_logs(dynamo=30)
        here()
        torch._logging.set_logs()

    return run

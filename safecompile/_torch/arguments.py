"""What the arguments of a call tell: tensors and modules, read without calling a line of the user's code."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from .._common import reading

#: The dictionaries of a module that hold what runs before its ``forward``; and those of the process.
HOOKS = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")

#: The dictionary of a module that holds those inside it.
SUBMODULES = "_modules"


def is_module(value: Any) -> bool:
    """Tells whether this is an ``nn.Module``, however far its constructor has come."""
    import torch

    return reading.is_a(value, torch.nn.Module)


def is_tensor(value: Any) -> bool:
    """Tells whether this is a tensor, of a derived class too."""
    import torch

    return type(value) is torch.Tensor or reading.is_a(value, torch.Tensor)


def tensor_device(value: Any) -> str | None:
    """Returns the device of a tensor, or None: no tensor, or one that runs Python code to tell."""
    import torch

    if type(value) is not torch.Tensor:
        if not reading.is_a(value, torch.Tensor):
            return None
        # A subclass with a __torch_dispatch__ of its own may answer for its device by it (FakeTensor, DTensor do).
        if reading.of_class(value, "__torch_dispatch__") is not torch._C._disabled_torch_dispatch_impl:
            return None
    with torch._C.DisableTorchFunction():  # modes too: a mode of the user's sees each read of an attribute
        return str(torch._C.TensorBase.device.__get__(value))


def parameter_device(module: Any) -> str | None:
    """Returns the device of the first parameter of ``module``, in the order of ``parameters()``, or None."""
    seen: set[int] = set()
    pending = [module]
    while pending:
        one = pending.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        attributes = reading.dictionary(one)
        for parameter in _values(attributes.get("_parameters")):
            device = tensor_device(parameter)
            if device is not None:
                return device
        pending += reversed(_values(attributes.get(SUBMODULES)))
    return None


def has_hooks(module: Any) -> bool:
    """Tells whether a call of ``module`` runs code of the user's before ``forward`` does, as far as can be read."""
    import torch.nn.modules.module as m

    # torch 2.7 has no _has_any_global_hook: the four dictionaries are there in every release.
    own = reading.dictionary(module)
    return any(not _is_empty(own.get(name)) for name in HOOKS) or bool(
        m._global_backward_hooks
        or m._global_backward_pre_hooks
        or m._global_forward_hooks
        or m._global_forward_pre_hooks
    )


def _values(found: Any) -> list[Any]:
    # One step of the interpreter: another thread may register a module meanwhile.
    return list(found.values()) if type(found) is dict or type(found) is OrderedDict else []


def _is_empty(found: Any) -> bool:
    return (type(found) is dict or type(found) is OrderedDict) and not found

"""Replicas of compiled modules, as ``nn.DataParallel`` makes them for each step: each runs its own parameters.

A replica is a shallow copy. Of an ``OptimizedModule`` torch copies the compiled ``forward`` too, which is bound to the
original, and on the way empties the original's own parameters, since an ``OptimizedModule`` hands assignments on
(2.7-2.15; pytorch#94773, "RecursionError" or "has no attribute"). Of a module with ``Module.compile()`` it copies the
compiled call of the original. Here both are bound to the replica. The compiled code is found by code object and guards
as ever, so replicas compile nothing of their own.
"""

from __future__ import annotations

import functools
import weakref
from types import MethodType, ModuleType
from typing import Any, Final

from .._patching.families import Part
from .._patching.patches import AttributePatch, Patch
from .._torch import dynamo


def patches_of_eval_frame(module: ModuleType) -> list[Patch]:
    """Returns the patch for modules that ``torch.compile`` returned; changes nothing."""
    owner = module.OptimizedModule
    if "_initialize" not in vars(owner) or "_replicate_for_data_parallel" in vars(owner):
        msg = "an OptimizedModule with _initialize, and without _replicate_for_data_parallel of its own"
        raise LookupError(msg)
    return [AttributePatch(owner, "_replicate_for_data_parallel", _replicate_optimized, new=True)]


def patches_of_module(module: ModuleType) -> list[Patch]:
    """Returns the patch for ``Module.compile()``; changes nothing."""
    owner = module.Module
    original = vars(owner)["_replicate_for_data_parallel"]

    @functools.wraps(original)
    def _patched_replicate(self: Any) -> Any:
        replica = original(self)
        compiled = replica.__dict__.get("_compiled_call_impl")
        context = None if compiled is None else dynamo.context_of(compiled)
        if isinstance(compiled, MethodType) and compiled.__self__ is self:  # compile(disable=True)
            replica.__dict__["_compiled_call_impl"] = MethodType(compiled.__func__, replica)
        elif context is not None:
            replica.__dict__["_compiled_call_impl"] = context(replica._call_impl)
        return replica

    return [AttributePatch(owner, "_replicate_for_data_parallel", _patched_replicate)]


def _replicate_optimized(self: Any) -> Any:
    replica = object.__new__(type(self))
    state = dict(self.__dict__)
    # Not by assignment: torch hands assignments on to the module inside, which is still the original's.
    state.update(_parameters={}, _buffers=dict(state["_buffers"]), _modules=dict(state["_modules"]), _is_replica=True)
    object.__setattr__(replica, "__dict__", state)
    own = weakref.ref(replica)

    def forward(*args: Any, **kwargs: Any) -> Any:
        module = own()
        assert module is not None, "a replica runs while it is alive"
        module._initialize()  # by now the module inside is the replica's
        return module.forward(*args, **kwargs)

    state["forward"] = forward
    return replica


PARTS: Final = (
    Part("data parallel", dynamo.EVAL_FRAME, patches_of_eval_frame),
    Part("data parallel", dynamo.MODULE, patches_of_module),
)

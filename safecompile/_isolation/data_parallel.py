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
from types import ModuleType
from typing import Any, Final

from .._patching.families import Part
from .._patching.patches import AttributePatch, Patch
from .._torch import dynamo, modules


def patches_of_eval_frame(module: ModuleType) -> list[Patch]:
    """Returns the patch for modules that ``torch.compile`` returned; changes nothing."""
    owner = module.OptimizedModule
    modules.check_optimized(owner)
    return [AttributePatch(owner, modules.REPLICATE, _replicate_optimized, new=True)]


def patches_of_module(module: ModuleType) -> list[Patch]:
    """Returns the patch for ``Module.compile()``; changes nothing."""
    owner = module.Module
    original = vars(owner)[modules.REPLICATE]

    @functools.wraps(original)
    def _patched_replicate(self: Any) -> Any:
        replica = original(self)
        compiled = replica.__dict__.get(modules.COMPILED_CALL)
        bound = None if compiled is None else modules.bound_to(replica, self, dynamo.context_of(compiled))
        if bound is not None:
            replica.__dict__[modules.COMPILED_CALL] = bound
        return replica

    return [AttributePatch(owner, modules.REPLICATE, _patched_replicate)]


def _replicate_optimized(self: Any) -> Any:
    replica = object.__new__(type(self))
    # Not by assignment: torch hands assignments on to the module inside, which is still the original's.
    state = modules.copied_state(self)
    object.__setattr__(replica, "__dict__", state)
    own = weakref.ref(replica)

    def forward(*args: Any, **kwargs: Any) -> Any:
        module = own()
        assert module is not None, "a replica runs while it is alive"
        modules.initialize(module)  # by now the module inside is the replica's
        return module.forward(*args, **kwargs)

    state["forward"] = forward
    return replica


PARTS: Final = (
    Part("data parallel", dynamo.EVAL_FRAME, patches_of_eval_frame),
    Part("data parallel", dynamo.MODULE, patches_of_module),
)

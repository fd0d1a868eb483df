"""flex_attention and create_block_mask from any thread, without a function in front of them.

An eager ``flex_attention`` call (and ``cond``, ``while_loop``, ...) enters ``_set_compilation_env``, which clears FX's
tracing flag and puts it back: across threads, this left the flag set for good, and then every compiled call in
every thread raised. ``create_block_mask`` annotates nodes through FX's current metadata. Both are guarded where they
touch the state of other threads; the functions themselves stay torch's own, so nothing is in the way of Dynamo,
no reference taken earlier is left out, and no lock is held over a ``mask_mod`` or ``score_mod``.
"""

from __future__ import annotations

from types import ModuleType
from typing import Final

from .._patching import rewriting, thread_names
from .._patching.families import Part
from .._patching.patches import CodePatch, Patch
from .._patching.thread_globals import thread_local_globals
from .._torch import fx as torch_fx
from .._torch import settings as torch_settings
from . import fx, scoped_assignments


def patches_of_hop_utils(module: ModuleType) -> list[Patch]:
    """Returns the patch that makes ``_set_compilation_env`` change the calling thread's flag; changes nothing."""
    body = torch_fx.compilation_env(module)
    # torch 2.14+ sets a thread-local flag through a function: then there is nothing to change.
    flag = thread_names.ThreadLocalNames([torch_fx.FX_FLAG], flags=[torch_fx.FX_FLAG], attributes=True)
    # torch 2.7-2.11: it also changes settings of the process. Drop when min torch > 2.11.
    settings = (
        None if torch_settings.settings_are_per_context(torch_settings.config_module()) else scoped_assignments.Scoped()
    )
    code = rewriting.recompiled(body, lambda node: flag.visit(node if settings is None else settings.visit(node)))
    helpers = [] if settings is None else scoped_assignments.helpers(module)
    return [*helpers, CodePatch(body, code)] if flag.changed or helpers else []


def patches_of_hop_flex(module: ModuleType) -> list[Patch]:
    """Returns the patch for the metadata that this module imports by name (torch 2.13+); changes nothing."""
    return thread_local_globals(module, (), fx.local, optional=["current_meta"])


PARTS: Final = (
    Part("fx", torch_fx.HOP_UTILS, patches_of_hop_utils),
    Part("flex", torch_fx.HOP_FLEX, patches_of_hop_flex),
)

"""The private names of ``torch.export`` and of what it runs in. As :mod:`.dynamo`, it only names and tells."""

from __future__ import annotations

import sys
from types import FunctionType, ModuleType
from typing import Any

TRACE = "torch.export._trace"
SERIALIZE = "torch._export.serde.serialize"
NON_STRICT = "torch._export.non_strict_utils"
FAKE_IMPL = "torch._library.fake_impl"

#: What an export knows of the module that it traces, and how it does so: for the process (2.7-2.15). Of two exports that
#: overlap, the first to end takes it from the second ("_EXPORT_MODULE_HIERARCHY must not be None").
OF_AN_EXPORT = ("_EXPORT_FLAGS", "_EXPORT_MODULE_HIERARCHY")

#: The deserializer that ``torch.export.load`` runs: a second one raises ("_CURRENT_DESERIALIZER is already set").
DESERIALIZER = "_CURRENT_DESERIALIZER"

#: What ``torch.library.get_ctx()`` calls, set around each fake implementation of a custom operator.
CONTEXT_GETTER = "global_ctx_getter"


def initial_values() -> dict[str, Any]:
    """Returns what each of the variables above is where nobody exports or loads."""
    return dict.fromkeys((*OF_AN_EXPORT, DESERIALIZER))


def context_getter(module: ModuleType) -> Any:
    """Returns what :data:`CONTEXT_GETTER` is outside of every fake implementation."""
    return module.get_none


def override_of_builtins(module: ModuleType) -> FunctionType | None:
    """Returns the body of what replaces ``max``, ``min`` and ``math.pow`` while an export traces (2.9+)."""
    manager = vars(module).get("_override_builtin_ops")
    return None if manager is None else manager.__wrapped__

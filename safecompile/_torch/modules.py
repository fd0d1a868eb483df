"""The private names of ``nn.Module`` and ``OptimizedModule``. As :mod:`.dynamo`, it only names and tells."""

from __future__ import annotations

from types import MethodType
from typing import Any

REPLICATE = "_replicate_for_data_parallel"
COMPILED_CALL = "_compiled_call_impl"


def check_optimized(owner: Any) -> None:
    """Raises LookupError unless an ``OptimizedModule`` is replicated as any module, and can be initialised anew."""
    if "_initialize" not in vars(owner) or REPLICATE in vars(owner):
        msg = f"an OptimizedModule with _initialize, and without {REPLICATE} of its own"
        raise LookupError(msg)


def bound_to(replica: Any, original: Any, context: Any) -> Any:
    """Returns the compiled call of ``original`` (by ``Module.compile()``), bound to its replica; or None.

    Args:
        context: what compiled it, or None.
    """
    compiled = replica.__dict__.get(COMPILED_CALL)
    if isinstance(compiled, MethodType) and compiled.__self__ is original:  # compile(disable=True)
        return MethodType(compiled.__func__, replica)
    return None if context is None else context(replica._call_impl)


def copied_state(module: Any) -> dict[str, Any]:
    """Returns the dictionary of a replica: containers of its own, no parameters."""
    state = dict(module.__dict__)
    own = {name: dict(state[name]) for name in ("_buffers", "_modules")}
    return {**state, **own, "_parameters": {}, "_is_replica": True}


def initialize(optimized: Any) -> None:
    """Has an ``OptimizedModule`` compile anew the module that it holds by now."""
    optimized._initialize()

"""The private parts of torch that the benchmarks read; the counted misses of ``costs`` change one."""

from __future__ import annotations

from typing import Any


def graphs_compiled() -> int:
    """Returns how many graphs Dynamo has compiled in this process."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def backend_named(name: str) -> Any:
    """Returns the function behind the name of a backend."""
    from torch._dynamo.backends.registry import lookup_backend

    return lookup_backend(name)


def can_count_instructions() -> bool:
    """Tells whether this build of torch can tell callgrind when to count."""
    import torch

    supported = getattr(torch._C, "_valgrind_supported_platform", None)
    return bool(supported is not None and supported())


def do_not_time_guards() -> None:
    """Has a compile not empty the processor's caches to time its guards once: that takes longer than all else in it."""
    from torch._dynamo import guards

    assert callable(guards.profile_guard_manager)  # 2.7 to 2.15
    guards.profile_guard_manager = lambda *_: 0.0


def start_counting() -> None:
    """Has callgrind count from here on."""
    import torch

    torch._C._valgrind_toggle()


def write_count() -> None:
    """Has callgrind stop and write what it counted to its next file."""
    import torch

    torch._C._valgrind_toggle_and_dump_stats()

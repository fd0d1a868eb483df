"""The private parts of torch that the benchmarks read; none is changed. Plain torch has no public count of compiles."""

from __future__ import annotations

from typing import Any


def counts() -> dict[str, int]:
    """Returns what Dynamo has counted in this process: graphs compiled, frames tried, frames compiled."""
    from torch._dynamo.utils import counters

    return {
        "graphs": int(counters["stats"]["unique_graphs"]),
        "frames": int(counters["frames"]["total"]),
        "frames_ok": int(counters["frames"]["ok"]),
    }


def backend_named(name: str) -> Any:
    """Returns the function behind the name of a backend."""
    from torch._dynamo.backends.registry import lookup_backend

    return lookup_backend(name)


def can_count_instructions() -> bool:
    """Tells whether this build of torch can tell callgrind when to count."""
    import torch

    supported = getattr(torch._C, "_valgrind_supported_platform", None)
    return bool(supported is not None and supported())


def start_counting() -> None:
    """Has callgrind count from here on."""
    import torch

    torch._C._valgrind_toggle()


def write_count() -> None:
    """Has callgrind stop and write what it counted to its next file."""
    import torch

    torch._C._valgrind_toggle_and_dump_stats()

"""The private parts of torch that the benchmarks read; ``overlap`` and the counted misses of ``costs`` change one."""

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


def phases() -> list[dict[str, Any]]:
    """Returns for each compile of this process the phases that torch has measured and that took 50 ms or more."""
    from torch._dynamo.utils import get_compilation_metrics

    found = []
    for one in get_compilation_metrics():
        times = {k: v for k, v in vars(one).items() if k.endswith("_us") and isinstance(v, int)}
        ended_us = times.pop("end_time_us", 0)
        times.pop("start_time_us", None)
        seconds = {name[:-3]: round(us / 1e6, 3) for name, us in times.items() if us >= 50_000}
        found.append({"compile_id": str(one.compile_id), "ended_unix_s": round(ended_us / 1e6, 3), **seconds})
    return found


def give_lock_up_while_kernels_compile(*, put_aside: bool) -> None:
    """Has the compile lock given up, for the experiment of ``overlap``, while Inductor waits for its kernels.

    Args:
        put_aside: what Inductor and AOTAutograd keep of one compile in variables of the process goes with the compile
            that waits: another one begins with what a process begins with, and does not find it.
    """
    from torch._dynamo import convert_frame
    from torch._functorch._aot_autograd import logging_utils
    from torch._inductor import metrics
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.triton_bundler import TritonBundler

    original = AsyncCompile.wait
    counted = [name for name, value in vars(metrics).items() if isinstance(value, (int, list)) and name[0] != "_"]
    places: list[tuple[Any, list[str]]] = [
        (TritonBundler, ["_entries", "_static_autotuners", "_winners"]),
        (logging_utils, ["graph_being_compiled", "model_name"]),
        (metrics, counted),
    ]
    kept = [(place, {n: getattr(place, n) for n in names if hasattr(place, n)}) for place, names in places]

    def exchanged(values: list[tuple[Any, dict[str, Any]]]) -> list[tuple[Any, dict[str, Any]]]:
        before = [(place, {name: getattr(place, name) for name in named}) for place, named in values]
        for place, named in values:
            for name, value in named.items():
                setattr(place, name, value)
        return before

    def fresh() -> list[tuple[Any, dict[str, Any]]]:
        return [(p, {n: list(v) if isinstance(v, list) else v for n, v in named.items()}) for p, named in kept]

    def wait(self: Any, scope: Any) -> Any:
        lock: Any = convert_frame.compile_lock
        if not lock._is_owned():
            return original(self, scope)
        mine = exchanged(fresh()) if put_aside else []
        state = lock._release_save()
        try:
            return original(self, scope)
        finally:
            lock._acquire_restore(state)
            exchanged(mine)

    AsyncCompile.wait = wait  # type: ignore[method-assign]


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

"""The default device, as guards see it: each thread has its own."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo

from safecompile._isolation import default_device
from tests.helpers.threads import ParkedBackend, run_threads

from .test_switches import Pause, beside


def on(device: str) -> Callable[[Pause], None]:
    def first(pause: Pause) -> None:
        torch.set_default_device(device)
        pause()

    return first


def test_a_default_device_of_another_thread(side):
    """A warm call does not compile again for another thread's default device, and a cold one compiles once."""
    backend = ParkedBackend(parked=False)
    warm = torch.compile(lambda x: x + torch.ones(2), backend=backend)
    cold = torch.compile(lambda x: x - torch.ones(2), backend=backend)
    warm(torch.ones(2))

    def calls(_: Pause) -> list[Any]:
        return [warm(torch.ones(2)).tolist(), cold(torch.ones(2)).tolist(), backend.compiles]

    try:
        _, seen = beside(on("meta"), calls)
        assert seen == [[2.0, 2.0], [0.0, 0.0], 2 if side == "safe" else 3]
        torch.utils._device.CURRENT_DEVICE = None
        for function in (warm, cold):
            function(torch.ones(2))
        assert backend.compiles == (2 if side == "safe" else 4)
    finally:
        torch.utils._device.CURRENT_DEVICE = None  # in plain torch the thread's device stays there


def test_threads_with_a_device_each(installed):
    """Threads with other default devices compile once for each, and get tensors on their own."""
    backend = ParkedBackend(parked=False)
    compiled = torch.compile(lambda x: x.new_ones(2) + torch.ones(2).numel(), backend=backend)
    makes = torch.compile(lambda n: torch.ones(3) * n, backend=backend)
    started = threading.Barrier(3)

    def job(device: str | None) -> Callable[[], set[str]]:
        def run() -> set[str]:
            torch.set_default_device(device)
            started.wait(30)
            return {makes(torch.ones(3)).device.type for _ in range(50)}

        return run

    assert run_threads([job("meta"), job("cpu"), job(None)]) == [{"meta"}, {"cpu"}, {"cpu"}]
    assert backend.compiles == 3
    assert compiled(torch.ones(1)).tolist() == [3.0, 3.0]


def test_one_thread_sees_what_it_sees_in_plain_torch(side):
    """Default devices in one thread: torch's variable is the device itself, and as many compiles."""
    backend = ParkedBackend(parked=False)
    compiled = torch.compile(lambda x: x + 1, backend=backend)
    seen = []

    def look() -> None:
        compiled(torch.ones(2, device="cpu"))
        seen.append((torch.utils._device.CURRENT_DEVICE, backend.compiles))

    look()
    torch.set_default_device("cpu")
    look()
    torch.set_default_device("meta")
    look()
    torch.set_default_device("cpu")
    look()
    torch.set_default_device(None)
    look()
    cpu, meta = torch.device("cpu"), torch.device("meta")
    assert seen == [(None, 1), (cpu, 2), (meta, 3), (cpu, 3), (None, 3)]
    assert all(one is None or type(one) is torch.device for one, _ in seen)


def test_a_default_device_that_compiled_code_sets(side):
    """Compiled code that sets a default device is one graph, and what it leaves is what guards compare with."""
    backend = ParkedBackend(parked=False)
    look = torch.compile(lambda x: x + 1, backend=backend)

    @torch.compile(backend=backend, fullgraph=True)
    def made_on_meta(x: torch.Tensor) -> tuple[torch.Tensor, torch.device]:
        torch.set_default_device("meta")
        made = torch.ones(2)
        torch.set_default_device(None)
        return x + 1, made.device

    @torch.compile(backend=backend, fullgraph=True)
    def left_on(x: torch.Tensor, device: str | None) -> torch.Tensor:
        torch.set_default_device(device)
        return x + 1

    x, seen = torch.ones(2, device="cpu"), []
    torch.set_default_device(None)  # the first in a thread makes a variable that guards look at
    try:
        for _ in range(3):
            result, device = made_on_meta(x)
            assert (result.tolist(), device.type) == ([2.0, 2.0], "meta")
        assert backend.compiles == 1
        for device in ("meta", "cpu", None):
            left_on(x, device)
            before = backend.compiles
            look(x)
            seen.append((str(torch.utils._device.CURRENT_DEVICE), torch.ones(2).device.type, backend.compiles - before))
        assert seen == [("meta", "meta", 1), ("cpu", "cpu", 1), ("None", "cpu", 1)]
    finally:
        torch.set_default_device(None)


def test_what_stands_for_the_devices_of_all_threads(installed):
    """What is in torch's variable while threads differ is copied as the device of the thread that copies."""
    value = default_device._by_thread
    with torch.utils._device.DeviceContext("meta"):
        assert (pickle.loads(pickle.dumps(value)), repr(value)) == (torch.device("meta"), "device(type='meta')")
        assert value == torch.device("meta")
        assert hash(value) == hash(torch.device("meta"))
    assert pickle.loads(pickle.dumps(value)) is None

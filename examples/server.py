"""A thread pool that serves requests with one compiled model. All threads start cold; one of them compiles.

    python examples/server.py

It needs no GPU and no C++ compiler (backend "aot_eager"), and ends after a few seconds. Put ``torch.compile`` in the
place of ``safe_compile`` to see what plain torch makes of the same requests.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch

from safecompile import safe_compile

THREADS = 12
REQUESTS = 400
WIDTH = 64

local = threading.local()


def build() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU(), torch.nn.Linear(WIDTH, WIDTH)]
    return torch.nn.Sequential(*layers).eval()


def main() -> dict[str, int]:
    model = build()
    compiled = safe_compile(model, backend="aot_eager", dynamic=True)

    def serve(batch: torch.Tensor) -> tuple[torch.Tensor, float, bool]:
        first = not hasattr(local, "served")
        local.served = True
        began = time.perf_counter()
        with torch.inference_mode():
            answer = compiled(batch)
        return answer, time.perf_counter() - began, first

    batches = [torch.randn(2 + number % 7, WIDTH) for number in range(REQUESTS)]
    began = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as pool:
        served = list(pool.map(serve, batches))
    seconds = time.perf_counter() - began

    with torch.inference_mode():
        wrong = sum(not torch.allclose(s[0], model(b), atol=1e-5) for s, b in zip(served, batches, strict=True))
    warm = sorted(took for _, took, first in served if not first)
    cold = max(took for _, took, first in served if first)
    print(f"{REQUESTS} requests, {THREADS} threads, {seconds:.2f} s, {wrong} wrong answers")
    print(f"slowest first call of a thread: {cold:.2f} s; median of the others: {warm[len(warm) // 2] * 1000:.2f} ms")
    return {"right": REQUESTS - wrong, "of": REQUESTS}


if __name__ == "__main__":
    main()

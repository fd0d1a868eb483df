"""Symbolic tracing in one thread beside compiled calls in a second and eager calls in a third.

    python stress_tracing_beside_calls.py [seconds] [plain]

``plain`` runs it without the patches, and shows what torch does.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from math import sqrt

import torch
import torch.fx


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4))

    def forward(self, x):
        return self.layers(x) * sqrt(4.0)


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 5.0
    if "plain" not in sys.argv:
        import safecompile.patch_all  # noqa: F401 - its import is its use
    traced, model, x = Model(), Model(), torch.randn(2, 4)
    eager = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    compiled = torch.compile(model, backend="eager")
    want = {"compiled": compiled(x), "eager": eager(x), "trace": str(torch.fx.symbolic_trace(traced).graph)}
    counts: Counter[str] = Counter()
    first: dict[str, str] = {}
    deadline = time.monotonic() + seconds

    def loop(name, call, same):
        while time.monotonic() < deadline:
            counts[name] += 1
            try:
                got = call()
                if not same(got, want[name]):
                    counts[f"{name}: wrong"] += 1
                    first.setdefault(f"{name}: wrong", str(got))
            except Exception as error:
                counts[f"{name}: {type(error).__name__}"] += 1
                first.setdefault(f"{name}: {type(error).__name__}", str(error))

    def equal(a, b):
        return isinstance(a, torch.Tensor) and torch.equal(a, b)

    threads = [
        threading.Thread(
            target=loop, args=("trace", lambda: str(torch.fx.symbolic_trace(traced).graph), lambda a, b: a == b)
        ),
        threading.Thread(target=loop, args=("compiled", lambda: compiled(x), equal)),
        threading.Thread(target=loop, args=("eager", lambda: eager(x), equal)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 60)
    for key, text in first.items():
        print(key, text[:300])
    patched = torch.nn.Module.__call__ is not torch.nn.Module._wrapped_call_impl
    print(dict(counts), "nn.Module left patched" if patched else "")
    return 1 if patched or first or any(thread.is_alive() for thread in threads) else 0


if __name__ == "__main__":
    sys.exit(main())

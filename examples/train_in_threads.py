"""Two threads train a model each, compiled, from the first step on.

python examples/train_in_threads.py
"""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor

import torch

from safecompile import safe_compile

STEPS, WIDTH = 8, 16


def losses(model: torch.nn.Module, batches: list[torch.Tensor], *, compiled: bool) -> torch.Tensor:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    forward = safe_compile(model) if compiled else model
    seen = []
    for batch in batches:
        loss = forward(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(loss.detach())
    return torch.stack(seen)


def main() -> dict[str, int]:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    nn = torch.nn
    models = [
        nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4)),
        nn.Sequential(nn.Linear(WIDTH, 24), nn.Tanh(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 1)),
    ]
    batches = [[torch.randn(8, WIDTH) for _ in range(STEPS)] for _ in models]
    expected = [losses(copy.deepcopy(m), b, compiled=False) for m, b in zip(models, batches, strict=True)]
    with ThreadPoolExecutor(2) as pool:
        got = list(pool.map(lambda m, b: losses(m, b, compiled=True), models, batches))
    right = sum(torch.allclose(g, e, rtol=1e-3, atol=1e-5) for g, e in zip(got, expected, strict=True))
    print(f"{right} of 2 threads had the losses of eager training")
    return {"right": right, "of": 2}


if __name__ == "__main__":
    main()

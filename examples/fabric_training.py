"""Lightning Fabric trains a compiled model while threads serve another one.

pip install lightning-fabric && python examples/fabric_training.py
"""

from __future__ import annotations

import copy
import logging
import warnings
from concurrent.futures import ThreadPoolExecutor

import torch
from lightning_fabric import Fabric

from safecompile import safe_compile

STEPS, WIDTH, THREADS, REQUESTS = 6, 16, 4, 60


def train(fabric: Fabric, module: torch.nn.Module, batches: list[torch.Tensor]) -> torch.Tensor:
    model, optimizer = fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.05))
    seen = []
    for batch in batches:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        fabric.backward(loss)
        optimizer.step()
        seen.append(loss.detach())
    return torch.stack(seen)


def main() -> dict[str, int]:
    logging.getLogger("lightning_fabric").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    fabric = Fabric(accelerator="cpu", devices=1)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))
    served = copy.deepcopy(model).eval()
    batches = [torch.randn(8, WIDTH) for _ in range(STEPS)]
    answer = safe_compile(served, dynamic=True)
    expected = train(fabric, copy.deepcopy(model), batches)

    @torch.inference_mode()
    def request(number: int) -> bool:
        batch = torch.full((2 + number % 6, WIDTH), 0.1 * number)
        return torch.allclose(answer(batch), served(batch), atol=1e-4)

    with ThreadPoolExecutor(THREADS) as pool:
        answers = pool.map(request, range(REQUESTS), timeout=300)
        got = train(fabric, safe_compile(model), batches)
    right = sum(answers)
    right += torch.allclose(got, expected, rtol=1e-3, atol=1e-5)
    print(f"{right} of {REQUESTS + 1} were right")
    return {"right": right, "of": REQUESTS + 1}


if __name__ == "__main__":
    main()

"""DDP or FSDP2 on two processes, while a pool of threads in each serves another compiled model.

torchrun --standalone --nproc-per-node 2 examples/distributed_training.py ddp
torchrun --standalone --nproc-per-node 2 examples/distributed_training.py fsdp2
"""

from __future__ import annotations

import copy
import sys
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from safecompile import safe_compile

STEPS, WIDTH, THREADS, REQUESTS = 5, 16, 4, 60


def train(model: torch.nn.Module, forward, batches: list[torch.Tensor]) -> torch.Tensor:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    seen = []
    for batch in batches:
        optimizer.zero_grad()
        loss = forward(batch).square().mean()
        loss.backward()
        optimizer.step()
        seen.append(loss.detach())
    return torch.stack(seen)


def main(kind: str = "ddp") -> dict[str, int]:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))
    served = copy.deepcopy(model).eval()
    batches = [torch.randn(8, WIDTH) for _ in range(STEPS)]  # the same on both: so are their gradients
    eager = copy.deepcopy(model)
    expected = train(eager, eager, batches)
    if kind == "ddp":
        model = DistributedDataParallel(model)
    else:
        fully_shard(model, mesh=dist.init_device_mesh("cpu", (2,)))
    answer = safe_compile(served, dynamic=True)

    @torch.inference_mode()
    def request(number: int) -> bool:
        batch = torch.full((2 + number % 6, WIDTH), 0.1 * number)
        return torch.allclose(answer(batch), served(batch), atol=1e-4)

    with ThreadPoolExecutor(THREADS) as pool:
        answers = [pool.submit(request, number) for number in range(REQUESTS)]
        got = train(model, safe_compile(model), batches)
        right = sum(one.result(timeout=300) for one in answers)
    right += torch.allclose(got, expected, rtol=1e-3, atol=1e-5)
    dist.barrier()
    dist.destroy_process_group()
    print(f"{kind}: {right} of {REQUESTS + 1} were right")
    return {"right": right, "of": REQUESTS + 1}


if __name__ == "__main__":
    main(*sys.argv[1:])

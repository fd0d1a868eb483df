"""asyncio: tasks hand a compiled model to threads with ``asyncio.to_thread``; each task has a context of its own.

python examples/asyncio_server.py
"""

from __future__ import annotations

import asyncio

import torch

from safecompile import safe_compile

TASKS, CALLS, WIDTH = 24, 10, 16

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 32), torch.nn.SiLU(), torch.nn.Linear(32, 4)).eval()
compiled = safe_compile(model, dynamic=True)


def answer(batch: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return compiled(batch)


async def task(number: int) -> int:
    right = 0
    for call in range(CALLS):
        batch = torch.randn(2 + (number + call) % 6, WIDTH)
        got = await asyncio.to_thread(answer, batch)
        right += torch.allclose(got, model(batch), atol=1e-4)
    return right


async def everything() -> int:
    return sum(await asyncio.gather(*map(task, range(TASKS))))


def main() -> dict[str, int]:
    right = asyncio.run(everything())
    print(f"{right} of {TASKS * CALLS} answers were right")
    return {"right": right, "of": TASKS * CALLS}


if __name__ == "__main__":
    main()

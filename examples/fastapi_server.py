"""FastAPI under uvicorn: 32 clients send 2,000 requests of mixed batch sizes to one compiled model that starts cold.

    pip install fastapi uvicorn httpx && python examples/fastapi_server.py

The endpoint is an ordinary ``def``, so FastAPI calls it in the threads of its pool. The first import is all
that is there for the library.
"""

from __future__ import annotations

import safecompile.patch_all  # noqa: F401  before torch is used

# isort: split

import asyncio
import socket
import threading

import httpx
import torch
import uvicorn
from fastapi import FastAPI

REQUESTS, CLIENTS, WIDTH = 2000, 32, 16
SIZES = (2, 3, 1, 5, 8)  # a batch of one is a specialisation of its own in torch

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 32), torch.nn.GELU(), torch.nn.Linear(32, 4)).eval()
compiled = torch.compile(model, dynamic=True)
app = FastAPI()


@app.post("/classify")
def classify(rows: list[list[float]]) -> list[list[float]]:
    with torch.inference_mode():
        return compiled(torch.tensor(rows)).tolist()


async def clients(address: str) -> tuple[int, int]:
    batches = [torch.randn(size, WIDTH) for size in SIZES]
    with torch.inference_mode():
        expected = [model(batch) for batch in batches]
    numbers = iter(range(REQUESTS))
    right = wrong = 0

    async def client(session: httpx.AsyncClient) -> None:
        nonlocal right, wrong
        for number in numbers:
            i = number % len(SIZES)
            answer = await session.post(f"{address}/classify", json=batches[i].tolist())
            good = answer.status_code == 200 and torch.allclose(torch.tensor(answer.json()), expected[i], atol=1e-4)
            right, wrong = right + good, wrong + (not good)

    async with httpx.AsyncClient(timeout=300, limits=httpx.Limits(max_connections=CLIENTS)) as session:
        await asyncio.gather(*(client(session) for _ in range(CLIENTS)))
    return right, wrong


def main() -> dict[str, int]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(128)
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_keep_alive=600))
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        right, wrong = asyncio.run(clients(f"http://127.0.0.1:{listening.getsockname()[1]}"))
        server.should_exit = True
        thread.join(60)
    print(f"{right} of {REQUESTS} answers were right, {wrong} were not")
    return {"right": right, "of": REQUESTS}


if __name__ == "__main__":
    main()

"""Ray: one actor with eight threads serves a compiled model that starts cold.

pip install ray && python examples/ray_actor.py
"""

from __future__ import annotations

import os

import ray
import torch

CALLS, THREADS, WIDTH = 120, 8, 16


def build() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, 32), torch.nn.GELU(), torch.nn.Linear(32, 4)).eval()


@ray.remote(num_cpus=1)
class Server:
    def __init__(self) -> None:
        from safecompile import safe_compile

        torch.set_num_threads(1)
        self.compiled = safe_compile(build(), dynamic=True)

    def classify(self, rows: list[list[float]]) -> list[list[float]]:
        with torch.inference_mode():
            return self.compiled(torch.tensor(rows)).tolist()

    def graphs(self) -> int:
        from torch._dynamo.utils import counters

        return counters["stats"]["unique_graphs"]


def main() -> dict[str, int]:
    environment = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": environment})
    server = Server.options(max_concurrency=THREADS).remote()
    batches = [torch.randn(2 + number % 6, WIDTH) for number in range(CALLS)]
    answers = ray.get([server.classify.remote(batch.tolist()) for batch in batches], timeout=300)
    model = build()
    with torch.inference_mode():
        right = sum(torch.allclose(torch.tensor(a), model(b), atol=1e-4) for a, b in zip(answers, batches, strict=True))
    graphs = ray.get(server.graphs.remote())
    ray.shutdown()
    print(f"{right} of {CALLS} answers were right, {graphs} compile")
    return {"right": right, "of": CALLS, "graphs": graphs}


if __name__ == "__main__":
    main()

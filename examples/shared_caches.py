"""Compiled code that outlives its process: cache artifacts, and the FX graph cache shared by two processes.

python examples/shared_caches.py
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

WIDTH, THREADS = 16, 4


def serve(role: str, folder: str) -> None:
    """Four threads start cold. ``save`` writes the artifacts; ``load`` begins with them; ``share`` has the cache."""
    import torch
    from torch._dynamo.utils import counters

    from safecompile import safe_compile

    torch.set_num_threads(1)
    torch.manual_seed(0)
    file = pathlib.Path(folder, "artifacts")
    if role == "load":
        torch.compiler.load_cache_artifacts(file.read_bytes())
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 32), torch.nn.GELU(), torch.nn.Linear(32, 4)).eval()
    compiled = safe_compile(model, dynamic=True)

    def request(number: int) -> bool:
        batch = torch.full((2 + number % 6, WIDTH), 0.1 * number)
        with torch.no_grad():
            return torch.allclose(compiled(batch), model(batch), atol=1e-4)

    with ThreadPoolExecutor(THREADS) as pool:
        assert all(pool.map(request, range(40)))
    if role == "save":
        saved = torch.compiler.save_cache_artifacts()
        assert saved is not None
        file.write_bytes(saved[0])
    else:
        hits = counters["aot_autograd"]["autograd_cache_hit"] + counters["inductor"]["fxgraph_cache_hit"]
        assert hits > 0, dict(counters)


def main() -> dict[str, int]:
    with tempfile.TemporaryDirectory() as folder:

        def run(role: str, cache: str) -> bool:
            environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(pathlib.Path(folder, cache))}
            command = [sys.executable, __file__, role, folder]
            return subprocess.run(command, env=environment, timeout=300, check=False).returncode == 0

        right = run("save", "first")
        with ThreadPoolExecutor(3) as pool:
            others = [pool.submit(run, "load", "second"), pool.submit(run, "share", "first")]
            others.append(pool.submit(run, "share", "first"))
            right += sum(one.result() for one in others)
    print(f"{right} of 4 processes were right, three of them without a compile of their own")
    return {"right": right, "of": 4}


if __name__ == "__main__":
    serve(*sys.argv[1:]) if len(sys.argv) > 1 else main()

"""DataLoaders with forked and with spawned workers that call compiled code, beside threads that compile.

python examples/dataloader_workers.py
"""

from __future__ import annotations

import threading

import torch
from torch.utils.data import DataLoader, Dataset

from safecompile import safe_compile

ROWS, WIDTH = 24, 8


def augment(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x) * 2 + 1


class Rows(Dataset):
    def __init__(self) -> None:
        self.compiled = None

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.compiled is None:
            self.compiled = safe_compile(augment, backend="aot_eager")
        return self.compiled(torch.full((WIDTH,), 0.01 * index))


def main() -> dict[str, int]:
    torch.set_num_threads(1)
    expected = torch.stack([augment(torch.full((WIDTH,), 0.01 * index)) for index in range(ROWS)])
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())
    compiled = safe_compile(model, backend="aot_eager")
    compiled(torch.ones(1, WIDTH))  # a fork in the middle of an import would leave the child half a module
    stop, served, wrong = threading.Event(), [0], [0]

    def serve() -> None:  # a new shape now and then, so that forks meet compiles
        rows = 2
        while not stop.is_set():
            x = torch.randn(2 + rows % 5, WIDTH)
            wrong[0] += not torch.allclose(compiled(x), model(x))
            served[0], rows = served[0] + 1, rows + 1
            stop.wait(0.001)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    right = 0
    for method in ("fork", "spawn"):
        for _ in range(2):
            loader = DataLoader(Rows(), batch_size=6, num_workers=2, multiprocessing_context=method, timeout=240)
            right += torch.allclose(torch.cat(list(loader)), expected)
    stop.set()
    thread.join(60)
    right += not wrong[0] and served[0] > 0
    print(f"{right} of 5 were right: four rounds of two workers each, and the thread beside them ({served[0]} calls)")
    return {"right": right, "of": 5}


if __name__ == "__main__":
    main()

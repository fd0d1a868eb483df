"""A model that is pickled, copied, loaded, and put into train and eval mode while threads call it compiled.

python examples/changing_models.py
"""

from __future__ import annotations

import copy
import io
import threading

import torch

from safecompile import safe_compile

THREADS, ROUNDS, WIDTH = 4, 12, 16


def build(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 32), torch.nn.Dropout(0.5), torch.nn.ReLU(), torch.nn.Linear(32, 4)
    )


def main() -> dict[str, int]:
    torch.set_num_threads(1)
    model = build(0).eval()
    compiled = safe_compile(model, backend="aot_eager", dynamic=True)
    weights = [copy.deepcopy(build(seed).state_dict()) for seed in (1, 2)]
    batch = torch.randn(4, WIDTH)
    evals = {}
    for seed in (0, 1, 2):
        with torch.no_grad():
            evals[seed] = build(seed).eval()(batch)
    stop, errors, calls = threading.Event(), [], [0] * THREADS

    def call(index: int) -> None:
        try:
            while not stop.is_set():
                with torch.no_grad():
                    assert compiled(batch).shape == (4, 4)
                calls[index] += 1
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=call, args=(index,), daemon=True) for index in range(THREADS)]
    for thread in threads:
        thread.start()
    right = 0
    for number in range(ROUNDS):
        seed = 1 + number % 2
        compiled.load_state_dict({f"_orig_mod.{name}": value for name, value in weights[seed - 1].items()})
        compiled.train()
        compiled.eval()
        file = io.BytesIO()
        torch.save(compiled, file)
        file.seek(0)
        others = [copy.deepcopy(compiled), torch.load(file, weights_only=False), compiled]
        with torch.no_grad():
            right += all(torch.allclose(other(batch), evals[seed], atol=1e-5) for other in others)
    stop.set()
    for thread in threads:
        thread.join(120)
    right += not errors and all(calls)
    print(f"{right} of {ROUNDS + 1} were right; the threads made {sum(calls)} calls beside")
    return {"right": right, "of": ROUNDS + 1}


if __name__ == "__main__":
    main()

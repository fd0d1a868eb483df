"""gradio: eight users press the button at once, and the handler calls a compiled model.

pip install gradio && python examples/gradio_app.py
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

os.environ |= {"GRADIO_ANALYTICS_ENABLED": "False", "HF_HUB_OFFLINE": "1"}

import gradio
import torch
from gradio_client import Client

from safecompile import safe_compile

USERS, CALLS = 8, 5

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(1, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)).eval()
compiled = safe_compile(model, dynamic=True)


def predict(numbers: str) -> str:
    with torch.inference_mode():
        column = torch.tensor([float(n) for n in numbers.split()])[:, None]
        return " ".join(str(float(n)) for n in compiled(column)[:, 0])


def main() -> dict[str, int]:
    page = gradio.Interface(predict, "text", "text", concurrency_limit=USERS, api_name="predict")
    _, address, _ = page.launch(prevent_thread_lock=True, quiet=True, server_name="127.0.0.1")

    def user(name: int) -> int:
        client, right = Client(address, verbose=False), 0
        for call in range(CALLS):
            numbers = torch.linspace(-1.0, 1.0, 2 + (name + call) % 5)
            text = client.predict(" ".join(map(str, numbers.tolist())), api_name="/predict")
            with torch.inference_mode():
                want = model(numbers[:, None])[:, 0]
            right += torch.allclose(torch.tensor([float(n) for n in text.split()]), want, atol=1e-4)
        return right

    with ThreadPoolExecutor(USERS) as pool:
        right = sum(pool.map(user, range(USERS)))
    page.close()
    print(f"{right} of {USERS * CALLS} answers were right")
    return {"right": right, "of": USERS * CALLS}


if __name__ == "__main__":
    main()

"""Flask with a thread for each request: eight clients, one compiled model, cold.

pip install flask && python examples/flask_server.py
"""

from __future__ import annotations

import json
import logging
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import torch
from flask import Flask, request
from werkzeug.serving import make_server

from safecompile import safe_compile

REQUESTS, CLIENTS, WIDTH = 200, 8, 16

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4)).eval()
compiled = safe_compile(model, dynamic=True)
app = Flask(__name__)


@app.post("/classify")
def classify() -> list[list[float]]:
    with torch.inference_mode():
        return compiled(torch.tensor(request.get_json())).tolist()


def main() -> dict[str, int]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = make_server("127.0.0.1", 0, app, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def ask(number: int) -> bool:
        batch = torch.randn(2 + number % 6, WIDTH)
        question = urllib.request.Request(
            f"http://127.0.0.1:{server.server_port}/classify",
            json.dumps(batch.tolist()).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(question, timeout=300) as answer, torch.inference_mode():
            return torch.allclose(torch.tensor(json.load(answer)), model(batch), atol=1e-4)

    with ThreadPoolExecutor(CLIENTS) as pool:
        right = sum(pool.map(ask, range(REQUESTS)))
    server.shutdown()
    print(f"{right} of {REQUESTS} answers were right")
    return {"right": right, "of": REQUESTS}


if __name__ == "__main__":
    main()

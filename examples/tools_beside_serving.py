"""torch.export, ONNX export, jit.trace, quantization and the profiler, each on a copy, beside threads that serve.

    pip install onnx onnxscript torchao && python examples/tools_beside_serving.py

What is not installed is left out.
"""

from __future__ import annotations

import copy
import importlib.util
import logging
import sys
import threading
import warnings
from collections.abc import Callable

import torch

from safecompile import safe_compile

THREADS, WIDTH = 4, 16


def build() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)).eval()


def exported(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return torch.export.export(model, (x,)).module()(x)


def onnx(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    program = torch.onnx.export(model, (x,), dynamo=True, verbose=False)
    assert program.model.graph.num_nodes() > 0
    return model(x)


def traced(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return torch.jit.trace(model, x)(x)


def quantized(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    quantize_(model, Int8WeightOnlyConfig())
    return safe_compile(model)(x)


def profiled(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.profiler.profile() as profile:
        y = safe_compile(model)(x)
    assert profile.events()
    return y


def tools() -> list[Callable[[torch.nn.Module, torch.Tensor], torch.Tensor]]:
    there = [exported, traced, profiled]
    if all(map(importlib.util.find_spec, ("onnx", "onnxscript"))):
        there.append(onnx)
    return [*there, quantized] if importlib.util.find_spec("torchao") else there


def main() -> dict[str, int]:
    warnings.simplefilter("ignore")  # of the tools' own
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    model = build()
    compiled = safe_compile(model, dynamic=True)
    stop, lock, counts = threading.Event(), threading.Lock(), {"right": 0, "wrong": 0}

    def serve(number: int) -> None:
        while not stop.is_set():
            number += 1
            batch = torch.randn(2 + number % 6, WIDTH)
            with torch.inference_mode():
                good = torch.allclose(compiled(batch), model(batch), atol=1e-4)
            with lock:
                counts["right" if good else "wrong"] += 1

    threads = [threading.Thread(target=serve, args=(number,), daemon=True) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    x, done, used = torch.randn(4, WIDTH), 0, tools()
    try:
        for tool in used:
            with torch.no_grad():
                got = tool(copy.deepcopy(model), x)
                good = torch.allclose(got, model(x), atol=5e-2 if tool is quantized else 1e-4)
            print(f"{tool.__name__}: {'right' if good else 'wrong'}", file=sys.stdout)
            done += good
    finally:
        stop.set()
        for thread in threads:
            thread.join(120)
    done += counts["right"] > 0 and not counts["wrong"] and not any(t.is_alive() for t in threads)
    print(f"{done} of {len(used) + 1} were right; the threads made {counts['right']} calls beside them")
    return {"right": done, "of": len(used) + 1}


if __name__ == "__main__":
    main()

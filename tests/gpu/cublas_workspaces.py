"""Does clearing cuBLAS's workspaces in one thread change another's numbers? Plain torch, 12 s.

The argument ``clear`` has a thread that clears them; without it there is none.
"""

import os
import sys
import threading
import time

import torch

clear = sys.argv[1:] == ["clear"]
device = "cuda"


def normal(seed, *shape):
    return torch.randn(*shape, device=device, generator=torch.Generator(device).manual_seed(seed))


weight = normal(100, 256, 256) / 16
inputs = [normal(i, 64, 256) for i in range(6)]
wanted = [((x @ weight).relu() @ weight + x.sin()).cpu() for x in inputs]
stop = time.time() + 12
wrong, calls = [], [0] * 6


def multiply(i):
    while time.time() < stop:
        x = inputs[i].clone()
        got = (x @ weight).relu() @ weight + x.sin()
        torch.full((2**18 + i,), float(i), device=device)
        if not torch.allclose(got.cpu(), wanted[i], rtol=1e-3, atol=1e-3):
            wrong.append(i)
        calls[i] += 1


def clearing():
    while time.time() < stop:
        torch._C._cuda_clearCublasWorkspaces()
        time.sleep(0.0002)


threads = [threading.Thread(target=multiply, args=(i,)) for i in range(6)]
threads += [threading.Thread(target=clearing)] * clear
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("clear" if clear else "no clear", sum(calls), "calls", len(wrong), "wrong", flush=True)
os._exit(0)

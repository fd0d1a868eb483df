"""The functions whose warm calls are measured: the smallest one, and a module with flex_attention and a block mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention


def smallest(x: Tensor) -> Tensor:
    """Adds one: next to nothing but the call itself."""
    return x + 1


class Attention(nn.Module):
    """Projects, attends under a block mask, projects back."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)

    def forward(self, x: Tensor, mask: BlockMask) -> Tensor:
        q, k, v = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in self.qkv(x).chunk(3, -1))
        attended = flex_attention(q, k, v, block_mask=mask)
        assert isinstance(attended, Tensor)
        return self.out(attended.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


def causal(_b: Tensor, _h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
    return q >= kv


def build(name: str, backend: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Returns the compiled function ``name`` (``"function"`` or ``"module"``), not called yet, and its arguments."""
    if name == "function":
        return torch.compile(smallest, backend=backend), (torch.randn(4),)
    module = Attention(32, 2).eval().requires_grad_(False)
    mask = create_block_mask(causal, None, None, 128, 128, device="cpu")
    return torch.compile(module, backend=backend), (torch.randn(1, 128, 32), mask)

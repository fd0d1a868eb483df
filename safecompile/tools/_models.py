"""The small models of the demo, and the numbers that they should give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import flex_attention


def feed_forward(width: int, depth: int) -> nn.Module:
    """Returns ``depth`` times linear and GELU. No norm: torch may call a backend twice for one with dynamic sizes."""
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.GELU()]
    return nn.Sequential(*layers).eval()


def scaled_tanh(x: Tensor) -> Tensor:
    """The function that the callers of the tracing workload have compiled."""
    return torch.tanh(x) * 2 + 1


class Attention(nn.Module):
    """A block of attention: ``flex_attention`` with a block mask, or plain attention with a dense one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, block_mask: Any = None, dense_mask: Tensor | None = None) -> Tensor:
        q = self.norm(x)  # not a linear: as the query of a CPU kernel, its flattened result fails to compile (2.13)
        if block_mask is None:
            y = nn.functional.scaled_dot_product_attention(q, x, x, attn_mask=dense_mask)
        else:
            y = flex_attention(q, x, x, block_mask=block_mask)
        return x + self.out(y)  # type: ignore[no-any-return]


def random_anchor_mask(length: int, device: torch.device) -> Callable[..., Tensor]:
    """Returns a ``mask_mod`` under which each position sees what lies between a random anchor and itself."""
    anchors = (torch.rand(length, device=device) * torch.arange(length, device=device)).long()

    def mask_mod(_batch: Tensor, _head: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return (kv <= q) & (kv >= anchors[q])

    return mask_mod


def close(got: Any, expected: Tensor) -> bool:
    """Tells whether a result is right, within what another order of additions may change."""
    return isinstance(got, Tensor) and torch.allclose(got, expected, rtol=1e-2, atol=2e-3)

"""The two models of the training layout: a frozen target, and a drafter whose attention is compiled flex_attention.

A drafter learns to continue the target's hidden states from random places (anchors). Its queries are blocks of
draft positions, one block for each anchor; its keys are the target's hidden states followed by the draft positions.
A block sees the hidden states before its anchor, and itself. The anchors change at each step, and the mask with them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask


@dataclass(frozen=True)
class Shape:
    """The sizes of a run: layers, width, heads, context length, length of a draft block, element type."""

    layers: int
    hidden: int
    heads: int
    sequence: int
    block: int
    dtype: str

    @property
    def anchors(self) -> int:
        return self.sequence // self.block


SHAPES = {
    "cuda": Shape(layers=8, hidden=1024, heads=16, sequence=2048, block=16, dtype="bfloat16"),
    "cpu": Shape(layers=2, hidden=64, heads=2, sequence=128, block=16, dtype="float32"),
}


def _heads(x: Tensor, heads: int) -> Tensor:
    batch, length, width = x.shape
    return x.view(batch, length, heads, width // heads).transpose(1, 2)


def _mlp(hidden: int) -> nn.Module:
    return nn.Sequential(nn.LayerNorm(hidden), nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden))


class TargetLayer(nn.Module):
    """A causal transformer layer, eager."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads, self.norm = shape.heads, nn.LayerNorm(shape.hidden)
        self.qkv, self.out = nn.Linear(shape.hidden, 3 * shape.hidden), nn.Linear(shape.hidden, shape.hidden)
        self.mlp = _mlp(shape.hidden)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (_heads(part, self.heads) for part in self.qkv(self.norm(x)).chunk(3, -1))
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(x)  # type: ignore[no-any-return]


class DrafterLayer(nn.Module):
    """A layer that attends over the context and its own block, by the compiled attention that it is given."""

    def __init__(self, shape: Shape, attention: Callable[..., Any], *, trains_attention: bool) -> None:
        super().__init__()
        self.heads, self.norm = shape.heads, nn.LayerNorm(shape.hidden)
        self.q, self.kv = nn.Linear(shape.hidden, shape.hidden), nn.Linear(shape.hidden, 2 * shape.hidden)
        self.out, self.mlp = nn.Linear(shape.hidden, shape.hidden), _mlp(shape.hidden)
        self.attention, self.trains_attention = attention, trains_attention

    def forward(self, x: Tensor, context: Tensor, mask: BlockMask) -> Tensor:
        normed = self.norm(x)
        k, v = self.kv(torch.cat([context, normed], 1)).chunk(2, -1)
        parts = [_heads(part, self.heads) for part in (self.q(normed), k, v)]
        if not self.trains_attention:
            parts = [part.detach() for part in parts]
        attended = self.attention(*parts, block_mask=mask)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(x)  # type: ignore[no-any-return]


class Target(nn.Module):
    """The frozen model: token embeddings to hidden states."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.layers = nn.ModuleList(TargetLayer(shape) for _ in range(shape.layers))
        self.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Drafter(nn.Module):
    """The trained model."""

    def __init__(self, shape: Shape, attention: Callable[..., Any], *, trains_attention: bool) -> None:
        super().__init__()
        self.shape, self.start = shape, nn.Parameter(torch.randn(shape.block, shape.hidden) * 0.02)
        layers = (DrafterLayer(shape, attention, trains_attention=trains_attention) for _ in range(shape.layers))
        self.layers = nn.ModuleList(layers)

    def forward(self, context: Tensor, mask: BlockMask) -> Tensor:
        x = self.start.repeat(self.shape.anchors, 1).expand(context.shape[0], -1, -1)
        for layer in self.layers:
            x = layer(x, context, mask)
        return x


def random_anchors(shape: Shape, device: torch.device, generator: torch.Generator) -> Tensor:
    """Returns one anchor for each draft block, each with a whole block of the sequence behind it."""
    high = shape.sequence - shape.block
    return torch.randint(1, high, (shape.anchors,), device=device, generator=generator).sort().values


def mask_for(shape: Shape, anchors: Tensor) -> BlockMask:
    """Returns the block mask for ``anchors``."""
    context, block = shape.sequence, shape.block

    def mask_mod(_b: Tensor, _h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        before = kv < anchors[q // block]
        own = (kv >= context) & ((kv - context) // block == q // block)
        return before | own

    queries = shape.anchors * block
    return create_block_mask(mask_mod, None, None, queries, context + queries, device=str(anchors.device))


def wanted(shape: Shape, context: Tensor, anchors: Tensor) -> Tensor:
    """Returns the hidden states that the drafter is to predict: those that follow each anchor."""
    places = (anchors[:, None] + torch.arange(shape.block, device=anchors.device)).flatten()
    return context[:, places]

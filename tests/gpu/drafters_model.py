"""The two models of the training layout: a frozen target, and a drafter whose attention is compiled flex_attention.

A drafter learns to continue the target's hidden states from random places (anchors). Its queries are blocks of
draft positions, one block for each anchor; its keys are the target's hidden states followed by the draft positions.
A block sees the hidden states before its anchor, and itself. The anchors change at each step, and the mask with them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask


@dataclass(frozen=True)
class Shape:
    """The sizes of a run: layers, width, heads, context length, length of a draft block, element type."""

    layers: int
    hidden: int
    heads: int
    sequence: int
    block: int
    dtype: torch.dtype

    @property
    def anchors(self) -> int:
        return self.sequence // self.block


SHAPES = {
    "cuda": Shape(layers=8, hidden=1024, heads=16, sequence=2048, block=16, dtype=torch.bfloat16),
    "cpu": Shape(layers=2, hidden=64, heads=2, sequence=128, block=16, dtype=torch.float32),
}


def tokens_a_step(device: str) -> int:
    """Returns how many draft positions a drafter on ``device`` learns from in a step."""
    shape = SHAPES[torch.device(device).type]
    return shape.anchors * shape.block


def use(device: torch.device) -> None:
    """Makes a GPU this thread's own."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def finish(device: torch.device) -> None:
    """Waits until the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Layer(nn.Module):
    """A transformer layer: causal and eager, or with the compiled ``attention`` over a context and its own blocks."""

    def __init__(self, shape, attention=None, *, trains_attention=True):
        super().__init__()
        hidden = shape.hidden
        self.heads, self.attention, self.trains_attention = shape.heads, attention, trains_attention
        self.norm, self.q, self.kv = nn.LayerNorm(hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, 2 * hidden)
        self.out = nn.Linear(hidden, hidden)
        self.mlp = nn.Sequential(
            nn.LayerNorm(hidden), nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden)
        )

    def forward(self, x, context=None, mask=None):
        normed = self.norm(x)
        k, v = self.kv(normed if context is None else torch.cat([context, normed], 1)).chunk(2, -1)
        parts = [part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.q(normed), k, v)]
        if self.attention is None:
            attended = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        else:
            if not self.trains_attention:  # flex_attention has no backward on the CPU
                parts = [part.detach() for part in parts]
            attended = self.attention(*parts, block_mask=mask)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(x)


class Target:
    """The frozen model, and what it reads."""

    def __init__(self, device):
        self.shape = SHAPES[device.type]
        layers = [Layer(self.shape) for _ in range(self.shape.layers)]
        self.model = nn.Sequential(*layers).to(device, self.shape.dtype).requires_grad_(False)
        self.device = device

    def hidden(self):
        """Returns the hidden states of a new text."""
        x = torch.randn(1, self.shape.sequence, self.shape.hidden, device=self.device, dtype=self.shape.dtype)
        with torch.no_grad():
            return self.model(x)


class Drafter(nn.Module):
    """The trained model."""

    def __init__(self, shape, attention, *, trains_attention):
        super().__init__()
        self.shape, self.start = shape, nn.Parameter(torch.randn(shape.block, shape.hidden) * 0.02)
        layers = (Layer(shape, attention, trains_attention=trains_attention) for _ in range(shape.layers))
        self.layers = nn.ModuleList(layers)

    def forward(self, context, mask):
        x = self.start.repeat(self.shape.anchors, 1).expand(context.shape[0], -1, -1)
        for layer in self.layers:
            x = layer(x, context, mask)
        return x


def mask_for(shape, anchors):
    """Returns the block mask for ``anchors``."""
    context, block = shape.sequence, shape.block

    def mask_mod(_b, _h, q, kv):
        before = kv < anchors[q // block]
        own = (kv >= context) & ((kv - context) // block == q // block)
        return before | own

    queries = shape.anchors * block
    return create_block_mask(mask_mod, None, None, queries, context + queries, device=str(anchors.device))


def trainer(attention, device, seed):
    """Returns a function that makes one step from a target's hidden states, and returns the loss."""
    shape = SHAPES[device.type]
    model = Drafter(shape, attention, trains_attention=device.type != "cpu").to(device, shape.dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    generator = torch.Generator(device).manual_seed(1000 + seed)
    following = torch.arange(shape.block, device=device)

    def step(hidden):
        context = hidden.to(device)
        high = shape.sequence - shape.block
        anchors = torch.randint(1, high, (shape.anchors,), device=device, generator=generator).sort().values
        wanted = context[:, (anchors[:, None] + following).flatten()]
        loss = nn.functional.mse_loss(model(context, mask_for(shape, anchors)), wanted)
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step

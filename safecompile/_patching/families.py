"""Families of patches: what is good only together, and which module each part waits for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import NamedTuple

from .patches import Patch

Build = Callable[[ModuleType], "list[Patch]"]


class Part(NamedTuple):
    """What is patched when one module of the host is imported, and the family that it belongs to."""

    family: str
    module: str
    build: Build


class Family:
    """Patches that are good only together. ``required``: without them nothing is installed."""

    def __init__(self, name: str, parts: list[Part], *, required: bool = False) -> None:
        self.name, self.parts, self.required = name, parts, required
        self.applied: list[tuple[Part, list[Patch]]] = []
        self.problem: str | None = None

    def has(self, part: Part) -> bool:
        """Tells whether ``part`` has been applied."""
        return any(one is part for one, _ in self.applied)

    def state(self) -> str:
        """Returns ``"on"``, ``"waiting"`` (for an import of the host's) or ``"off: <why>"``."""
        if self.problem is not None:
            return f"off: {self.problem}"
        return "on" if len(self.applied) == len(self.parts) else "waiting"


def by_name(parts: Iterable[Part], required: Iterable[str]) -> list[Family]:
    """Returns the families of ``parts``, nothing of them applied, in the order in which each is first named."""
    found: dict[str, list[Part]] = {}
    for part in parts:
        found.setdefault(part.family, []).append(part)
    return [Family(name, members, required=name in required) for name, members in found.items()]

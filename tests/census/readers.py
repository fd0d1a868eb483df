"""Who reads a place: the functions of torch whose code names it."""

from __future__ import annotations

import types
from collections import defaultdict
from collections.abc import Iterable, Iterator

from .looking import Landscape


def readers(landscape: Landscape, places: Iterable[str], most: int = 3) -> dict[str, list[str]]:
    """Returns for each place ``file: function`` of some functions that name it, those of its own module first."""
    wanted = defaultdict(list)
    for place in places:
        wanted[_last(place)].append(place)
    found: dict[str, list[tuple[bool, str]]] = defaultdict(list)
    for function in landscape.code.owners:
        for name in wanted.keys() & set(_names(function.__code__)):
            for place in wanted[name]:
                file = function.__code__.co_filename.partition("site-packages/")[2]
                if file:
                    near = place.startswith(f"{function.__module__}.")
                    found[place].append((not near, f"{file}: {function.__qualname__}"))
    return {place: [text for _, text in sorted(set(found[place]))[:most]] for place in found}


def _last(place: str) -> str:
    """Returns the name that code has for a place."""
    name = place.replace("[]", "").removesuffix(".__code__").removesuffix("()").split("(")[0]
    return name.rpartition(".")[2].strip("<>")


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    yield from code.co_freevars
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)

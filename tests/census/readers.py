"""Who reads a place: the functions of torch whose code names it."""

from __future__ import annotations

import re
import sys
import types
from collections import defaultdict
from collections.abc import Iterable, Iterator

from .looking import Landscape


def readers(landscape: Landscape, places: Iterable[str], most: int = 3) -> dict[str, list[str]]:
    """Returns for each place ``file: function`` of functions that name it: most of its parts, in its own module."""
    parts = {place: set(_parts(place)) for place in places}
    by_part = defaultdict(set)
    for place, names in parts.items():
        for name in names:
            by_part[name].add(place)
    found: dict[str, list[tuple[int, bool, str]]] = defaultdict(list)
    for function in landscape.code.owners:
        file = function.__code__.co_filename.partition("site-packages/")[2]
        named = by_part.keys() & set(_names(function.__code__)) if file else ()
        for place in set().union(*(by_part[name] for name in named)):
            near = place.startswith(f"{function.__module__}.")
            found[place].append((-len(parts[place] & named), not near, f"{file}: {function.__qualname__}"))
    return {place: [text for _, _, text in sorted(set(found[place]))[:most]] for place in found}


def _parts(place: str) -> Iterator[str]:
    """Yields the names that stand after the module's: of the variable or class, and of what hangs on it."""
    names = place.split(".")
    length = next((n for n in range(len(names) - 1, 0, -1) if ".".join(names[:n]) in sys.modules), 0)
    for part in names[length:]:
        name = re.sub(r"\(.*\)|\[\]|[<>]", "", part)
        if name not in ("locals", "__code__", "data", "refs", "values", "") and not name.startswith("__safecompile"):
            yield name


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    yield from code.co_freevars
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)

"""Which of a hundred thousand objects were written to, in a millisecond: read from CPython's memory.

CPython 3.10 and 3.11 count each write to a dictionary in the dictionary itself. Other Pythons don't, and nothing here
is used then: each look takes a hundred times as long.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import types
from collections.abc import Sequence
from typing import Any

import numpy as np

READABLE = sys.implementation.name == "cpython" and sys.version_info < (3, 12)
#: Where the count stands in a dictionary, in bytes (``ma_version_tag``).
COUNT = 24


class _Memory:
    """All of the process's memory as one array; only what is indexed is read."""

    def __init__(self, begin: int, words: int) -> None:
        self.__array_interface__ = {"data": (begin, True), "shape": (words,), "typestr": "<u8", "version": 3}


class Words:
    """One word in each of many objects, which must live as long as this."""

    def __init__(self, owners: Sequence[Any], offset: int) -> None:
        found = [gc.get_referents(one)[0] if type(one) is types.MappingProxyType else one for one in owners]
        addresses = np.array([id(one) + offset for one in found], dtype=np.int64)
        begin = int(addresses.min())
        self._memory = np.asarray(_Memory(begin, (int(addresses.max()) - begin) // 8 + 1))
        self._indices = (addresses - begin) // 8
        self._words = self._memory[self._indices]

    def written(self) -> list[int]:
        """Returns the positions of those that are not as at the last call, or at the beginning."""
        now = self._memory[self._indices]
        found = np.nonzero(now != self._words)[0]
        self._words = now
        return [int(i) for i in found]


def offset_of(owner: Any, part: Any) -> int:
    """Returns where in an object the pointer to a part of it stands, in bytes."""
    words = (ctypes.c_uint64 * (type(owner).__basicsize__ // 8)).from_address(id(owner))
    return list(words).index(id(part)) * 8

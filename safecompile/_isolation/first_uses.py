"""Threads that are the first to need Dynamo: one imports it, the others wait for that import and hold no lock.

The wait is CPython's own, for the lock of the module ``torch._dynamo``. So CPython sees it too where imports wait for
each other, and goes on as in plain torch; a lock of the library's own in between would hide that circle from it.
"""

from __future__ import annotations

from types import ModuleType
from typing import Final

from .._patching.families import Part
from .._patching.first_calls import FirstCallPatch
from .._patching.patches import Patch
from .._torch import dynamo, first_uses

#: Those that wait for their first call.
_waiting: list[FirstCallPatch] = []


def patches(module: ModuleType) -> list[Patch]:
    """Returns the patches that have Dynamo imported first; changes nothing."""
    if dynamo.loaded(dynamo.DYNAMO) is not None:
        return []
    found = [FirstCallPatch(one, first_uses.import_dynamo, when) for one, when in first_uses.functions_of(module)]
    _waiting.extend(found)
    return list(found)


def patches_of_dynamo(module: ModuleType) -> list[Patch]:  # noqa: ARG001 - it is there, which is what matters
    """Returns what takes the patches away once Dynamo is there; changes nothing."""
    return [_Needless()]


class _Needless:
    """Dynamo is there: every function is torch's own again, so that Dynamo may trace it."""

    def apply(self) -> None:
        while _waiting:
            _waiting.pop().revert()

    def revert(self) -> str | None:
        return None


PARTS: Final = (
    Part("first uses", dynamo.DYNAMO, patches_of_dynamo),
    *(Part("first uses", module, patches) for module in first_uses.MODULES),
)

"""One key for a Triton kernel, whichever process compiles it.

Inductor compiles kernels in worker processes, and in its own process until those are ready. The workers take the
``ptxas`` that torch brings, its own process that of Triton until it has compiled once, and Triton remembers the version
(2.11). It is a part of the key in Triton's cache: what the first thread had compiled, the same function's backward on
the next device did not find, and compiled again (3 s). Here torch's own choice is made beforehand.
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import Final

from .._patching.families import Part
from .._patching.patches import Patch
from .._torch import cuda_graphs as host

VARIABLE: Final = "TRITON_PTXAS_PATH"


def patches_of_compile_tasks(module: ModuleType) -> list[Patch]:
    """Returns the patch; changes nothing."""
    host.choice_of_ptxas(module)
    return [_PtxasPatch(module)]


class _PtxasPatch:
    """Sets ``TRITON_PTXAS_PATH`` as torch does at the first kernel, unless the user has set it."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module
        self.chosen: str | None = None

    def apply(self) -> None:
        if VARIABLE not in os.environ:
            choose = host.choice_of_ptxas(self.module)
            getattr(choose, "cache_clear", lambda: None)()  # torch makes it once
            choose()
            self.chosen = os.environ.get(VARIABLE)

    def revert(self) -> str | None:
        if self.chosen is not None and os.environ.get(VARIABLE) == self.chosen:
            del os.environ[VARIABLE]
            getattr(host.choice_of_ptxas(self.module), "cache_clear", lambda: None)()
        return None


PARTS: Final = (Part("triton keys", host.COMPILE_TASKS, patches_of_compile_tasks),)

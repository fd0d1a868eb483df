"""``torch.export``, ``torch.export.load`` and custom operators' contexts: each thread has its own of what they note.

In plain torch it is noted for the process: of two exports at once one fails, as does the second of two loads, and a
fake implementation that asks for its context gets that of another thread's.
"""

from __future__ import annotations

import threading
from types import ModuleType
from typing import Any, Final

from .._patching.families import Part
from .._patching.patches import Patch
from .._patching.thread_globals import thread_local_globals
from .._torch import export as host


class _Local(threading.local):
    """The per-thread values; a thread begins with what a process begins with."""


# In the class: a signal handler may come in the middle of a thread's first use.
for _name, _value in host.initial_values().items():
    setattr(_Local, _name, _value)

local: Any = _Local()


def patches_of_trace(module: ModuleType) -> list[Patch]:
    """Returns the patches for what an export knows of its module; changes nothing."""
    return thread_local_globals(module, host.OF_AN_EXPORT, local)


def patches_of_serialize(module: ModuleType) -> list[Patch]:
    """Returns the patches for ``torch.export.load``; changes nothing."""
    return thread_local_globals(module, [host.DESERIALIZER], local)


def patches_of_fake_impl(module: ModuleType) -> list[Patch]:
    """Returns the patches for the contexts of fake implementations; changes nothing."""
    setattr(_Local, host.CONTEXT_GETTER, staticmethod(host.context_getter(module)))
    return thread_local_globals(module, [host.CONTEXT_GETTER], local)


PARTS: Final = (
    Part("export", host.TRACE, patches_of_trace),
    Part("export", host.SERIALIZE, patches_of_serialize),
    Part("custom operators", host.FAKE_IMPL, patches_of_fake_impl),
)

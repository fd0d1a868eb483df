"""safecompile makes torch.compile safe to use from several threads of one process.

Two ways in::

    from safecompile import safe_compile
    fast = safe_compile(fn)              # instead of torch.compile(fn)

    import safecompile.patch_all         # first in the program: covers every torch.compile in the process

Who waits for whom:

- One thread traces at a time in a process (torch's own compile lock, held for one trace, its backend and its guards).
- While one thread compiles a function for a device, the others that want the same wait for its result and use it.
- A call for another device waits at most for the trace, never for another device's result.
- A call that finds its compiled code waits for nothing, and costs what it costs in plain torch.
- With ``max_wait_s`` a call that has waited for so long runs uncompiled, this once, unless it must be compiled.
- Symbolic traces (``torch.fx.symbolic_trace``, ``make_fx``) wait for nobody, and nobody else sees them.

Importing this package changes nothing and does not import torch. ``install()`` puts the patches in,
``uninstall()`` brings the originals back, ``is_installed()`` tells. Environment: ``SAFECOMPILE_DISABLE=1`` makes
everything plain torch, ``SAFECOMPILE_STRICT=1`` makes every patch that does not fit the installed torch an error,
``SAFECOMPILE_MAX_WAIT_S=1`` lets a call that has waited for so long run uncompiled, this once,
``SAFECOMPILE_RANKS_MAY_DIFFER=1`` does so beside a process group too,
``SAFECOMPILE_WAIT_WARNING_S=60`` sets after how many seconds a waiting thread logs what it waits for,
``SAFECOMPILE_CUDA_GRAPH_THREADS=16`` how many threads may have CUDA graphs, and ``SAFECOMPILE_SETTINGS=0`` keeps the
settings of other threads out of a compile. ``SAFECOMPILE_PROGRESS=1`` shows a live line while something compiles.

To see what happens: ``report()``, ``record()`` and ``events.subscribe()``, ``timeline(path)``, ``progress()``, and, for
plain torch, ``watch()``; docs/debugging.md tells when to use which.
"""

from __future__ import annotations

# The package must cost next to nothing where it is only passed through: no import of typing, which takes longest.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ._api import safe_compile
    from ._common.errors import (
        HostMismatchError,
        InstallError,
        LateInstallWarning,
        RecompileError,
        SafeCompileError,
        SafeCompileWarning,
    )
    from ._engine.progress import progress
    from ._installing.installer import install, is_installed, uninstall
    from ._warmup import warmup
    from .events import record
    from .tools.report import report
    from .tools.timeline import timeline
    from .tools.watch import watch

__version__ = "0.1.0"

__all__ = [
    "HostMismatchError",
    "InstallError",
    "LateInstallWarning",
    "RecompileError",
    "SafeCompileError",
    "SafeCompileWarning",
    "install",
    "is_installed",
    "progress",
    "record",
    "report",
    "safe_compile",
    "timeline",
    "uninstall",
    "warmup",
    "watch",
]

_HOMES = {
    "safe_compile": "_api",
    "warmup": "_warmup",
    "install": "_installing.installer",
    "uninstall": "_installing.installer",
    "is_installed": "_installing.installer",
    "record": "events",
    "progress": "_engine.progress",
    "report": "tools.report",
    "timeline": "tools.timeline",
    "watch": "tools.watch",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "events":
        return import_module(f"{__name__}.events")
    if name not in __all__:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(import_module(f"{__name__}.{_HOMES.get(name, '_common.errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

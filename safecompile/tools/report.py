"""``python -m safecompile report``: what a bug report should tell about this machine."""

from __future__ import annotations

import json
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any


def report() -> dict[str, Any]:
    """Installs the patches, compiles one small function, and returns versions and the state of each patch family."""
    import torch

    import safecompile

    from .._common import environment
    from .._installing import installer

    problem = None
    try:
        safecompile.install()
        # A compile without C++ or Triton: it imports what the patches wait for, and shows whether they fit.
        torch.compile(lambda x: x + 1, backend="aot_eager")(torch.ones(2))
        import torch.nn.attention.flex_attention
    except Exception as error:  # noqa: BLE001  a report tells of it
        problem = f"{type(error).__name__}: {error}"
    return {
        "safecompile": safecompile.__version__,
        "torch": torch.__version__,
        "wrapt": _version("wrapt"),
        "python": sys.version,
        "platform": platform.platform(),
        "cuda": torch.version.cuda,
        "cuda_devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "installed": safecompile.is_installed(),
        "disabled": environment.is_disabled(),
        "families": installer.state(),
        "problem": problem,
    }


def run() -> int:
    """Prints the report as JSON."""
    print(json.dumps(report(), indent=2))
    return 0


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None

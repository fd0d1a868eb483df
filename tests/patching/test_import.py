"""What an import of the package costs, and what it must not import."""

from __future__ import annotations

from pathlib import Path

from .processes import passes_without_torch

# Processor time, and the best of some fresh processes: what the machine does besides only adds.
MEASURE = """
    import sys, time
    began = time.process_time()
    import {module}
    print(time.process_time() - began)
    loaded = [name for name in sys.modules if name.partition(".")[0] == "torch"]
    assert not loaded, loaded
"""


def imports_s(byte_code: Path, *modules: str) -> list[float]:
    """Returns the seconds that each import takes with its byte code at hand, whatever this environment says of it.

    In turns: a machine that is busy for a while is so for all of them.
    """
    variables = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(byte_code)}
    rounds = [
        [float(passes_without_torch(MEASURE.format(module=one), **variables)) for one in modules] for _ in range(8)
    ]
    return [min(times) for times in zip(*rounds, strict=True)]


def test_import_of_the_package_is_cheap(tmp_path):
    """It takes 15 ms at most, and does not import torch."""
    assert imports_s(tmp_path, "safecompile") < [0.015]


def test_import_of_patch_all_is_cheap(tmp_path):
    """It takes 150 ms at most, without torch. On a machine where wrapt alone takes more than 75 ms, twice wrapt's."""
    took, wrapt = imports_s(tmp_path, "safecompile.patch_all", "wrapt")
    assert took < max(0.150, 2 * wrapt), f"patch_all takes {took * 1e3:.0f} ms, wrapt alone {wrapt * 1e3:.0f} ms"


def test_import_of_the_package_changes_nothing():
    """``import safecompile`` alone, after torch, leaves every object of torch as it is and imports no Dynamo."""
    passes_without_torch(
        """
    import sys
    import torch
    from tests.patching.snapshots import differences, snapshot
    before, modules = snapshot(), set(sys.modules)
    import safecompile
    assert dir(safecompile) and not safecompile.is_installed()
    new = {name for name in set(sys.modules) - modules if name.startswith("torch")}
    assert not new, new
    assert not differences(before, snapshot())
    """
    )


def test_patch_all_imports_no_part_of_torch_early():
    """With torch imported, patch_all imports neither torch._dynamo nor torch._inductor nor flex_attention."""
    passes_without_torch(
        """
    import sys
    import torch
    before = set(sys.modules)
    import safecompile.patch_all
    new = {name for name in set(sys.modules) - before if name.startswith("torch")}
    assert not new, new
    assert safecompile._installing.installer.state()["miss"] == "waiting"
    f = safecompile.safe_compile(lambda x: x + 1, backend="eager")
    f(torch.ones(1))
    assert safecompile._installing.installer.state()["miss"] == "on"
    """
    )

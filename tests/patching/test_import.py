"""What an import of the package costs, and what it must not import."""

from __future__ import annotations

import pytest

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


@pytest.mark.parametrize(("module", "limit_s"), [("safecompile", 0.015), ("safecompile.patch_all", 0.150)])
def test_import_is_cheap(module, limit_s):
    """The package imports in 15 ms, patch_all before torch in 150 ms, and neither imports torch."""
    best = min(float(passes_without_torch(MEASURE.format(module=module))) for _ in range(5))
    assert best < limit_s, f"import {module} takes {best * 1e3:.1f} ms"


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
    assert safecompile._install.state()["miss"] == "waiting"
    f = safecompile.safe_compile(lambda x: x + 1, backend="eager")
    f(torch.ones(1))
    assert safecompile._install.state()["miss"] == "on"
    """
    )

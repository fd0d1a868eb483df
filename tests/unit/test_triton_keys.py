"""The ptxas that Triton is to use is chosen before the first kernel, in every process alike."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType

import pytest
import torch

from safecompile._isolation import triton_keys
from tests.helpers.threads import in_fresh_process


@pytest.mark.parametrize("side", ["plain", "safe"])
def test_the_choice_is_made_when_inductor_is_imported(side: str) -> None:
    """Plain torch makes it at the first kernel, when Triton may have noted the version of its own."""
    brought = Path(torch.__file__).parent / "bin" / "ptxas"
    script = f"""
    import os
    {"import safecompile.patch_all" if side == "safe" else ""}
    import torch._inductor.async_compile
    print(os.environ.get("TRITON_PTXAS_PATH", "none"))
    """
    done = in_fresh_process(script)
    assert done.returncode == 0, done.stderr
    chosen = str(brought) if side == "safe" and brought.exists() else "none"
    assert done.stdout.split()[-1] == os.environ.get("TRITON_PTXAS_PATH", chosen)


def test_the_users_own_choice_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("compile_tasks")
    module._set_triton_ptxas_path = lambda: os.environ.update({triton_keys.VARIABLE: "torch's"})  # type: ignore[attr-defined]
    (patch,) = triton_keys.patches_of_compile_tasks(module)
    monkeypatch.setenv(triton_keys.VARIABLE, "mine")
    patch.apply()
    patch.revert()
    assert os.environ[triton_keys.VARIABLE] == "mine"
    monkeypatch.delenv(triton_keys.VARIABLE)
    patch.apply()
    assert os.environ[triton_keys.VARIABLE] == "torch's"
    patch.revert()
    assert triton_keys.VARIABLE not in os.environ


def test_a_release_without_the_choice() -> None:
    with pytest.raises(LookupError, match="_set_triton_ptxas_path"):
        triton_keys.patches_of_compile_tasks(ModuleType("compile_tasks"))

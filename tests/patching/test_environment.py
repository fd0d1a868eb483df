"""The environment variables, and an interpreter that the library refuses."""

from __future__ import annotations

from .processes import passes


def test_disable_is_plain_torch():
    """With SAFECOMPILE_DISABLE=1 nothing is patched by any way in, and safe_compile is torch.compile."""
    passes(
        """
    import torch, torch._dynamo.convert_frame
    from tests.patching.snapshots import differences, snapshot
    before = snapshot()
    import safecompile.patch_all
    safecompile.install()
    f = safecompile.safe_compile(lambda x: x + 1, backend="eager")
    assert not safecompile.is_installed()
    changed = differences(before, snapshot())
    assert not changed, changed
    assert torch.equal(f(torch.ones(1)), torch.ones(1) + 1)
    safecompile.uninstall()
    """,
        SAFECOMPILE_DISABLE="1",
    )


def test_without_the_gil_a_clear_error():
    """install() and safe_compile() refuse an interpreter that runs without its lock, and patch nothing."""
    passes(
        """
    import sys
    import torch
    sys._is_gil_enabled = lambda: False
    import safecompile
    for call in (safecompile.install, lambda: safecompile.safe_compile(lambda x: x)):
        try:
            call()
        except safecompile.InstallError as error:
            assert "PYTHON_GIL=1" in str(error) and "Nothing is patched" in str(error), error
        else:
            raise AssertionError("no error")
        assert not safecompile.is_installed()
    try:
        import safecompile.patch_all
    except safecompile.InstallError:
        pass
    sys._is_gil_enabled = lambda: True
    safecompile.install()
    assert safecompile.is_installed()
    """
    )

"""What somebody else has patched after us."""

from __future__ import annotations

import pytest

from .processes import passes

PROGRAM = """
    import warnings
    import torch, torch._dynamo.convert_frame as convert_frame, torch.fx._symbolic_trace as symbolic_trace
    import safecompile
    wrapper = convert_frame.CatchErrorsWrapper
    before = wrapper.__call__
    safecompile.install()
    {patch}
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        safecompile.uninstall()
    texts = [str(one.message) for one in seen if issubclass(one.category, safecompile.SafeCompileWarning)]
    assert len(texts) == 1 and {name!r} in texts[0], texts
    assert seen[0].filename == "<program>", "the warning must point at the caller"
    {check}
    assert not safecompile.is_installed()
    f = torch.compile(lambda x: x.sin(), backend="eager")
    assert torch.equal(f(torch.ones(2)), torch.ones(2).sin())
    torch.fx.symbolic_trace(torch.nn.Linear(1, 1))
    assert torch.nn.Module.__call__ is torch.nn.Module._wrapped_call_impl
    safecompile.install()
    {again}
"""

#: A method that somebody has wrapped is wrapped again; a function that is not what its source says does not fit.
RUNS = "assert torch.equal(f(torch.ones(3)), torch.ones(3).sin())"
REFUSES = """
    try:
        f(torch.ones(3))
    except safecompile.HostMismatchError as error:
        assert "_new_patcher" in str(error)
    else:
        raise AssertionError("installed beside a foreign patch of code that is to be recompiled")
"""

METHOD = """
    ours, calls = wrapper.__call__, []
    def theirs(self, *args, **kwargs):
        calls.append(1)
        return ours(self, *args, **kwargs)
    wrapper.__call__ = theirs
"""
CODE = """
    theirs = symbolic_trace._new_patcher.__wrapped__.__code__.replace(co_firstlineno=1)
    symbolic_trace._new_patcher.__wrapped__.__code__ = theirs
"""


@pytest.mark.parametrize(
    ("patch", "name", "check", "again"),
    [
        (METHOD, "CatchErrorsWrapper.__call__", "assert wrapper.__call__ is theirs", RUNS),
        (CODE, "_new_patcher", "assert symbolic_trace._new_patcher.__wrapped__.__code__ is theirs", REFUSES),
    ],
    ids=["method", "code"],
)
def test_a_later_patch_is_left_alone(patch, name, check, again):
    """uninstall() keeps it, names it in one warning, takes the rest out, and torch goes on working."""
    passes(PROGRAM.format(patch=patch.strip(), name=name, check=check, again=again.strip()))


def test_a_patch_that_is_undone_before_is_nothing():
    """A foreign patch that has come and gone leaves no warning and the original."""
    passes(
        """
    import warnings
    import torch, torch._dynamo.convert_frame as convert_frame
    import safecompile
    before = convert_frame.CatchErrorsWrapper.__call__
    safecompile.install()
    ours = convert_frame.CatchErrorsWrapper.__call__
    convert_frame.CatchErrorsWrapper.__call__ = lambda *args: ours(*args)
    convert_frame.CatchErrorsWrapper.__call__ = ours
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        safecompile.uninstall()
    assert convert_frame.CatchErrorsWrapper.__call__ is before
    """
    )

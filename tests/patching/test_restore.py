"""uninstall() brings back the very objects that were there."""

from __future__ import annotations

from .processes import passes
from .snapshots import PATCHED_MODULES

SETUP = """
    import sys
    import torch
    import safecompile, safecompile._installing.installer
    from tests.patching.snapshots import differences, identities, snapshot
"""


def test_uninstall_restores_every_object_in_torch():
    """Modules, classes, code, defaults, cells and attributes of all of torch are the same objects as before."""
    out = passes(
        SETUP
        + """
    before = snapshot()
    for _ in range(2):
        safecompile.install()
        state = safecompile._installing.installer.state()
        assert set(state.values()) == {"on"}, state
        changed = differences(before, snapshot())
        assert len(changed) > 20, changed
        safecompile.uninstall()
        after = snapshot()
        assert not differences(before, after), differences(before, after)
        assert not identities(before, after), identities(before, after)
    print(sorted({key.split("'")[1] for key in changed}))
    """
    )
    for name in ("torch._dynamo.convert_frame", "torch.fx._symbolic_trace", "torch.fx.traceback"):
        assert name in out


def test_uninstall_restores_after_work():
    """Compiles, symbolic traces and backward passes in between leave no patch behind."""
    passes(
        SETUP
        + """
    from torch.fx.experimental.proxy_tensor import make_fx
    model = torch.nn.Linear(2, 2)

    def work():
        x = torch.ones(2, 2)
        torch.compile(model, backend="aot_eager")(x).sum().backward()
        torch.compile(lambda x: x.sin(), backend="eager")(x)
        torch.fx.symbolic_trace(model)
        make_fx(lambda x: x.cos())(x)

    work()  # the first use of torch imports and fills much by itself
    kept = lambda name: name in KEPT
    before = snapshot(kept)
    safecompile.install()
    work()
    safecompile.uninstall()
    own = [one for one in identities(before, snapshot(kept)) if "attribute" not in one]
    assert not own, own
    work()
    assert torch.nn.Module.__call__ is torch.nn.Module._wrapped_call_impl
    """.replace("KEPT", repr(PATCHED_MODULES))
    )


def test_compiled_functions_survive_uninstall():
    """What was compiled under the patches runs without them, without another compile, and compiles for new shapes."""
    passes(
        """
    import safecompile, torch
    from torch._dynamo.testing import CompileCounter
    counter = CompileCounter()
    f = safecompile.safe_compile(lambda x: x.sin() + 1, backend=counter, dynamic=False)
    x = torch.ones(3)
    f(x)
    code, cells = f.__code__, f.__closure__
    safecompile.uninstall()
    assert torch.equal(f(x), x.sin() + 1) and counter.frame_count == 1
    assert torch.equal(f(torch.ones(4)), torch.ones(4).sin() + 1) and counter.frame_count == 2
    safecompile.install()
    assert torch.equal(f(x), x.sin() + 1) and counter.frame_count == 2
    assert torch.equal(f(torch.ones(5)), torch.ones(5).sin() + 1) and counter.frame_count == 3
    """
    )


def test_an_exception_after_uninstall_is_the_users():
    """A function compiled under the patches raises what it raises, also when the patches are gone."""
    passes(
        """
    import safecompile, torch
    safecompile.install()

    def refuses(x):
        if x.shape[0] == 3:
            raise ValueError("mine")
        return x + 1

    f = torch.compile(refuses, backend="eager")
    f(torch.ones(2))
    safecompile.uninstall()
    try:
        f(torch.ones(3))
    except ValueError as error:
        assert str(error) == "mine"
    else:
        raise AssertionError("nothing was raised")
    """
    )


def test_wrappers_that_exist_are_put_back():
    """A wrapper made before install() gets its own code object back, one made between keeps working."""
    passes(
        """
    import safecompile, torch
    early = torch.compile(lambda x: x + 1, backend="eager")
    plain = early.__code__
    defaults, cells = early.__defaults__, early.__closure__
    held = [cell.cell_contents for cell in cells]
    safecompile.install()
    between = torch.compile(lambda x: x + 2, backend="eager")
    assert early.__code__ is not plain and between.__code__ is early.__code__
    safecompile.uninstall()
    assert early.__code__ is plain and early.__defaults__ is defaults and early.__closure__ is cells
    assert all(a is b.cell_contents for a, b in zip(held, cells))
    assert between.__code__ is plain, "a wrapper made under the patches keeps patched code"
    assert torch.equal(between(torch.ones(1)), torch.ones(1) + 2)
    """
    )

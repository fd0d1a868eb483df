"""Every order of importing torch, importing safecompile.patch_all, installing, uninstalling and importing Dynamo.

One process imports torch (or does not) and forks for each order, which is as good as a fresh one and much faster:
nothing is installed, compiled or started before the fork.
"""

from __future__ import annotations

import pytest

from .processes import passes_without_torch

STEPS = {
    "torch": "import torch",
    "dynamo": "import torch._dynamo",
    "flex": "import torch.nn.attention.flex_attention",
    "patch_all": "import safecompile.patch_all",
    "install": "import safecompile; safecompile.install()",
    "uninstall": "import safecompile; safecompile.uninstall()",
}

BEFORE_TORCH = [
    "patch_all torch dynamo",
    "patch_all dynamo",
    "patch_all flex",
    "install install torch",
    "patch_all uninstall torch dynamo",
    "patch_all uninstall install dynamo",
    "install uninstall install uninstall dynamo",
]

AFTER_TORCH = [
    "patch_all install uninstall dynamo",
    "patch_all dynamo install uninstall",
    "dynamo patch_all install uninstall install",
    "install uninstall dynamo patch_all install",
    "install install uninstall install dynamo",
    "dynamo patch_all uninstall flex",
    "flex install dynamo",
]

PROGRAM = """
    import importlib, os, sys, traceback, warnings
    STEPS, ORDERS = {steps!r}, {orders!r}
    for module in {beforehand!r}:
        importlib.import_module(module)

    def layers():
        import torch._dynamo.convert_frame as convert_frame, torch.fx._symbolic_trace as symbolic_trace
        function, ours = convert_frame.CatchErrorsWrapper.__call__, 0
        while function is not None:
            ours += "safecompile" in function.__code__.co_filename
            function = getattr(function, "__wrapped__", None)
        found = [ours, int("__safecompile_local__" in vars(symbolic_trace))]
        return found

    def run(order):
        warnings.filterwarnings("error", message=".*safecompile")
        for step in order.split():
            exec(STEPS[step])
            if "torch" not in order.split()[: order.split().index(step) + 1] and not {beforehand!r}:
                if step in ("patch_all", "install", "uninstall"):
                    early = [m for m in sys.modules if m.partition(".")[0] == "torch"]
                    assert not early or "dynamo" in order.split()[: order.split().index(step)], early
        import safecompile, safecompile._installing.installer as installer, torch
        last = [step for step in order.split() if step in ("patch_all", "install", "uninstall")]
        # A second import of patch_all does nothing; the first one installs.
        want = last[-1] != "uninstall"
        assert safecompile.is_installed() is want
        x = torch.ones(2)
        f = torch.compile(lambda x: x.sin() + 1, backend="eager")
        assert torch.equal(f(x), x.sin() + 1)
        import torch.nn.attention.flex_attention, torch._functorch.aot_autograd
        assert layers() == [int(want), int(want)], layers()
        state = installer.state()
        late = ("cuda graphs", "kernels", "draws", "export", "captures", "operators", "builtins")
        for name in late if want else ():
            assert state.pop(name) in ("on", "waiting"), state  # for Inductor or an export, slow imports
        assert set(state.values()) == ({{"on"}} if want else {{"off: not installed"}}), state
        safecompile.uninstall()
        assert layers() == [0, 0], layers()
        assert torch.equal(f(torch.ones(3)), torch.ones(3).sin() + 1)

    bad = 0
    for order in ORDERS:
        child = os.fork()
        if not child:
            try:
                run(order)
            except BaseException:
                print("ORDER", order, file=sys.stderr)
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        bad += os.waitpid(child, 0)[1] != 0
    sys.exit(bad > 0)
"""


@pytest.mark.parametrize(
    ("orders", "beforehand"),
    [(BEFORE_TORCH, []), (AFTER_TORCH, ["torch"])],
    ids=["torch-not-imported", "torch-imported"],
)
def test_every_order(orders, beforehand):
    """Patched once and only once, in every order; after the last uninstall nothing of it is left."""
    passes_without_torch(PROGRAM.format(steps=STEPS, orders=orders, beforehand=beforehand), timeout_s=110)

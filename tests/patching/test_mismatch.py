"""A torch that lacks what a family of patches relies on: nothing half patched, and said at the right moment."""

from __future__ import annotations

import textwrap

import pytest

from .processes import passes, passes_without_torch
from .snapshots import PATCHED_MODULES

REFUSES = """
import safecompile
f = torch.compile(lambda x: x.sin(), backend="eager")
for _ in range(2):  # each compile refuses, not only the first
    try:
        f(torch.ones(1))
    except safecompile.HostMismatchError as error:
        assert error.family == {family!r}, error.family
        assert torch.__version__ in str(error) and "Nothing is patched" in str(error), error
    else:
        raise AssertionError("compiled unprotected")
assert "on" not in safecompile._installing.installer.state().values(), safecompile._installing.installer.state()
"""
BEFORE = (
    """
import wrapt
def break_it(module):
{breakage}
# Runs in front of safecompile's own import hooks, so the module is wrong from the beginning.
wrapt.register_post_import_hook(break_it, {module!r})
import safecompile.patch_all
import torch, {module}
"""
    + REFUSES
)
AFTER = (
    """
def break_it(module):
{breakage}
break_it(sys.modules[{module!r}])
before = snapshot(kept)
safecompile.install()
changed = [key for key in patches(before, snapshot(kept)) if "CatchErrorsWrapper" not in key]
assert not changed, changed
"""
    + REFUSES
    + """
safecompile.uninstall()
left = patches(before, snapshot(kept))
assert not left, left
"""
)
IMPORTED = f"""
import sys, warnings
import torch
import safecompile, safecompile._installing.installer
from tests.patching.snapshots import patches, snapshot
kept = lambda name: name in {PATCHED_MODULES!r}
"""

RENAMED_PARAMETER = """
def call(self, frame, entry, frame_state): return plain(self, frame, entry, frame_state)
plain, module.CatchErrorsWrapper.__call__ = module.CatchErrorsWrapper.__call__, call
"""
OTHER_CODE = """
function = {function}
function.__code__ = function.__code__.replace(co_consts=(*function.__code__.co_consts, "changed"))
"""
RENAMED = "owner = {owner}; owner.renamed = owner.{name}; del owner.{name}"
TRACE, META = "torch.fx._symbolic_trace", "torch.fx.traceback"

#: What is wrong -> (family, module, how it is made wrong, "before" if it is tried before torch is imported as well).
CASES = {
    "a parameter is renamed": ("miss", "torch._dynamo.convert_frame", RENAMED_PARAMETER, "before"),
    "a function is gone": ("miss", "torch._dynamo.convert_frame", "del module.compute_cache_size", ""),
    "a wrapper runs other code": (
        "miss",
        "torch._dynamo.eval_frame",
        OTHER_CODE.format(function="module._TorchDynamoContext.__call__"),
        "before",
    ),
    "a patcher runs other code": ("fx", TRACE, OTHER_CODE.format(function="module._new_patcher.__wrapped__"), "before"),
    "patch_method is renamed": ("fx", TRACE, RENAMED.format(owner="module._Patcher", name="patch_method"), ""),
    "patch is renamed": ("fx", TRACE, RENAMED.format(owner="module._Patcher", name="patch"), ""),
    "Tracer.trace is renamed": ("fx", TRACE, RENAMED.format(owner="module.Tracer", name="trace"), ""),
    "the current patcher is renamed": ("fx", TRACE, RENAMED.format(owner="module", name="CURRENT_PATCHER"), ""),
    "the metadata is renamed": ("fx", META, RENAMED.format(owner="module", name="current_meta"), ""),
    "the tracer of make_fx is renamed": (
        "fx",
        "torch.fx.experimental.proxy_tensor",
        RENAMED.format(owner="module", name="_CURRENT_MAKE_FX_TRACER"),
        "",
    ),
}

BREAK_BACKWARD = """
import torch._functorch._aot_autograd.runtime_wrappers as module
for name in ("_AutogradBackwardCompiler", "AOTDispatchAutograd"):
    if name in vars(module):
        setattr(module, "_other" + name, vars(module)[name])
        delattr(module, name)
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    safecompile.install()
    safecompile.install()
texts = [str(one.message) for one in seen if issubclass(one.category, safecompile.SafeCompileWarning)]
"""
OTHER_FAMILY = {
    "warns": BREAK_BACKWARD
    + """
assert len(texts) == 1 and "'backward'" in texts[0] and "SAFECOMPILE_STRICT" in texts[0], texts
state = safecompile._installing.installer.state()
assert state.pop("backward").startswith("off: ") and set(state.values()) == {"on"}, state
assert torch.equal(torch.compile(lambda x: x.sin(), backend="eager")(torch.ones(1)), torch.ones(1).sin())
""",
    "strict": "import os; os.environ['SAFECOMPILE_STRICT'] = '1'\n"
    + BREAK_BACKWARD
    + "assert not texts, texts\n"
    + REFUSES.format(family="backward"),
}


def _program(text: str, case: str) -> str:
    family, module, breakage, _ = CASES[case]
    return text.format(breakage=textwrap.indent(breakage.strip("\n"), "    "), module=module, family=family)


@pytest.mark.parametrize("case", CASES)
def test_a_required_family_that_does_not_fit(case):
    """install() raises nothing and changes nothing; each compile raises HostMismatchError; uninstall() ends that."""
    passes(IMPORTED + _program(AFTER, case))


@pytest.mark.parametrize("case", [case for case in CASES if CASES[case][3]])
def test_a_required_family_that_does_not_fit_at_the_import(case):
    """With patch_all before torch no import raises, and each compile does."""
    passes_without_torch(_program(BEFORE, case))


def test_another_family_warns_once_and_is_off():
    """A mismatch outside miss and FX is one warning that names the family; the rest is in and works."""
    passes(IMPORTED + OTHER_FAMILY["warns"])


def test_strict_makes_every_family_required():
    """With SAFECOMPILE_STRICT=1 each compile raises for any family; still no import and no install() does."""
    passes(IMPORTED + OTHER_FAMILY["strict"])

"""References that were taken before the installation and that it can't reach are named."""

from __future__ import annotations

import pytest

from tests.helpers.nursery import in_forked_process
from tests.helpers.threads import in_fresh_process

PROGRAM = """
import sys, types, warnings
import torch, torch._dynamo
early = types.ModuleType("early")
exec({taken!r}, vars(early))
sys.modules["early"] = early
import safecompile
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    safecompile.install()
    safecompile.uninstall()
    safecompile.install()
print([(w.category.__name__, "early." in str(w.message)) for w in seen])
"""


@pytest.mark.parametrize(
    ("taken", "warnings"),
    [
        ("from torch._dynamo.convert_frame import compute_cache_size", "[('LateInstallWarning', True)]"),
        ("from torch.fx._symbolic_trace import is_fx_tracing", "[]"),
        ("from torch.nn.attention.flex_attention import flex_attention, create_block_mask", "[]"),
    ],
)
def test_what_is_not_protected_is_named_once(taken, warnings):
    """A name that is replaced in torch is named, once; what is changed in place needs no word."""
    done = in_forked_process(PROGRAM.format(taken=taken))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == warnings


FROZEN = """
import gc
import torch, torch._dynamo
early = torch.compile(lambda x: x + 1, backend="eager")
own = early.__code__
import safecompile
if {before}:
    gc.freeze()
safecompile.install()
assert early.__code__ is torch.compile(lambda x: x, backend="eager").__code__ is not own
early(torch.ones(2))
if not {before}:
    gc.freeze()
safecompile.uninstall()
assert early.__code__ is torch.compile(lambda x: x, backend="eager").__code__ is own
assert gc.get_freeze_count()
assert torch.compile(lambda x: x + 2, backend="eager")(torch.ones(2)).tolist() == [3.0, 3.0]
"""


@pytest.mark.parametrize("before", [True, False])
def test_gc_freeze_hides_nothing(before):
    """What ``gc.freeze()`` has put aside, as servers do before they fork, is protected, and restored."""
    done = in_forked_process(FROZEN.format(before=before))
    assert done.returncode == 0, done.stderr


def test_what_a_module_takes_over_at_its_import_is_torchs_own_afterwards() -> None:
    """The patches come before torch; ``torch._dynamo`` then imports names that are patched by then."""
    done = in_fresh_process(
        """
        import safecompile.patch_all
        import torch._dynamo
        import safecompile

        torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
        safecompile.uninstall()
        for module in (torch._dynamo, torch._dynamo.eval_frame):
            assert module._reset_guarded_backend_cache.__code__.co_filename == torch._dynamo.eval_frame.__file__, module
            assert not hasattr(module.reset_code, "__code__"), module
        """
    )
    assert done.returncode == 0, done.stderr

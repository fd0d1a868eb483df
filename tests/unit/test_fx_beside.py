"""What a thread sees and does while another is in the middle of a trace, and the same in plain torch."""

from __future__ import annotations

import math
from types import ModuleType

import pytest
import torch._dynamo

from tests.helpers.threads import in_fresh_process

from .test_fx_scenes import SCENES, check_modules


@pytest.fixture(autouse=True)
def modules_are_modules(installed):
    yield
    check_modules()
    assert type(math) is ModuleType, "the module is left changed"


@pytest.mark.parametrize("name", SCENES)
def test_scene(name):
    """Each scene ends as its docstring says."""
    torch._dynamo.reset()
    SCENES[name][0]()


@pytest.fixture(scope="module")
def plain() -> dict[str, str]:
    """What each scene says in plain torch: each in a fork of a fresh process, since it may leave torch broken."""
    done = in_fresh_process(
        """
        import os, sys
        from tests.unit.test_fx_scenes import SCENES
        for name, (scene, fixed) in SCENES.items():
            sys.stdout.flush()
            child = os.fork()
            if not child:
                try:
                    scene()
                    print(name, "passes", flush=True)
                except BaseException as error:
                    print(name, "fails", type(error).__name__, str(error).split("\\n")[0], flush=True)
                os._exit(0)
            os.waitpid(child, 0)
        """,
        timeout_s=110,
        TORCHDYNAMO_VERBOSE="0",
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split(" ", 1) for line in done.stdout.splitlines()]
    return {words[0]: words[1] for words in lines if len(words) == 2 and words[0] in SCENES}


@pytest.mark.parametrize("name", SCENES)
def test_red_twin(name, plain):
    """Plain torch fails in the same scene."""
    if SCENES[name][1]():
        pytest.skip("this torch has it right by itself")
    assert plain[name].startswith("fails"), plain[name]

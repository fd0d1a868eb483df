"""Each script of this folder as a test; only with ``-m stress``."""

from __future__ import annotations

import pytest

from .runner import SKIP, run, scripts


@pytest.mark.timeout(600)
@pytest.mark.parametrize("script", scripts(), ids=lambda script: script.stem)
def test_script(script):
    """The script ends with exit code 0."""
    code, output = run(script, 5.0)
    if code == SKIP:
        pytest.skip(output.strip())
    assert code == 0, output

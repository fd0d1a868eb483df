"""What several files of this folder need."""

from __future__ import annotations

import pytest
import torch._dynamo

from safecompile import install, uninstall


@pytest.fixture(params=["safe", "plain"])
def side(request):
    """With the library, and the red twin in plain torch."""
    torch._dynamo.reset()
    install() if request.param == "safe" else uninstall()
    yield request.param
    torch._dynamo.reset()
    uninstall()

"""What several files of this folder need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch._dynamo

from safecompile import install, is_installed, uninstall
from safecompile._common import telling


@pytest.fixture(autouse=True)
def nothing_is_left():
    """Frees what a reset beside other threads (pytest's own timer is one) has left, once the patches are out."""
    yield
    if not is_installed():
        torch._dynamo.reset()


@pytest.fixture
def installed() -> Iterator[None]:
    """The patches are in; afterwards they are out, and nothing is compiled."""
    install()
    yield
    torch.compiler.reset()
    uninstall()


@pytest.fixture
def nobody_listens() -> Iterator[None]:
    """After the test nobody listens to events: without a listener nothing is made."""
    yield
    assert telling.listeners == []


@pytest.fixture(params=["safe", "plain"])
def side(request):
    """With the library, and the red twin in plain torch."""
    torch._dynamo.reset()
    install() if request.param == "safe" else uninstall()
    yield request.param
    torch._dynamo.reset()
    uninstall()

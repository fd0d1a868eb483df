"""What several files of this folder need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch._dynamo

from safecompile import install, is_installed, uninstall
from safecompile._common import telling

FOLDER = Path(__file__).parent

#: Whether the next test goes on with the library in.
STAYS = pytest.StashKey[bool]()


def _has_it_in(item: pytest.Item) -> bool:
    """Tells whether a test begins with the library's patches in."""
    side = item.callspec.params.get("side") if isinstance(item, pytest.Function) and hasattr(item, "callspec") else None
    return side == "safe" or (side is None and "installed" in getattr(item, "fixturenames", ()))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In each file, tests with the library come first: to put it in and out for each takes longer than most tests."""
    here = [item for item in items if item.path.parent == FOLDER]
    files = {path: number for number, path in enumerate(dict.fromkeys(item.path for item in here))}
    ordered = iter(sorted(here, key=lambda item: (files[item.path], not _has_it_in(item))))
    items[:] = [next(ordered) if item.path.parent == FOLDER else item for item in items]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Says whether the next test goes on with the library in."""
    item.stash[STAYS] = nextitem is not None and nextitem.path.parent == FOLDER and _has_it_in(nextitem)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Takes out what a test that was to go on with the library, and was skipped, has left in."""
    if is_installed() and not _has_it_in(item):
        uninstall()


@pytest.fixture(autouse=True)
def nothing_is_left():
    """Frees what a reset beside other threads (pytest's own timer is one) has left, once the patches are out."""
    yield
    if not is_installed():
        torch._dynamo.reset()


@pytest.fixture
def installed(request: pytest.FixtureRequest) -> Iterator[None]:
    """The patches are in; afterwards nothing is compiled, and they are out unless the next test has them in."""
    install()
    yield
    torch.compiler.reset()
    if not request.node.stash[STAYS]:
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
    if not request.node.stash[STAYS]:
        uninstall()

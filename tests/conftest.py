"""What holds for every test: the versions in the header, the marks of a folder, a private cache of Inductor's."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from tests import slow

TESTS = Path(__file__).parent


def pytest_report_header() -> str:
    return f"torch {version('torch')}, wrapt {version('wrapt')}, threads switch every {sys.getswitchinterval():g} s"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    names = slow.names()
    for item in items:
        if slow.name_of(item.nodeid) in names:
            item.add_marker("slow")
        folder = item.path.relative_to(TESTS).parts[0]
        if folder in ("stress", "programs"):
            item.add_marker(folder)


@pytest.fixture(scope="session", autouse=True)
def inductor_cache() -> Iterator[None]:
    """Gives the run, and the processes it starts, an empty Inductor cache: what another run left can't pass a test."""
    with tempfile.TemporaryDirectory(prefix="safecompile-inductor-", ignore_cleanup_errors=True) as folder:
        old, os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.environ.get("TORCHINDUCTOR_CACHE_DIR"), folder
        yield
        if old is None:
            del os.environ["TORCHINDUCTOR_CACHE_DIR"]
        else:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = old

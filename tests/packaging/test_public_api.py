"""The interface is what ``public_api.txt`` says, and the version is what CHANGELOG.md has."""

from __future__ import annotations

import re
from pathlib import Path

import safecompile

from . import public_api

HERE = Path(__file__).parent


def test_the_interface_is_what_is_written():
    """Names, signatures, variables and commands change on purpose only."""
    written = (HERE / "public_api.txt").read_text()
    assert public_api.text() == written, "python -m tests.packaging.public_api > tests/packaging/public_api.txt"


def test_each_public_name_says_what_threads_may_do():
    """What can be called has a docstring with a line on thread safety."""
    for name in safecompile.__all__:
        value = getattr(safecompile, name)
        assert value.__doc__, name
        if callable(value) and not isinstance(value, type):
            assert "Thread safety:" in value.__doc__, name


def test_the_variables_stand_in_the_readme():
    """Each environment variable and each public name is told of in the README, where there is one."""
    readme = HERE.parents[1] / "README.md"
    if readme.exists():
        told = readme.read_text()
        missing = [name for name in (*public_api.variables(), *safecompile.__all__) if name not in told]
        assert not missing


def test_the_change_log_begins_with_this_version():
    """A release can be cut: the newest section has this version, and a date or "unreleased"."""
    log = HERE.parents[1] / "CHANGELOG.md"
    if log.exists():
        newest = re.search(r"^## \[(\d\S*)\] - (\S+)$", log.read_text(), re.MULTILINE)
        assert newest
        assert newest[1] == safecompile.__version__
        assert newest[2] == "unreleased" or re.fullmatch(r"\d{4}-\d\d-\d\d", newest[2])

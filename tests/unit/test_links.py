"""Errors and warnings point to a part of docs/debugging.md that is there."""

from __future__ import annotations

import logging
import pickle
import re
from pathlib import Path

import pytest

import safecompile
from safecompile._common import events
from tests.helpers.threads import ROOT

LINK = re.compile(r"docs/debugging\.md(?:#([a-z-]+))?")


def headings() -> set[str]:
    lines = (ROOT / "docs" / "debugging.md").read_text(encoding="utf-8").splitlines()
    titles = [line.lstrip("# ").lower() for line in lines if line.startswith("#")]
    return {re.sub(r"[^a-z0-9 -]", "", title).replace(" ", "-") for title in titles}


def test_each_link_leads_somewhere() -> None:
    """Each part of docs/debugging.md that the library names is one of its headings."""
    texts = [path.read_text(encoding="utf-8") for path in Path(str(safecompile.__file__)).parent.rglob("*.py")]
    found = {part for text in texts for part in LINK.findall(text) if part}
    assert found
    assert found <= headings()


@pytest.mark.parametrize(
    "error",
    [
        safecompile.SafeCompileError("said"),
        safecompile.InstallError("said"),
        safecompile.HostMismatchError("fx", "said", "2.0"),
        safecompile.SafeCompileWarning("said"),
        safecompile.LateInstallWarning("said"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_link(error: Exception) -> None:
    """Each error and warning ends with the link, once, also after pickle."""
    for one in (error, pickle.loads(pickle.dumps(error))):
        assert len(LINK.findall(str(one))) == 1
        assert "said" in str(one)


def test_log_messages_link(caplog: pytest.LogCaptureFixture) -> None:
    """Each WARNING of the log has the link."""
    code = headings.__code__
    events._told_of.clear()
    with caplog.at_level(logging.WARNING, "safecompile"):
        events.warn_of_wait(code, "cpu", 61.0, None)
        events.warn_of_wrapping(code, "sqrt")
        events.warn_of_backward_without_compiled_autograd()
        events.warn_of_changing_container(code, RuntimeError("changed"))
        events.warn_of_uncompiled(code, "cpu", 1.0)
        events.warn_of_wait_without_limit(code, "it is a test")
    events._told_of.clear()
    assert len(caplog.records) == 6
    assert all(LINK.search(record.getMessage()) for record in caplog.records)

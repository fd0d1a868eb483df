"""Some of the scenes, with ``-m census``: five minutes. ``python -m tests.census`` runs them all, parked more often."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .runner import Runner, scene_names, told_unclassified

pytestmark = [pytest.mark.census, pytest.mark.timeout(500)]


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner(stops=80) as made:
        yield made


@pytest.mark.parametrize("scene", scene_names(quick=True))
def test_what_another_thread_sees_is_classified(runner: Runner, scene: str) -> None:
    """In the middle of a scene nothing differs but what is isolated behind its name, harmless or a known issue."""
    result = runner.look(scene)
    if "absent" in result:
        pytest.skip(result["absent"])
    assert "failed" not in result, result["failed"]
    unclassified = told_unclassified({k: {**v, "scenes": [scene]} for k, v in result["found"].items()})
    assert not unclassified, "in no class of tests/census/classified.py:\n" + "\n".join(unclassified)

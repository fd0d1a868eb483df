"""Settings that a thread changes for a while: other threads' compiles do not see them, and nothing stays behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
from torch._dynamo import config
from torch.nn.attention.flex_attention import flex_attention
from torch.utils import _config_module

from tests.helpers.threads import run_threads


@pytest.fixture(autouse=True)
def settings_as_before() -> Iterator[None]:
    before = {name: getattr(config, name) for name in NAMES}
    yield
    for name, value in before.items():
        if getattr(config, name) != value:
            setattr(config, name, value)


NAMES = ("recompile_limit", "accumulated_recompile_limit", "allow_empty_graphs", "verbose")


def is_right(side: str) -> bool:
    """Since torch 2.12 a setting is a context variable."""
    return side == "safe" or hasattr(_config_module, "ContextVar")


def overlapping(first: Any, second: Any) -> None:
    """Enters ``first`` in one thread, ``second`` in another, and leaves them in the same order."""
    entered, inside, left = threading.Event(), threading.Event(), threading.Event()

    def one() -> None:
        with first():
            entered.set()
            assert inside.wait(30)
        left.set()

    def other() -> None:
        assert entered.wait(30)
        with second():
            inside.set()
            assert left.wait(30)

    run_threads([one, other], 60)


@pytest.mark.parametrize("kind", ["patch", "limit"])
def test_changes_that_overlap_leave_nothing_behind(side: str, kind: str) -> None:
    """Two threads that change a setting for a while, and leave in the order in which they came."""
    changes = {
        "patch": lambda: config.patch(recompile_limit=3),
        "limit": torch._dynamo.utils.disable_cache_limit,
    }
    before = config.recompile_limit
    overlapping(changes[kind], changes[kind])
    assert (config.recompile_limit == before) == is_right(side)


def test_a_compile_sees_its_own_threads_patches_only(side: str) -> None:
    """While one thread is inside config.patch, a compile in another sees the value without it, and its own patches."""
    seen: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        seen.append((config.verbose, config.recompile_limit))
        return graph.forward

    before = config.verbose
    limit = config.recompile_limit
    inside, done = threading.Event(), threading.Event()

    def patches() -> None:
        with config.patch(verbose=not before, recompile_limit=limit + 1):
            inside.set()
            assert done.wait(30)
            torch.compile(lambda x: x + 2, backend=backend)(torch.ones(1))

    def compiles() -> None:
        assert inside.wait(30)
        with config.patch("recompile_limit", limit + 2):
            torch.compile(lambda x: x + 1, backend=backend)(torch.ones(1))
        done.set()

    run_threads([patches, compiles], 60)
    assert (seen == [(before, limit + 2), (not before, limit + 1)]) == is_right(side)
    assert config.verbose == before


@pytest.mark.usefixtures("installed")
def test_the_forms_of_patch() -> None:
    """config.patch as a decorator, by name, by dictionary, nested, with an unknown name and with an alias."""
    limit = config.recompile_limit

    @config.patch({"recompile_limit": limit + 1})
    def nested() -> tuple[int, int]:
        with config.patch("recompile_limit", limit + 2):
            inner = config.recompile_limit
        return inner, config.recompile_limit

    assert nested() == (limit + 2, limit + 1)
    if not hasattr(_config_module, "ContextVar"):
        assert run_threads([nested] * 4) == [(limit + 2, limit + 1)] * 4
    with config.patch(cache_size_limit=limit + 3):
        assert config.recompile_limit == limit + 3
    with pytest.raises((AttributeError, KeyError)), config.patch(no_such_setting=1):
        pass
    with pytest.raises(ZeroDivisionError), config.patch(recompile_limit=limit + 4):
        raise ZeroDivisionError
    assert config.recompile_limit == limit
    digest = config.get_hash()
    with config.patch(verbose=not config.verbose):
        assert config.get_hash() is not None
    assert config.get_hash() == digest


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("installed")
def test_eager_flex_attention_in_threads_leaves_nothing_behind() -> None:
    """Eager flex_attention lifts the limits for its own compile; afterwards they are as they were."""
    before = [getattr(config, name) for name in NAMES]
    q = torch.ones(1, 1, 16, 16)
    run_threads([lambda: flex_attention(q, q, q)] * 6, 100)
    assert [getattr(config, name) for name in NAMES] == before

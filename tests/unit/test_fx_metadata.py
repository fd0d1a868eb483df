"""FX's traceback metadata and current patcher belong to the thread that traces."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
import torch.fx
import torch.fx.traceback as fx_traceback

from safecompile._torch import cache
from tests.helpers.nursery import in_forked_process
from tests.helpers.threads import run_threads

WAIT_S = 30.0
needs_annotate = pytest.mark.skipif(not hasattr(fx_traceback, "annotate"), reason="this torch has no annotate")


@pytest.fixture(autouse=True)
def nothing_left(installed):
    yield
    assert fx_traceback.get_current_meta() == {}
    assert not fx_traceback.has_preserved_node_meta()


class elsewhere:
    """A block that runs while ``function``, in another thread, is in the middle: it calls what it is given there."""

    def __init__(self, function: Any) -> None:
        self.function, self.error = function, None
        self.inside, self.go = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _middle(self) -> None:
        self.inside.set()
        assert self.go.wait(WAIT_S)

    def _run(self) -> None:
        try:
            self.function(self._middle)
        except BaseException as error:
            self.error = error
            self.inside.set()

    def __enter__(self) -> None:
        self.thread.start()
        assert self.inside.wait(WAIT_S)

    def __exit__(self, *raised: object) -> None:
        self.go.set()
        self.thread.join(WAIT_S)
        if raised[0] is None and self.error is not None:
            raise self.error


def custom(graph: Any) -> list[Any]:
    return [node.meta.get("custom") for node in graph.graph.nodes if node.op.startswith("call")]


def preserved_meta() -> None:
    """preserve_node_meta and set_current_meta of one thread are not seen by another."""
    node = torch.fx.Graph().placeholder("x")
    node.meta["stack_trace"] = "of another thread"

    def other(middle):
        with fx_traceback.preserve_node_meta(), fx_traceback.set_current_meta(node):
            assert fx_traceback.get_current_meta()["stack_trace"] == "of another thread"
            middle()
            assert fx_traceback.get_current_meta()["stack_trace"] == "of another thread"
            assert fx_traceback.has_preserved_node_meta()

    with elsewhere(other):
        assert not fx_traceback.has_preserved_node_meta()
        assert fx_traceback.get_current_meta() == {}
        with fx_traceback.preserve_node_meta():
            graph = torch.fx.symbolic_trace(lambda x: x.sin())
        assert "of another thread" not in str([node.meta for node in graph.graph.nodes])
        assert not fx_traceback.has_preserved_node_meta()
    assert not fx_traceback.has_preserved_node_meta()


def annotations() -> None:
    """Annotate of one thread marks the nodes of its own trace and of no other."""
    inner: list[Any] = []

    def other(middle):
        def traced(x):
            with fx_traceback.annotate({"whose": "other"}):
                x = x.sin()
                middle()
                return x.cos()

        with fx_traceback.preserve_node_meta():
            inner.append(torch.fx.symbolic_trace(traced))

    def mine(x):
        with fx_traceback.annotate({"whose": "mine"}):
            return x.exp().log()

    with elsewhere(other), fx_traceback.preserve_node_meta():
        assert custom(torch.fx.symbolic_trace(lambda x: x.exp())) == [None]
        assert custom(torch.fx.symbolic_trace(mine)) == [{"whose": "mine"}] * 2
    assert custom(inner[0]) == [{"whose": "other"}] * 2


def test_preserved_meta():
    """preserve_node_meta and set_current_meta of one thread are not seen by another."""
    preserved_meta()


@needs_annotate
def test_annotations():
    """Annotate of one thread marks the nodes of its own trace and of no other."""
    annotations()


@needs_annotate
def test_annotations_of_compiled_code():
    """Annotate inside a compiled function still reaches the backend's graph, also beside other threads that trace."""
    got: list[Any] = []

    def backend(module, inputs):
        got.append(custom(module))
        return module.forward

    def annotated(x):
        with fx_traceback.annotate({"whose": "mine"}):
            return x.exp()

    def other(middle):
        with fx_traceback.preserve_node_meta(), fx_traceback.annotate({"whose": "other"}):
            middle()

    with elsewhere(other), fx_traceback.preserve_node_meta():
        torch.compile(annotated, backend=backend, fullgraph=True)(torch.ones(2))
    plain = in_forked_process(
        """
        import torch, torch.fx.traceback as fx_traceback
        def backend(module, inputs):
            print([node.meta.get("custom") for node in module.graph.nodes if node.op.startswith("call")])
            return module.forward
        def annotated(x):
            with fx_traceback.annotate({"whose": "mine"}):
                return x.exp()
        with fx_traceback.preserve_node_meta():
            torch.compile(annotated, backend=backend, fullgraph=True)(torch.ones(2))
        """
    )
    assert plain.stdout.strip() == str(got[0]), plain.stdout + plain.stderr


def test_many_threads():
    """Eight threads that annotate and trace at once each find their own marks, in their own graphs."""
    if not hasattr(fx_traceback, "annotate"):
        pytest.skip("this torch has no annotate")

    def job(index):
        def traced(x):
            with fx_traceback.annotate({"thread": index}):
                for _ in range(index + 1):
                    x = x.sin()
            return x

        def work():
            for _ in range(30):
                with fx_traceback.preserve_node_meta():
                    graph = torch.fx.symbolic_trace(traced)
                assert custom(graph) == [{"thread": index}] * (index + 1)

        return work

    run_threads([job(index) for index in range(8)])


def test_compiled_code_that_preserves_it():
    """A compiled function that turns it on itself is compiled once: its guards hold after the backend's own use."""

    def function(x):
        with fx_traceback.preserve_node_meta():
            return x + 1

    def in_a_thread():
        return torch.compile(function, backend="aot_eager")(torch.ones(1)).item()

    torch._dynamo.reset()
    assert [in_a_thread(), *run_threads([in_a_thread, in_a_thread])] == [2, 2, 2]
    assert len(cache.cache_entries(function.__code__)) == 1


@pytest.mark.parametrize("scene", ["preserved_meta", "annotations"])
def test_red_twin(scene):
    """In plain torch the metadata of one thread is seen by the others."""
    if scene == "annotations" and not hasattr(fx_traceback, "annotate"):
        pytest.skip("this torch has no annotate")
    done = in_forked_process(
        f"""
        from tests.unit import test_fx_metadata
        try:
            test_fx_metadata.{scene}()
        except BaseException as error:
            print("fails", type(error).__name__, error)
        """
    )
    assert done.stdout.startswith("fails"), done.stdout + done.stderr

"""The README's two lists: what is safe has tests beside it, what is not safe is a known issue or said on the spot."""

from __future__ import annotations

import re

import pytest

from tests.helpers.threads import ROOT

UNIT = "tests/unit"
#: How each sentence of the left list begins, and tests that hold it.
SAFE = {
    "first calls, recompiles": (
        "test_miss_herd.py::test_one_compile_for_each_of_six_static_shapes",
        "test_miss_frames.py::test_each_kind_of_frame_compiles_as_often_as_for_one_thread",
    ),
    "backward passes": ("test_miss_backward.py::test_the_first_backward_of_many_threads_is_compiled_once",),
    "`symbolic_trace` and `make_fx`": (
        "test_fx_overlap.py::test_every_order_of_three_traces_and_a_compile",
        "test_fx_beside.py::test_scene",
    ),
    "`flex_attention`": ("test_flex.py::test_eager_and_compiled_in_threads_beside_traces_and_compiles",),
    "`is_compiling()`": (
        "test_state.py::test_is_compiling_is_true_in_the_compiling_thread_alone",
        "test_state.py::test_a_stance_as_context_is_its_threads_own",
        "test_switches.py::test_a_dispatch_mode_of_another_thread_hinders_no_compile",
        "test_switches.py::test_the_active_ddp_module_of_another_thread_splits_no_graph",
    ),
    "random numbers drawn": (
        "test_who_changed.py::test_what_a_thread_draws_and_sets_beside_a_compile_is_kept",
        "test_reset.py::test_a_loop_of_resets_beside_calls",
        "test_miss_fork.py::test_a_data_loader_with_forked_workers",
    ),
    "CUDA graphs": ("test_cuda_graphs.py::test_each_thread_has_trees_of_its_own",),
}
#: How each sentence of the right list begins, and the known issue, where it is one.
NOT_SAFE = {
    "your data": "An argument that another thread changes during a trace",
    "two traces at once": "One trace at a time",
    "`torch.export`": "Exporting beside other threads",
    "a backend or collective": "Waits inside a compile",
    "a Python without the GIL": "Python without the global interpreter lock",
    "a compiled backward": "Compiled backwards in several threads",
    "random numbers drawn on a device": "Random numbers beside a capture",
}


def _lists() -> tuple[list[str], list[str]]:
    rows = re.findall(r"^> \| (.+) \| (.+) \|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert rows[0][0].startswith("Safe")
    assert rows[0][1].startswith("Not made safe")
    left, right = zip(*rows[1:], strict=True)
    return [cell for cell in left if cell.strip()], [cell for cell in right if cell.strip()]


@pytest.mark.parametrize(("side", "table"), [(0, SAFE), (1, NOT_SAFE)])
def test_each_sentence_is_in_the_table(side: int, table) -> None:
    """A new sentence needs its tests or its known issue; one that has gone leaves the table."""
    sentences = _lists()[side]
    for sentence in sentences:
        assert sum(sentence.startswith(begin) for begin in table) == 1, sentence
    assert len(sentences) == len(table)


@pytest.mark.parametrize("test", [test for tests in SAFE.values() for test in tests])
def test_what_is_called_safe_has_a_test(test: str) -> None:
    """The test is there, under the name that stands in the table."""
    file, name = test.split("::")
    assert re.search(rf"^def {name}\b", (ROOT / UNIT / file).read_text(), re.MULTILINE)


def test_what_is_not_safe_is_a_known_issue() -> None:
    """Each has a heading of docs/known-issues.md."""
    headings = re.findall("^## (.*)$", (ROOT / "docs" / "known-issues.md").read_text(), re.MULTILINE)
    assert set(NOT_SAFE.values()) <= set(headings)

"""What README and docs promise is there: tests for what is safe, an entry for what is not, names, numbers, links."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import safecompile
from tests.helpers.threads import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
RESULTS = ROOT / "benchmarks" / "results"

#: How each line of "What becomes safe" begins, and tests that hold it.
SAFE = {
    "First calls, recompiles": (
        "test_miss_herd.py::test_one_compile_for_each_of_six_static_shapes",
        "test_miss_frames.py::test_each_kind_of_frame_compiles_as_often_as_for_one_thread",
    ),
    "Backward passes": ("test_miss_backward.py::test_the_first_backward_of_many_threads_is_compiled_once",),
    "`symbolic_trace`, `make_fx`, `torch.export`": (
        "test_fx_overlap.py::test_every_order_of_three_traces_and_a_compile",
        "test_fx_beside.py::test_scene",
        "test_exports.py::test_many_exports_at_once",
        "test_exports.py::test_a_first_call_beside_an_export",
        "test_exports.py::test_loads_at_once",
    ),
    "`flex_attention`": ("test_flex.py::test_eager_and_compiled_in_threads_beside_traces_and_compiles",),
    "Modes and flags": (
        "test_state.py::test_is_compiling_is_true_in_the_compiling_thread_alone",
        "test_state.py::test_a_stance_as_context_is_its_threads_own",
        "test_switches.py::test_a_dispatch_mode_of_another_thread_hinders_no_compile",
        "test_switches.py::test_the_active_ddp_module_of_another_thread_splits_no_graph",
        "test_default_device.py::test_threads_with_a_device_each",
        "test_forward_ad.py::test_many_transforms_at_once",
    ),
    "Random numbers and settings": ("test_who_changed.py::test_what_a_thread_draws_and_sets_beside_a_compile_is_kept",),
    "`torch.compiler.reset()`": ("test_reset.py::test_a_loop_of_resets_beside_calls",),
    "CUDA graphs": ("test_cuda_graphs.py::test_each_thread_has_trees_of_its_own", "test_kernel_launches.py"),
    "Forked children and DataLoader workers": ("test_miss_fork.py::test_a_data_loader_with_forked_workers",),
}

#: How each line of "What stays your duty" begins, and its entry in docs/known-issues.md.
NOT_SAFE = {
    "Checkpointed regions with dropout": "Random numbers that a backward draws once more, up to torch 2.12",
    "Your own data.": "An argument that another thread changes during a trace",
    "The module that you export.": "Exporting beside other threads",
    "No waiting inside a compile.": "Waits inside a compile",
    "Forks.": "A fork while threads call compiled functions",
    "Random numbers on a GPU during a capture.": "Random numbers beside a capture",
    "CUDA graphs that you capture by hand": "Kernels that are tuned beside captures made by hand",
    "Inductor called directly": "Inductor without `torch.compile`",
}


def section(title: str) -> str:
    found = re.search(rf"^##+ {re.escape(title)}\n(.*?)(?=^## |\Z)", README, re.DOTALL | re.MULTILINE)
    assert found, title
    return found[1]


def lines_of(title: str) -> list[str]:
    return [line.replace("**", "") for line in re.findall(r"^- (.*)$", section(title), re.MULTILINE)]


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize(
    ("title", "table"), [("What becomes safe", SAFE), ("What stays your duty", NOT_SAFE)], ids=["safe", "not safe"]
)
def test_each_line_is_in_the_table(title, table) -> None:
    """A new line needs its tests or its known issue; one that has gone leaves the table."""
    lines = lines_of(title)
    for line in lines:
        assert sum(line.startswith(begin) for begin in table) == 1, line
    assert len(lines) == len(table)


@pytest.mark.parametrize("test", [test for tests in SAFE.values() for test in tests])
def test_what_is_called_safe_has_a_test(test: str) -> None:
    """The test is there, under the name that stands in the table."""
    file, _, name = test.partition("::")
    assert re.search(rf"^def {name or 'test_'}", (ROOT / "tests" / "unit" / file).read_text(), re.MULTILINE)


def test_what_is_not_safe_is_a_known_issue() -> None:
    """Each has a heading of docs/known-issues.md."""
    headings = re.findall("^## (.*)$", (ROOT / "docs" / "known-issues.md").read_text(), re.MULTILINE)
    assert set(NOT_SAFE.values()) <= set(headings)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_link_leads_somewhere(page: Path) -> None:
    """Files and headings that a page links to are there."""
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


def test_every_name_and_variable_is_there() -> None:
    """README names all that is public, and all that the environment may say."""
    reference = section("Reference")
    assert [name for name in [*safecompile.__all__, "events"] if f"`{name}" not in reference] == []
    package = Path(str(safecompile.__file__)).parent
    sources = "".join(path.read_text(encoding="utf-8") for path in package.rglob("*.py"))
    variables = set(re.findall(r"\bSAFECOMPILE_[A-Z_]*[A-Z]\b", sources))
    assert set(re.findall(r"^\| `(SAFECOMPILE_\w+)", reference, re.MULTILINE)) == variables


def test_every_family_is_in_the_table() -> None:
    """docs/design.md leads from each family to its patches, facts and tests, which are there."""
    from safecompile._installing.families import all_families

    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8").partition("## What each part costs")[2]
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| ")]
    table = {line[0].strip(): line for line in lines[1:]}
    assert set(table) == {family.name for family in all_families()}
    for name, (_, patches, _, facts, tests, _, _) in table.items():
        for file in re.findall(r"`([\w.*/]+)`", patches):
            assert any(ROOT.glob(f"safecompile/_[ei]*/{file}")), (name, file)
        for file in re.findall(r"`([\w.*/]+)`", facts):
            assert (ROOT / "safecompile" / "_torch" / file).exists(), (name, file)
        for file in re.findall(r"`([\w.*/]+)`", tests):
            assert any(ROOT.glob(f"tests/unit/{file}")) or any(ROOT.glob(f"tests/{file}")), (name, file)


def test_the_example_runs() -> None:
    """The first example runs as it stands, here with a backend that needs no compiler."""
    code = re.findall(r"```python\n(.*?)```", section("Use"), re.DOTALL)[0]
    changed = code.replace("(64, 64))", '(64, 64), backend="eager")')
    assert changed != code
    space: dict[str, object] = {}
    try:
        exec(changed, space)
    finally:
        safecompile.uninstall()
    assert len(space["answers"]) == 100


def test_numbers_are_those_of_the_results() -> None:
    """Each number of "What it costs" is in the file that it names."""
    text = section("What it costs")
    words = " ".join(text.split())

    def result(benchmark: str):
        (name,) = set(re.findall(rf"{benchmark}-[\w.-]+?\.json", text))
        return json.loads((RESULTS / name).read_text())

    counted = result("call_overhead")["instructions"]
    assert f"{counted['safe']['median'] / counted['plain']['median'] - 1:.1%}".replace("%", " %") in words
    rows = {
        row["variant"]: (row["compiles"], row["eager_calls"], round(row["last_first_result_s"], 1))
        for row in result("cold_start")["table"]
        if (row["backend"], row["shapes"], row["threads"]) == ("staged", 6, 32)
    }
    found = re.findall(r"^\|.*?\| (\d+).*?\| (\d+) \| ([\d.]+) s \|$", text, re.MULTILINE)
    said = [(int(compiles), int(eager), float(seconds)) for compiles, eager, seconds in found]
    assert said == [rows[name] for name in ("plain", "rlock in first call", "rlock in every call", "safe")]

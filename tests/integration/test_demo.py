"""``python -m safecompile``: what it prints, what it refuses, and how it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from safecompile.tools import _child, _table

ROOT = Path(__file__).parents[2]


def _run(*arguments: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "safecompile", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--threads", "0"], "--threads"),
        (["--threads", "two"], "--threads"),
        (["--workload", "nothing"], "--workload"),
        (["--time-limit", "-1"], "--time-limit"),
        (["--time-limit", "nan"], "--time-limit"),
        (["--device", "toaster"], "toaster"),
        (["--device", "cuda:x"], "cuda:x"),
        (["--device", "cuda:999"], "cuda:999"),
        (["--unknown"], "--unknown"),
    ],
)
def test_a_bad_argument_gives_one_sentence_and_exit_code_2(arguments: list[str], named: str) -> None:
    """A bad argument is named in one line on stderr, nothing runs, and the exit code is 2."""
    done = _run("demo", *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert named in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_help_has_an_example() -> None:
    """``demo --help`` names each workload and shows a command to copy, within 100 columns."""
    done = _run("demo", "--help")
    assert done.returncode == 0
    for word in ("tracing", "server", "drafters", "python -m safecompile demo --workload"):
        assert word in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100


def test_tracing_fails_in_plain_torch_and_not_here() -> None:
    """``demo --workload tracing --json``: plain torch raises or is wrong, the safe side is right, the exit code 0."""
    done = _run("demo", "--workload", "tracing", "--threads", "4", "--device", "cpu", "--json", timeout_s=200)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert set(document) == {
        "safecompile",
        "torch",
        "python",
        "devices",
        "threads",
        "time_limit_s",
        "rows",
        "safe_side_right",
        "conclusion",
    }
    plain, safe = document["rows"]
    assert set(plain) == set(_child.Row.__dataclass_fields__)
    assert (plain["side"], safe["side"]) == ("plain", "safe")
    assert plain["outcome"] in ("raised", "wrong numbers")
    assert plain["first_error"]
    assert safe["outcome"] == "finished"
    assert safe["calls"] > 0
    assert safe["raised"] == safe["wrong"] == safe["eager"] == 0
    assert document["safe_side_right"] is True


def test_a_child_that_is_not_done_in_time_has_hung(tmp_path: Path) -> None:
    """A child is ended at its limit; its row says where it was, and its stacks are kept."""
    plan = _child.Plan(("cpu",), 2, 0.5, tmp_path)
    row = _child.run_child("tracing", "plain", plan, lambda row: None)
    assert row.outcome == "hung"
    assert row.hung_at
    assert row.log is not None
    assert not row.right


def test_a_child_that_dies_has_crashed_or_raised(tmp_path: Path) -> None:
    """A child that can't start its work is a row with the error, not an error of the demo."""
    plan = _child.Plan(("toaster",), 2, 30.0, tmp_path)
    row = _child.run_child("tracing", "plain", plan, lambda row: None)
    assert row.outcome == "raised"
    assert "toaster" in (row.first_error or "")


def test_the_place_of_a_hang_is_that_of_most_threads() -> None:
    """Threads are counted by their innermost frame in torch; the main thread and the reporter are left out."""
    waiting = '\n\nThread 0x1 (most recent call first):\n  File "/x/torch/_dynamo/convert_frame.py", line 5 in __call__'
    main = '\n\nThread 0x2 (most):\n  File "/x/torch/a.py", line 1 in f\n  File "/x/m.py", line 2 in main\n'
    assert (
        _child.where_it_hung("Timeout (0:00:01)!" + waiting * 3 + main) == "3 in __call__ (_dynamo/convert_frame.py:5)"
    )


def test_the_table_fits_in_100_columns() -> None:
    """No line of the table is wider than 100 columns, whatever the numbers and errors are."""
    row = _child.Row("drafters", "plain", "wrong numbers", 1_000_000, 999_999, 99_999, 99_999, 100, 99.9, "word " * 200)
    text = _table.table([row, _child.Row("tracing", "safe", "finished", calls=1)])
    assert max(map(len, text.splitlines())) <= 100


def test_the_conclusion_is_one_sentence_that_names_both_sides() -> None:
    """The closing sentence says what went wrong in plain torch and that the safe side was right."""
    rows = [_child.Row("tracing", "plain", "raised", 10, 9), _child.Row("tracing", "safe", "finished", 10)]
    assert _table.conclusion(rows) == (
        "Plain torch.compile went wrong in 1 of 1 workload (tracing: 9 of 10 calls raised); with safe_compile all of "
        "1 workload gave the right numbers, compiled."
    )


def test_the_report_is_json_with_the_state_of_each_family() -> None:
    """``report --json`` prints versions, platform, and each patch family, on after a first compile."""
    done = _run("report", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert {"safecompile", "torch", "wrapt", "python", "platform", "families", "problem"} <= set(document)
    assert document["problem"] is None
    assert document["families"]["miss"]["state"] == document["families"]["fx"]["state"] == "on"
    assert document["totals"]["compiles"] == 1

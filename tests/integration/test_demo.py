"""``python -m safecompile``: what it prints, what it refuses, and how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from safecompile.tools import _child, _sizes, _table, _vitals

ROOT = Path(__file__).parents[2]


def _run(*arguments: str, timeout_s: float = 60.0, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "safecompile", *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False, env=os.environ | env
    )


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
        "sizes",
        "rows",
        "safe_side_right",
        "conclusion",
        "next",
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


def _stand_in(monkeypatch: pytest.MonkeyPatch, folder: Path, work: str) -> None:
    """Puts a small program in the place of a workload's: it tells of 7 calls, then does ``work``."""
    program = folder / "child.py"
    program.write_text(
        "import faulthandler, json, signal, threading, time\n"
        "faulthandler.register(signal.SIGUSR1)\n"
        "print(json.dumps({'state': 'running', 'calls': 7}), flush=True)\n"
        f"{work}\n"
        "print(json.dumps({'state': 'done', 'calls': 8}), flush=True)\n"
    )
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{program}"\n')
    python.chmod(0o755)
    monkeypatch.setattr(_child, "sys", SimpleNamespace(executable=str(python), platform=sys.platform))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="elsewhere a child is asked for its CPU time")
@pytest.mark.parametrize(
    ("work", "outcome", "calls"),
    [
        ("threading.Event().wait()", "hung", 7),
        ("end = time.process_time() + 3.0\nwhile time.process_time() < end: pass", "finished", 8),
        ("import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'sum(range(10**8))'])", "finished", 8),
        ("while True: pass", "too slow", 7),
    ],
    ids=["waits for ever", "works for long", "waits for a child that works", "never ends"],
)
def test_hung_is_what_does_nothing_and_uses_no_cpu_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str, outcome: str, calls: int
) -> None:
    """A child that works, itself or through others, is slow, however long; one that has stopped is hung, at once."""
    _stand_in(monkeypatch, tmp_path, work)
    plan = _child.Plan(("cpu",), 2, 60.0 if outcome != "too slow" else 4.0, tmp_path, patience_s=1.5)
    row = _child.run_child("tracing", "plain", plan, lambda row, quiet_s: None)
    assert (row.outcome, row.calls) == (outcome, calls)
    assert row.right is (outcome == "finished")
    assert (row.log is not None) is (row.hung_at is not None or outcome == "too slow")
    if outcome == "hung":
        assert "hread 0x" in Path(row.log or "").read_text()


def test_waiting_for_a_core_is_work() -> None:
    """On a busy machine a process gets little CPU time; what counts is that it wants some."""
    now, busy = 0.0, 0.0
    watch = _vitals.Watch(lambda: busy, 10.0, now)
    for now in range(1, 60):
        busy += 0.5 if now % 20 < 5 else 0.0  # with pauses, as while a disk is waited for
        assert not watch.stopped((3, 1), float(now))
    stopped = [now for now in range(60, 90) if watch.stopped((3, 1), float(now))]
    assert stopped
    assert stopped[0] < 85


def test_the_sizes_fit_the_machine() -> None:
    """A slow machine gets fewer calls and a longer look; a fast one what is usual."""
    usual, slow = _sizes.sizes_for(0.5), _sizes.sizes_for(12.0)
    assert usual == _sizes.sizes_for(None) == _sizes.Sizes()
    assert slow.requests < usual.requests
    assert 2 <= slow.steps < usual.steps
    assert slow.tracing_s > usual.tracing_s


def test_without_a_compiler_the_demo_says_what_is_missing(tmp_path: Path) -> None:
    """Where torch.compile itself fails, nothing is said of safe_compile but what to install."""
    done = _run("demo", "--workload", "server", "--device", "cpu", timeout_s=200, CXX=str(tmp_path / "no-compiler"))
    assert done.returncode == 1
    assert "torch.compile itself does not work" in done.stdout
    assert "may be a bug" not in done.stdout


def test_what_torch_says_at_its_import_is_not_on_the_screen(tmp_path: Path) -> None:
    """Without NumPy torch warns at its import; the demo's screen has its own lines alone."""
    (tmp_path / "numpy.py").write_text("raise ModuleNotFoundError('no NumPy', name='numpy')")
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done = _run("demo", "--workload", "tracing", "--side", "safe", "--device", "cpu", timeout_s=200, PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    assert "umpy" not in done.stderr + done.stdout


def test_a_child_that_dies_has_crashed_or_raised(tmp_path: Path) -> None:
    """A child that can't start its work is a row with the error, not an error of the demo."""
    plan = _child.Plan(("toaster",), 2, 60.0, tmp_path)
    row = _child.run_child("tracing", "plain", plan, lambda row, quiet_s: None)
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
        "Plain torch.compile went wrong in 1 of 1 workload (tracing: 9 of 10 calls raised); with safe_compile it gave "
        "the right numbers, compiled."
    )


@pytest.mark.parametrize(
    ("outcome", "said"),
    [("finished", "import safecompile.patch_all"), ("hung", "report it"), ("too slow", "--time-limit")],
)
def test_the_last_lines_say_what_to_do_next(outcome: str, said: str) -> None:
    """A newcomer is told how to use it, a fault is to be reported, slowness is called slowness."""
    text = _table.advice([_child.Row("server", "safe", outcome, 10)])
    assert said in text
    assert ("bug" in text) is (outcome == "hung")


def test_the_report_is_json_with_the_state_of_each_family() -> None:
    """``report --json`` prints versions, platform, and each patch family, on after a first compile."""
    done = _run("report", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert {"safecompile", "torch", "wrapt", "python", "platform", "families", "problem"} <= set(document)
    assert document["problem"] is None
    assert document["families"]["miss"]["state"] == document["families"]["fx"]["state"] == "on"
    assert document["totals"]["compiles"] == 1


def test_a_server_that_never_waits_raises_nothing():
    """Its calls run uncompiled while one thread compiles."""
    done = _run("demo", "--workload", "server", "--side", "safe", "--device", "cpu", "--json", timeout_s=300)
    rows = {row["side"]: (row["outcome"], row["raised"], row["compiles"]) for row in json.loads(done.stdout)["rows"]}
    assert rows == {"safe": ("finished", 0, 1), "no wait": ("finished", 0, 1)}

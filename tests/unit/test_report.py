"""The report: it can be made at any moment, from any thread, with or without torch, and names who waits for whom."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import textwrap
import threading
import time

import pytest
import torch

import safecompile
from safecompile._common import activity, totals
from safecompile._engine import flights
from safecompile._patching.families import Family, Part
from safecompile.tools import report as tool
from tests.helpers.threads import ParkedBackend, in_fresh_process, run_threads


@pytest.fixture
def nothing_counted(installed: None) -> None:
    """The library is in, and what other tests have compiled is not in the report."""
    totals.after_fork_in_child()


def body(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def other(x: torch.Tensor) -> torch.Tensor:
    return x + 2


def test_without_torch() -> None:
    """It imports no torch, before the installation and after it, and is valid JSON."""
    done = in_fresh_process(
        """
        import json, sys
        import safecompile
        before = safecompile.report()
        safecompile.install()
        after = safecompile.report()
        assert "torch" not in sys.modules
        for one, installed in ((before, False), (after, True)):
            found = json.loads(one.json())
            assert found == one.as_dict()
            assert (found["installed"], found["torch_imported"]) == (installed, False)
            assert "not imported in this process" in str(one)
        assert "not installed" in str(before), before
        assert after.as_dict()["families"]["miss"]["state"] == "waiting"
        """
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("flag", ["", "--json"])
def test_where_torch_is_not_installed(flag: str) -> None:
    """The command says that torch can't be imported, and reports the rest."""
    done = in_fresh_process(
        f"""
        import sys
        sys.modules["torch"] = None
        from safecompile.__main__ import main
        sys.exit(main(["report", *{flag.split()}]))
        """
    )
    assert done.returncode == 0, done.stderr
    assert "torch can't be imported" in " ".join(done.stdout.split())
    if flag:
        json.loads(done.stdout)


def test_a_hung_process_reports(nothing_counted: None) -> None:
    """While one thread is stuck in a compile and others wait, any thread gets a report that names them, at once."""
    backend, seen = ParkedBackend(), []
    compiled, second = torch.compile(body, backend=backend), torch.compile(other, backend="eager")

    def follow() -> None:
        backend.wait_parked()
        second(torch.zeros(2))

    def look() -> None:
        backend.wait_parked()
        end = time.monotonic() + 20
        while len(activity.waiting_now()) < 2:
            assert time.monotonic() < end
            time.sleep(0.01)
        began = time.monotonic()
        seen.append((safecompile.report(), time.monotonic() - began))
        backend.release()

    def begin() -> None:
        backend.wait_parked()
        compiled(torch.zeros(2))

    run_threads([lambda: compiled(torch.zeros(2)), begin, follow, look])
    report, seconds = seen[0]
    assert seconds < 5
    found = json.loads(report.json())
    (compiling,) = found["compiling"]
    assert (compiling["function"], compiling["thread"], compiling["device"]) == ("body", "job-0", "cpu")
    assert (compiling["file"], compiling["line"]) == (__file__, body.__code__.co_firstlineno)
    assert any("threads.py" in line for line in compiling["stack"])
    waiting = {one["thread"]: (one["function"], one["reason"], one["holder"]) for one in found["waiting"]}
    assert waiting == {"job-1": ("body", "result", "job-0"), "job-2": ("other", "lock", "job-0")}
    assert "'job-2' has waited for" in str(report)
    assert "Hung(" not in str(report)  # a source line
    assert safecompile.report().as_dict()["waiting"] == safecompile.report().as_dict()["compiling"] == []
    assert flights.flights == {}


def test_totals(nothing_counted: None) -> None:
    """Misses are counted by what came of them, in all and by function."""
    backend = ParkedBackend()
    compiled = torch.compile(body, backend=backend)

    run_threads([lambda: compiled(torch.zeros(2))] * 3 + [lambda: backend.release_after(0.3)])
    torch.compile(other, backend="eager")(torch.zeros(2))
    compiled(torch.zeros(2))  # warm
    found = safecompile.report().as_dict()
    counted = found["totals"]
    assert [counted[name] for name in ("misses", "compiles", "reused", "failed")] == [4, 2, 2, 0]
    assert counted["waited_s"] > 0.3
    assert {one["function"] for one in found["most_compiles"]} == {"body", "other"}
    longest = found["longest_waits"][0]
    assert (longest["function"], longest["reused"], longest["misses"]) == ("body", 2, 3)
    assert longest["longest_wait_s"] >= 0.2


def test_totals_are_complete_with_many_threads() -> None:
    """No miss is lost where threads count at once, and functions beyond the limit count as one."""
    totals.after_fork_in_child()

    def count() -> None:
        for number in range(3000):
            totals.note((f"f{number}", "file", 1), 0.5, 0.25, "compiled")
            totals.count("second traces")

    run_threads([count] * 4)
    assert totals.add_up()
    in_all = totals.in_all()
    assert (in_all["misses"], in_all["compiles"], in_all["second_traces"]) == (12000, 12000, 12000)
    assert in_all["waited_s"] == 6000
    for number in range(2000):
        totals.note((f"more{number}", "file", 1), 0.0, 0.0, "compiled")
    assert len(totals.functions()) <= totals.FUNCTIONS_AT_MOST + 1
    assert totals.in_all()["misses"] == 14000
    totals.after_fork_in_child()


def test_a_report_waits_for_nobody_who_adds_up() -> None:
    """It goes on with what is there if another thread is in the middle of adding up."""
    with totals._adding_up:
        assert not totals.add_up()
        done = threading.Thread(target=safecompile.report)
        done.start()
        done.join(20)
        assert not done.is_alive()


def test_a_family_without_patches_is_not_needed(nothing_counted: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A family that found nothing to mend in this torch says so."""
    part = Part("old", "torch", lambda _: [])
    family = Family("old", [part])
    family.applied.append((part, []))
    monkeypatch.setattr(tool.applying, "families", [*tool.applying.families, family])
    assert safecompile.report().as_dict()["families"]["old"]["state"] == "not needed"


def test_a_reader_that_has_gone() -> None:
    """The command ends quietly, as with ``| head``, with the exit code of a tool that SIGPIPE has ended."""
    code = """
        import sys
        sys.modules["torch"] = None
        from safecompile.__main__ import main
        sys.stdin.read()
        sys.exit(main(["report"]))
    """
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdin=pipe, stdout=pipe, stderr=pipe) as run:
        assert run.stdin is not None
        assert run.stdout is not None
        assert run.stderr is not None
        run.stdout.close()
        run.stdin.close()
        assert run.stderr.read() == b""
    assert run.returncode == 141


def test_a_terminal_that_knows_only_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command prints what its encoding does not know as escapes; so it does with bytes that are no text."""
    monkeypatch.setenv("SAFECOMPILE_X", "\udcffé")
    bytes_of = io.BytesIO()
    stream = io.TextIOWrapper(bytes_of, encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(tool, "_try_out", lambda torch: None)
    tool.run(as_json=False)
    stream.flush()
    assert b"SAFECOMPILE_X=\\udcff\\xe9" in bytes_of.getvalue()

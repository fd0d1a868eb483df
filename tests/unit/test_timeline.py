"""The timeline: a valid trace on torch.profiler's clock, and a picture of it."""

from __future__ import annotations

import json
import threading
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import torch

import safecompile
from safecompile.__main__ import main
from safecompile._common import activity, telling
from safecompile.tools import timeline as tool
from tests.helpers.threads import ParkedBackend, run_threads

SVG = "{http://www.w3.org/2000/svg}"


pytestmark = pytest.mark.usefixtures("installed")


def body(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def cold(threads: int) -> None:
    backend = ParkedBackend()
    compiled = torch.compile(body, backend=backend)

    def release() -> None:
        backend.wait_parked()
        end = time.monotonic() + 30
        while len(activity.waiting_now()) < threads - 1:
            assert time.monotonic() < end
            time.sleep(0.01)
        time.sleep(0.2)
        backend.release()

    run_threads([lambda: compiled(torch.zeros(2))] * threads + [release])


def valid(trace: dict[str, Any]) -> list[dict[str, Any]]:
    """Checks the fields that the trace-event format wants of each event; returns the library's own."""
    for event in trace["traceEvents"]:
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert event["ph"] in ("X", "i", "M")
        assert isinstance(event["ts"], float | int)
        if event["ph"] == "X":
            assert event["dur"] >= 0
        if event["ph"] == "i":
            assert event["s"] == "t"
        if event["ph"] == "M":
            assert set(event["args"]) == {"name"}
    return [event for event in trace["traceEvents"] if event["ph"] != "M"]


def test_twelve_cold_threads(tmp_path: Path) -> None:
    """One compile and eleven waits, each in its thread's track, in the file and in its picture."""
    path = tmp_path / "cold.json"
    with safecompile.timeline(path):
        cold(12)
    trace = json.loads(path.read_text())
    bars = [event for event in valid(trace) if event["ph"] == "X"]
    compiles = [event for event in bars if event["args"]["what"] == "compile"]
    waits = [event for event in bars if event["args"]["what"] == "wait"]
    assert (len(compiles), len(waits)) == (1, 11), dict(torch._dynamo.utils.guard_failures)
    assert compiles[0]["name"] == "compile body on cpu"
    assert len({event["tid"] for event in bars}) == 12
    names = {event["tid"]: event["args"]["name"] for event in trace["traceEvents"] if event["ph"] == "M"}
    assert {event["args"]["holder"] for event in waits} == {names[compiles[0]["tid"]]}
    assert all(name.startswith("job-") for tid, name in names.items() if tid in {event["tid"] for event in bars})
    assert main(["timeline", str(path)]) == 0
    root = ET.fromstring(path.with_suffix(".svg").read_text())
    assert root.find(f"{SVG}title").text.startswith("12 threads, 1 compile, 11 waits")
    told = [one.text for one in root.iter(f"{SVG}title")][1:]
    assert sum(text.startswith("compile") for text in told) == 2  # the compile's bar, and the mark of its miss' end
    assert sum(text.startswith("wait for job-") for text in told) == 11
    shown = {one.text for one in root.iter(f"{SVG}text")}
    assert {f"job-{index}" for index in range(12)} <= shown
    for rectangle in root.iter(f"{SVG}rect"):
        assert float(rectangle.get("x", 0)) + float(rectangle.get("width")) <= 1000


def test_the_clock_is_the_profilers(tmp_path: Path) -> None:
    """A compile lies inside what torch.profiler shows around it, in the same track; both files can be joined."""
    path, profile, both = tmp_path / "compiles.json", tmp_path / "profile.json", tmp_path / "both.json"
    with torch.profiler.profile() as profiler, safecompile.timeline(path):
        with torch.profiler.record_function("around"):
            torch.compile(body, backend="eager")(torch.zeros(2))
    profiler.export_chrome_trace(str(profile))
    assert main(["timeline", str(path), "--with", str(profile), "-o", str(both)]) == 0
    events = json.loads(both.read_text())["traceEvents"]
    around = next(one for one in events if one.get("name") == "around")
    compile_ = next(one for one in events if one.get("name") == "compile body on cpu")
    assert (around["pid"], around["tid"]) == (compile_["pid"], compile_["tid"])
    slack = 2000  # microseconds
    assert around["ts"] - slack <= compile_["ts"]
    assert compile_["ts"] + compile_["dur"] <= around["ts"] + around["dur"] + slack
    assert json.loads(path.read_text())["baseTimeNanoseconds"] == json.loads(profile.read_text())["baseTimeNanoseconds"]
    names = [one["args"]["name"] for one in events if one["name"] == "thread_name" and one["tid"] == compile_["tid"]]
    assert names == [threading.current_thread().name]


def test_a_thread_that_both_name_has_its_own_name() -> None:
    """torch.profiler names each thread after the process, and Perfetto shows the first name that it reads."""

    def name(tid: int, name: str) -> dict[str, Any]:
        return {"ph": "M", "name": "thread_name", "pid": 1, "tid": tid, "ts": 0, "args": {"name": name}}

    theirs = [name(2, "thread 2 (python)"), name(3, "thread 3 (python)"), "no event"]
    both = tool.joined({"traceEvents": [name(2, "worker-1")]}, theirs)["traceEvents"]
    assert both == [name(3, "thread 3 (python)"), "no event", name(2, "worker-1")]


def test_traces_with_other_clocks_are_joined_on_theirs() -> None:
    """Where the other file counts from another moment, ours are moved there; a plain list of events is a trace too."""
    ours = {"baseTimeNanoseconds": 5000, "traceEvents": [{"ph": "i", "ts": 1.0}, {"ph": "M", "ts": 0}]}
    theirs = {"baseTimeNanoseconds": 2000, "traceEvents": []}
    assert [one["ts"] for one in tool.joined(ours, theirs)["traceEvents"]] == [4.0, 0]
    assert tool.joined(ours, [])["traceEvents"][0]["ts"] == 6.0


def test_what_has_not_ended_is_there(tmp_path: Path) -> None:
    """A compile and a wait that go on at the end of the block are drawn until then."""
    path, backend = tmp_path / "now.svg", ParkedBackend()
    compiled = torch.compile(body, backend=backend)

    def look() -> None:
        with safecompile.timeline(path):
            backend.wait_parked()
            while not activity.waiting_now():
                time.sleep(0.01)
        backend.release()

    run_threads([lambda: compiled(torch.zeros(2))] * 2 + [look])
    told = [one.text for one in ET.fromstring(path.read_text()).iter(f"{SVG}title")]
    assert told[0].startswith("2 threads, 1 compile, 1 wait")
    assert sum("unfinished" in text for text in told) == 2


def test_a_block_that_raises_leaves_a_file(tmp_path: Path) -> None:
    """The file is written, and the error comes through."""
    with pytest.raises(KeyError), safecompile.timeline(tmp_path / "x.json"):
        raise KeyError
    assert valid(json.loads((tmp_path / "x.json").read_text())) == []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "can't be read"),
        ("[", "JSON"),
        ("{}", "no trace"),
        ("[]", "no"),
        ('[{"cat": "safecompile"}]', "no trace"),
        ('[{"cat": "safecompile", "ph": "X", "args": 1, "dur": "x"}]', "no trace"),
    ],
)
def test_other_files_are_refused(
    content: str | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that is no trace of the library's is told in one sentence, with exit code 2."""
    path = tmp_path / "x.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SystemExit) as ended:
        main(["timeline", str(path)])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("name", ["", "absent/x.json", "folder"])
def test_a_path_that_can_not_be_written_raises_before_the_work(name: str, tmp_path: Path) -> None:
    """A wrong path is told when the block is entered, not once hours of work are over."""
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="can't be written"), safecompile.timeline(tmp_path / name):
        pytest.fail("the block was entered")
    assert telling.listeners == []


def test_a_file_that_can_not_be_written_hides_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The block's own error comes through, and a WARNING says that there is no file; else the file's error does."""
    folder = tmp_path / "folder"
    for error in (KeyError, None):
        folder.mkdir()
        with pytest.raises(error or OSError), safecompile.timeline(folder / "x.json"):
            folder.rmdir()
            if error is not None:
                raise error
    assert [one.getMessage()[:12] for one in caplog.records] == ["the timeline"]


def compile_in(*names: str, filename: str = "f.py") -> None:
    """Lets threads of these names say that they compile."""
    code = compile("0", filename, "exec")

    def work() -> None:
        with activity.Compiling(code, "cpu"):
            pass

    for name in names:
        thread = threading.Thread(target=work, name=name)
        thread.start()
        thread.join(20)


def test_the_threads_of_a_pool_can_be_told_apart(tmp_path: Path) -> None:
    """Of a name that is too long, the picture shows the end, too."""
    path = tmp_path / "x.svg"
    with safecompile.timeline(path):
        compile_in("ThreadPoolExecutor-0_1", "ThreadPoolExecutor-0_11")
    shown = [one.text for one in ET.parse(path).getroot().iter(f"{SVG}text")]
    assert {"ThreadPoolExec…or-0_1", "ThreadPoolExec…r-0_11"} <= set(shown)


def test_letters_stand_in_the_file_as_they_are(tmp_path: Path) -> None:
    """Perfetto shows an escape in a thread's name as it stands. Bytes that are no text are escapes all the same."""
    path = tmp_path / "x.json"
    with safecompile.timeline(path):
        compile_in("Läufer", filename="/tmp/\udcff.py")
    text = path.read_text(encoding="utf-8")
    assert "Läufer" in text
    assert "/tmp/\udcff.py" in {one["args"].get("file") for one in json.loads(text)["traceEvents"]}


def test_any_name_makes_valid_xml(tmp_path: Path) -> None:
    """Control characters, and bytes that are no text in names of files, are replaced in the picture."""
    path = tmp_path / "x.svg"
    with safecompile.timeline(path):
        compile_in("a\x00\x1b<b>", filename="/tmp/\udcff<&>.py")
    told = "".join(ET.parse(path).getroot().itertext())
    assert "a\ufffd\ufffd<b>" in told
    assert "/tmp/\ufffd<&>.py" in told

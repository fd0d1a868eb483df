"""The watcher: it names what went wrong in plain torch, in which threads and where, and nothing in clean programs."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention.flex_attention import create_block_mask

import safecompile
from safecompile.__main__ import main
from safecompile._patching.patches import AttributePatch
from safecompile._torch import watching as host
from safecompile.tools.watch import script as script_tool
from tests.helpers.threads import ParkedBackend, in_fresh_process, run_threads


@pytest.fixture(autouse=True)
def plain() -> Iterator[None]:
    assert not safecompile.is_installed()
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def body(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def flag_is_per_thread() -> bool:
    from torch.fx import _symbolic_trace

    return not hasattr(_symbolic_trace, "_is_fx_tracing_flag")


class Waiting(torch.nn.Module):
    """A module whose forward, while it is traced, lets another thread go on."""

    def __init__(self, during: Callable[[], None]) -> None:
        super().__init__()
        self.during = during

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.during()
        return x + 1


def beside_a_trace(work: Callable[[], object]) -> None:
    """Runs ``work`` in the thread 'job-1' while 'job-0' traces."""
    inside, done = threading.Event(), threading.Event()

    def during() -> None:
        inside.set()
        assert done.wait(30)

    def other() -> None:
        assert inside.wait(30)
        try:
            work()
        finally:
            done.set()

    run_threads([lambda: torch.fx.symbolic_trace(Waiting(during)), other])


def test_who_set_the_flag() -> None:
    """A compiled call beside another thread's trace: named are both threads, and the stack that set the flag."""
    compiled = torch.compile(body, backend="eager")
    compiled(torch.zeros(2))

    def call() -> None:
        if flag_is_per_thread():
            compiled(torch.zeros(2))
        else:
            with pytest.raises(RuntimeError, match="FX to symbolically trace"):
                compiled(torch.zeros(2))

    with safecompile.watch() as watched:
        beside_a_trace(call)
    if flag_is_per_thread():
        assert watched.findings == []
        return
    (found,) = watched.findings
    assert (found.kind, found.threads) == ("flag", ["job-1"])
    assert "'job-0'" in found.what
    assert "body" in found.what
    assert any("beside_a_trace" in line and __file__ in line for line in found.stacks["set by"])
    assert any("test_who_set_the_flag" in line for line in found.stacks["read by"])
    assert "safe_compile prevents it" in str(watched)


def test_modules_in_a_foreign_tracer() -> None:
    """An eager call of a module beside another thread's trace is named, whatever comes of it."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))

    def call() -> None:
        with pytest.raises(NameError):
            model(torch.zeros(1, 2))

    with safecompile.watch() as watched:
        beside_a_trace(call)
    (found,) = watched.findings
    assert (found.kind, found.threads) == ("foreign tracer", ["job-1"])
    assert "Sequential" in found.what
    assert any("test_modules_in_a_foreign_tracer" in line for line in found.stacks["called by"])
    assert any("beside_a_trace" in line for line in found.stacks["traced by"])


def test_traces_that_overlap() -> None:
    """A trace that begins while another thread traces is named, with both stacks."""
    call, getattribute = torch.nn.Module.__call__, torch.nn.Module.__getattr__
    try:
        with safecompile.watch() as watched:
            beside_a_trace(lambda: torch.fx.symbolic_trace(body))
    finally:
        torch.nn.Module.__call__, torch.nn.Module.__getattr__ = call, getattribute  # as it would be
        for name in ("_is_fx_tracing_flag",):
            if hasattr(torch.fx._symbolic_trace, name):
                setattr(torch.fx._symbolic_trace, name, False)
    found = next(one for one in watched.findings if one.kind == "overlapping traces")
    assert found.threads == ["job-1"]
    assert "'job-0'" in found.what
    assert any("beside_a_trace" in line for line in found.stacks["was there"])


def test_a_flag_that_was_left_on() -> None:
    """A compiled call that is told that FX traces while nobody does is named."""
    if flag_is_per_thread():
        pytest.skip("the flag is per thread")
    compiled = torch.compile(body, backend="eager")
    with safecompile.watch() as watched:
        torch.fx._symbolic_trace._is_fx_tracing_flag = True
        try:
            with pytest.raises(RuntimeError, match="FX to symbolically trace"):
                compiled(torch.zeros(2))
        finally:
            torch.fx._symbolic_trace._is_fx_tracing_flag = False
    assert [one.kind for one in watched.findings] == ["flag left on"]


def test_every_repeated_compile() -> None:
    """Of threads that start cold all but one compile again; the rest, beyond the limit, runs eagerly."""
    backend = ParkedBackend()
    compiled = torch.compile(body, backend=backend)

    with safecompile.watch() as watched:
        run_threads([lambda: compiled(torch.zeros(3))] * 12 + [lambda: backend.release_after(1.0)])
    kinds = {one.kind: one for one in watched.findings}
    repeated = kinds["repeated compile"]
    assert repeated.count == backend.compiles - 1 > 0
    assert len(repeated.threads) == repeated.count
    assert repeated.what.startswith(f"body ({__file__}:{body.__code__.co_firstlineno})")
    assert set(kinds) <= {"repeated compile", "ran eagerly"}
    if backend.compiles < 12:
        eager = [one for one in watched.findings if one.kind == "ran eagerly"]
        assert sum(one.count for one in eager) == 12 - backend.compiles


def test_settings_that_a_compile_does_not_see() -> None:
    """From torch 2.12 on a setting that another thread assigned is not seen; before, it is, and nothing is found."""
    from torch._dynamo import config

    per_thread: list[bool] = []
    before = config.specialize_float
    with safecompile.watch() as watched:
        try:
            config.specialize_float = not before

            def work() -> None:
                per_thread.append(config.specialize_float == before)
                torch.compile(body, backend="eager")(torch.zeros(2))

            run_threads([work])
        finally:
            config.specialize_float = before
    assert [one.kind for one in watched.findings] == ["unseen setting"] * per_thread[0]
    for found in watched.findings:
        assert "torch._dynamo.config.specialize_float" in found.what
        assert any("test_settings_that" in line for line in found.stacks["set by"])


def test_a_wait_in_a_cycle_is_told_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """A compile that waits for a thread that wants the compile lock is named while it lasts, with both stacks."""
    second = torch.compile(lambda x: x + 2, backend="eager")
    helper = threading.Thread(target=lambda: second(torch.zeros(2)), name="helper", daemon=True)
    logged: list[str] = []

    def waiting(graph: Any, inputs: Any) -> Any:
        helper.start()
        end = time.monotonic() + 30
        while not caplog.records and time.monotonic() < end:
            helper.join(1.0)
        logged.extend(record.getMessage() for record in caplog.records if record.name == "safecompile")
        return graph.forward

    with caplog.at_level("WARNING", "safecompile"), safecompile.watch(cycle_s=1.0) as watched:
        run_threads([lambda: torch.compile(body, backend=waiting)(torch.zeros(2))])
        helper.join(30)
    assert len(logged) == 1
    assert "'helper'" in logged[0]
    (found,) = watched.findings
    assert found.kind == "cycle"
    assert "It waits for that very thread." in found.what
    assert any("waiting" in line for line in found.stacks["holds the lock"])
    assert "does not prevent it" in found.cure


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).relu()


@torch.compiler.disable
def breaks(x: torch.Tensor) -> torch.Tensor:
    return x


def compiled(fn: Any, backend: str = "eager", **keywords: Any) -> Any:
    return torch.compile(fn, backend=backend, **keywords)


def shapes() -> None:
    f = compiled(body)
    for size in (2, 3, 4, 5):
        f(torch.zeros(size))


def graph_break() -> None:
    compiled(lambda x: breaks(x + 1) * 2)(torch.zeros(2))


def training() -> None:
    model = compiled(Model(), "aot_eager")
    for size in (2, 3):
        model(torch.zeros(size, 3)).sum().backward()


def trace_first() -> None:
    model = Model()
    traced = torch.fx.symbolic_trace(model)
    run_threads([lambda: traced(torch.zeros(2, 3)), lambda: model(torch.zeros(2, 3))])


def one_after_the_other() -> None:
    f = compiled(body)
    for _ in range(3):
        run_threads([lambda: f(torch.zeros(2))])


def warm_in_many_threads() -> None:
    f = compiled(body)
    f(torch.zeros(2))
    run_threads([lambda: [f(torch.zeros(2)) for _ in range(50)]] * 4)


def under_a_lock() -> None:
    f, lock, model = compiled(Model()), threading.Lock(), Model()

    def work(number: int) -> None:
        for _ in range(3):
            with lock:
                f(torch.zeros(2, 3)) if number else torch.fx.symbolic_trace(model)

    run_threads([lambda number=number: work(number) for number in range(3)])


def modules_beside_an_aot_compile() -> None:
    model, eager = compiled(Model(), "aot_eager"), Model()
    run_threads([lambda: model(torch.zeros(2, 3)), lambda: [eager(torch.zeros(2, 3)) for _ in range(300)]])


def functions_of_one_thread_each() -> None:
    def work(number: int) -> None:
        space: dict[str, Any] = {}
        exec(f"def f(x):\n    return x + {number}", space)
        compiled(space["f"])(torch.zeros(2))

    run_threads([lambda number=number: work(number) for number in range(3)])


def other_values() -> None:
    f = compiled(lambda x: x if isinstance(x, int) else x + 1)
    f(torch.zeros(2))
    f(3)


def block_mask() -> None:
    create_block_mask(lambda b, h, q, k: q >= k, None, None, 128, 128, device="cpu")
    make_fx(body)(torch.zeros(2))


CLEAN = (
    shapes,
    graph_break,
    training,
    trace_first,
    one_after_the_other,
    warm_in_many_threads,
    under_a_lock,
    modules_beside_an_aot_compile,
    functions_of_one_thread_each,
    other_values,
    block_mask,
)


@pytest.mark.parametrize("program", CLEAN, ids=lambda program: program.__name__)
def test_clean_programs(program: Callable[[], None]) -> None:
    """Nothing is found in a program whose threads do not meet, or meet under a lock of its own."""
    with safecompile.watch(provoke=True, cycle_s=2.0) as watched:
        program()
    assert watched.findings == [], str(watched)
    assert "Nothing was found" in str(watched)


def test_a_warm_call_runs_nothing_more() -> None:
    """Compiled calls take at most twice as long while they are watched, in the best of many rounds (CPU time)."""
    f, x = torch.compile(body, backend="eager"), torch.zeros(2)

    def best() -> int:
        f(x)
        times = []
        for _ in range(30):
            began = time.thread_time_ns()
            for _ in range(100):
                f(x)
            times.append(time.thread_time_ns() - began)
        return min(times)

    before = best()
    with safecompile.watch():
        during = best()
    assert during < 2 * before


def test_torch_is_as_before_afterwards() -> None:
    """The watcher takes out what it has put in, and safe_compile is plain torch.compile inside."""
    from torch._dynamo import convert_frame
    from torch.utils import _config_module

    module = torch.fx._symbolic_trace

    def state() -> list[Any]:
        names = (convert_frame.CatchErrorsWrapper.__call__, _config_module.ConfigModule.__setattr__)
        patcher = host.patcher(module)
        return [host.reader_of_the_flag(module).__code__, *names, patcher.__init__, patcher.patch_method]

    before, disabled = state(), os.environ.get("SAFECOMPILE_DISABLE")
    with safecompile.watch():
        assert all(one is not other for one, other in zip(state(), before, strict=True))
        safecompile.install()
        assert not safecompile.is_installed()
    assert all(one is other for one, other in zip(state(), before, strict=True))
    assert os.environ.get("SAFECOMPILE_DISABLE") == disabled


def test_a_later_patch_of_somebody_else_stays() -> None:
    """What somebody else has patched since is left alone, with a warning."""
    from torch._dynamo import convert_frame

    owner = convert_frame.CatchErrorsWrapper
    before = owner.__call__
    theirs = AttributePatch(owner, "__call__", lambda *args: None)
    try:
        with pytest.warns(safecompile.SafeCompileWarning, match="CatchErrorsWrapper.__call__"), safecompile.watch():
            theirs.apply()
        assert owner.__call__ is theirs.replacement
    finally:
        owner.__call__ = before


def test_it_does_not_watch_the_cure() -> None:
    """With the patches in it refuses, and says what to do."""
    safecompile.install()
    try:
        with pytest.raises(safecompile.InstallError, match=r"safecompile\.uninstall\(\)"), safecompile.watch():
            pass
    finally:
        safecompile.uninstall()


def test_a_script_is_run_as_by_python(tmp_path: Path) -> None:
    """``watch`` runs a script with its arguments and its threads to their end, and reports; torch comes later."""
    script, output = tmp_path / "script.py", tmp_path / "found.json"
    script.write_text(
        "import sys, threading, time\n"
        "import beside\n"
        "from safecompile import safe_compile\n"
        "def work():\n"
        "    import torch\n"
        "    time.sleep(0.2)\n"
        "    print(safe_compile(lambda x: x + 1, backend='eager')(torch.ones(1)).item(), sys.argv[1:], __name__)\n"
        "threading.Thread(target=work).start()\n"
    )
    (tmp_path / "beside.py").write_text("")
    done = in_fresh_process(
        f"""
        import sys
        from safecompile.__main__ import main
        sys.exit(main(["watch", "-o", {str(output)!r}, {str(script)!r}, "--flag", "1"]))
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "2.0 ['--flag', '1'] __main__\n"
    assert "1 compile, " in done.stderr
    assert "Nothing was found" in done.stderr
    assert json.loads(output.read_text()) == []


def test_a_pool_that_nobody_shuts_down_is_waited_for(tmp_path: Path) -> None:
    """Its work is done before the report, and its workers end, as at the end of Python."""
    script = tmp_path / "script.py"
    script.write_text(
        "import time, torch\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "def work():\n"
        "    time.sleep(0.2)\n"
        "    torch.compile(lambda x: x + 1, backend='eager')(torch.ones(1))\n"
        "pool = ThreadPoolExecutor(2)\n"
        "pool.submit(work)\n"
    )
    done = in_fresh_process(
        f"""
        import sys
        from safecompile.__main__ import main
        sys.exit(main(["watch", {str(script)!r}]))
        """
    )
    assert done.returncode == 0, done.stderr
    assert "1 compile, " in done.stderr


@pytest.mark.parametrize(("line", "code"), [("sys.exit(3)", 3), ("1 / 0", 1), ("sys.exit()", 0), ("sys.exit('no')", 1)])
def test_the_scripts_exit_code(line: str, code: int, tmp_path: Path) -> None:
    """The exit code is the script's own."""
    script = tmp_path / "script.py"
    script.write_text(f"import sys\n{line}\n")
    done = in_fresh_process(
        f"""
        import sys
        from safecompile.__main__ import main
        sys.exit(main(["watch", {str(script)!r}]))
        """
    )
    assert done.returncode == code, done.stderr
    assert "Watched" in done.stderr


@pytest.mark.parametrize("line", ["sys.exit(0)", "1 / 0"])
def test_threads_are_watched_to_their_end_however_the_script_ends(line: str, tmp_path: Path) -> None:
    """As Python itself, it waits for the threads of a script that has exited or raised, and then reports."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, threading, time\n"
        "def more():\n"
        "    time.sleep(0.1)\n"
        "    print('done', file=sys.stderr)\n"
        "def late():\n"
        "    time.sleep(0.3)\n"
        "    threading.Thread(target=more).start()\n"
        "threading.Thread(target=late).start()\n"
        f"{line}\n"
    )
    done = in_fresh_process(
        f"""
        import sys
        from safecompile.__main__ import main
        sys.exit(main(["watch", {str(script)!r}]))
        """
    )
    assert done.stderr.index("done\n") < done.stderr.index("Watched"), done.stderr


@pytest.mark.parametrize("given", [["--", "a"], ["a", "--"], ["--"], [], ["-o", "x", "--help"]])
def test_arguments_are_the_scripts_own(given: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is behind the script is the script's, a double hyphen and the watcher's own options too."""
    got: list[list[str]] = []
    monkeypatch.setattr(script_tool, "run", lambda script, arguments, **_: got.append([script, *arguments]) or 0)
    for before in ([], ["--provoke"], ["--"]):
        main(["watch", *before, __file__, *given])
    assert got == [[__file__, *given]] * 3


@pytest.mark.parametrize("wrong", [["absent.py"], ["-o", "absent/x.json", __file__]])
def test_wrong_paths_are_told_before_the_run(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A script that is not there, and a file that can't be written, are errors of the command, in one sentence."""
    with pytest.raises(SystemExit) as ended:
        main(["watch", *wrong])
    assert ended.value.code == 2
    assert "absent" in capsys.readouterr().err


def test_one_watch_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second one is refused while one is on; else the one that ends last would leave the library disabled."""
    monkeypatch.delenv("SAFECOMPILE_DISABLE", raising=False)
    with safecompile.watch():
        with pytest.raises(safecompile.InstallError, match="one at a time"), safecompile.watch():
            pass
    with safecompile.watch():
        pass
    assert "SAFECOMPILE_DISABLE" not in os.environ


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_a_forked_child_does_not_report(tmp_path: Path) -> None:
    """A child that the script forks ends with its own exit code; the parent alone reports, and writes the file."""
    script, output = tmp_path / "script.py", tmp_path / "found.json"
    script.write_text(
        "import os, sys\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    sys.exit(7)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7\n"
        f"assert not os.path.exists({str(output)!r})\n"
    )
    done = in_fresh_process(
        f"""
        import sys
        from safecompile.__main__ import main
        sys.exit(main(["watch", "-o", {str(output)!r}, {str(script)!r}]))
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("Watched") == 1
    assert json.loads(output.read_text()) == []

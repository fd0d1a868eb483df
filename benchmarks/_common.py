"""What all benchmarks share: command line, environment, statistics, results on disk, and fresh child processes."""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).resolve().parent / "results"


def parsed(doc: str | None, given: list[str] | None, **options: Any) -> argparse.Namespace:
    """Parses a command line: an option for each keyword, with its default, and ``--out``; ``doc`` explains them."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {**options, "out": ""}.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default, help=repr(default))
    return parser.parse_args(given)


def begin(benchmark: str, arguments: argparse.Namespace) -> tuple[dict[str, Any], Path]:
    """Says where it runs; returns the head of the result, and the file that it belongs in."""
    env = environment()
    say(environment_line(env))
    return {"benchmark": benchmark, "environment": env}, Path(arguments.out or result_path(benchmark, env))


def environment() -> dict[str, Any]:
    """Returns what a reader must know about the machine and the versions; nothing that names the machine."""
    import torch

    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.system(),
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "date": time.strftime("%Y-%m-%d"),
        "commit": _commit(),
        "command": _command(),
    }


def environment_line(environment: dict[str, Any]) -> str:
    """Returns the environment as one line of text."""
    gpus = environment["gpus"]
    device = f"{len(gpus)} x {gpus[0]}" if gpus else f"{environment['cpu']}, {environment['cores']} cores"
    return (
        f"torch {environment['torch']}, Python {environment['python']}, {device}, {environment['date']}, "
        f"commit {environment['commit'] or 'unknown'}"
    )


def _cpu_name() -> str:
    with suppress(OSError):
        found = re.search(r"^model name\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        if found:
            return " ".join(found[1].replace("(R)", "").split())
    return platform.processor() or platform.machine()


def _commit() -> str | None:
    """Returns SAFECOMPILE_BENCH_COMMIT if that is set, for a copy of the files; else the short commit that is checked
    out, with a ``+`` if the library or the benchmarks differ from it.
    """
    if "SAFECOMPILE_BENCH_COMMIT" in os.environ:
        return os.environ["SAFECOMPILE_BENCH_COMMIT"]
    git = ["git", "-C", str(ROOT)]
    with suppress(OSError, subprocess.CalledProcessError):
        commit = subprocess.check_output([*git, "rev-parse", "--short", "HEAD"], text=True, stderr=subprocess.DEVNULL)
        changed = subprocess.check_output([*git, "status", "--porcelain", "safecompile", "benchmarks/*.py"], text=True)
        return commit.strip() + ("+" if changed.strip() else "")
    return None


def _command() -> str:
    """Returns the command line, without the folder of its output."""
    spec = sys.modules["__main__"].__spec__
    arguments = [name + mark + Path(value).name for name, mark, value in (a.rpartition("=") for a in sys.argv[1:])]
    return shlex.join(["python", "-m", (spec.name if spec else "benchmarks").removesuffix(".__main__"), *arguments])


def result_path(benchmark: str, environment: dict[str, Any], folder: Path | None = None) -> Path:
    """Returns where the results of ``benchmark`` belong: by release of torch, and by the kind of machine."""
    gpus, version = environment["gpus"], environment["torch"].partition("+")[0]
    machine = f"{len(gpus)}x-{gpus[0]}" if gpus else f"cpu-{environment['cores']}-cores"
    machine = re.sub(r"[^a-z0-9]+", "-", machine.lower()).strip("-")
    return (folder or RESULTS) / f"{benchmark}-{version}-{machine}.json"


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Writes ``data`` whole or not at all, without anything that names this machine's folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = anonymous(json.dumps(data, indent=1, sort_keys=False))
    text = re.sub(r"\[\s+(-?[\d.e+-]+(?:,\s+-?[\d.e+-]+)*)\s+\]", lambda m: f"[{' '.join(m[1].split())}]", text)
    partial = path.with_suffix(".partial")
    partial.write_text(text + "\n")
    partial.replace(path)


def anonymous(text: str) -> str:
    """Returns ``text`` with folders of this machine cut off the files that it names."""
    text = re.sub(r"/[^\s\"']*/(?:site|dist)-packages/", "", text)
    text = re.sub(r"/[^\s\"']*/lib/(python3\.\d+)/", r"\1/", text)
    return text.replace(f"{ROOT}/", "").replace(tempfile.gettempdir(), "<tmp>")


def told(error: BaseException) -> str:
    """Returns an error as one short line."""
    return anonymous(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")


def held(what: str, limit: str, measured: str, kept: bool | None) -> dict[str, Any]:
    """Returns a row of what must hold; ``kept`` is None where the measurement can't tell."""
    return {"what": what, "limit": limit, "measured": measured, "kept": kept}


def below(bounds: Sequence[float], limit: float) -> bool | None:
    """Tells whether an interval lies below a limit; None where it holds the limit."""
    return True if bounds[1] <= limit else False if bounds[0] > limit else None


def rounded(value: float, digits: int = 4) -> float:
    """Returns ``value`` with ``digits`` significant digits: what a measurement is worth."""
    return float(f"{value:.{digits}g}")


def percentile(values: Sequence[float], p: float) -> float:
    """Returns the ``p``-th percentile (0 to 100) by linear interpolation."""
    ordered = sorted(values)
    at = (len(ordered) - 1) * p / 100
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def bootstrap(values: Sequence[float], *, draws: int = 2000) -> tuple[float, float]:
    """Returns the 95 % interval of the median by resampling ``values``."""
    rng = random.Random(0)
    drawn = [median(rng.choices(values, k=len(values))) for _ in range(draws)]
    return percentile(drawn, 2.5), percentile(drawn, 97.5)


@contextmanager
def fresh_caches() -> Iterator[dict[str, str]]:
    """Yields an environment for a child process with empty cache directories, which are removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        yield {
            **os.environ,
            "TORCHINDUCTOR_CACHE_DIR": str(Path(folder, "inductor")),
            "TRITON_CACHE_DIR": str(Path(folder, "triton")),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])),
            "PYTHONHASHSEED": "0",
        }


def run_child(module: str, settings: dict[str, Any], *, time_limit_s: float) -> dict[str, Any]:
    """Runs ``python -m module`` with ``settings`` on its command line as JSON; returns the JSON it prints last.

    A child that gives no answer in ``time_limit_s`` is killed and reported as hung, one that fails with the end of
    what it said.
    """
    with fresh_caches() as env, tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        # Files, not pipes: a compile worker that outlives the child would keep a pipe open. Its group ends with it.
        command = [sys.executable, "-m", module, json.dumps(settings)]
        child = subprocess.Popen(command, env=env, cwd=ROOT, stdout=out, stderr=err, start_new_session=True)
        ended, deadline = False, time.monotonic() + time_limit_s
        try:
            while not ended and time.monotonic() < deadline:
                time.sleep(0.02)  # it is not reaped before: until then nobody else gets its number, or its group's
                ended = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            status = child.wait()
        out.seek(0), err.seek(0)
        said, complaint = anonymous(out.read()), anonymous(err.read())
    if not ended:
        return {"hung": True, "errors": [f"no answer in {time_limit_s:.0f} s"], "stderr": complaint[-6000:]}
    lines = [line for line in said.splitlines() if line.startswith("{")]
    if status != 0 or not lines:
        return {"hung": False, "errors": [f"exit status {status}"], "stderr": complaint[-3000:]}
    answer: dict[str, Any] = json.loads(lines[-1])
    return answer


def say(text: str) -> None:
    """Prints one line of progress."""
    print(text, file=sys.stderr, flush=True)


def main(child: Callable[[dict[str, Any]], Any], run: Callable[[Any], Path], arguments: Callable[[], Any]) -> None:
    """Runs a benchmark, or, given its settings as JSON, the process of one measurement, and leaves at once."""
    if len(sys.argv) == 2 and sys.argv[1].startswith("{"):
        print(json.dumps(child(json.loads(sys.argv[1]))), flush=True)
        os._exit(0)
    say(f"results: {run(arguments()).name}")

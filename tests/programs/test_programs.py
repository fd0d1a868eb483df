"""Programs as people write them (``examples/``): each answer as in eager code, compiles counted, nothing logged."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.threads import child_environment

DRIVER = Path(__file__).parent / "driver.py"
EXAMPLES = Path(__file__).parents[2] / "examples"
TWO_PROCESSES = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
#: What may not be on the screen. Other lines are of the programs' dependencies, with one thread too.
OURS = ("safecompile", "torch._dynamo", "torch/_dynamo", "recompile_limit", "Traceback", "Error")

#: torch says so of each DistributedDataParallel that is compiled, with one thread too.
TORCHS_OWN = "torch.autograd.profiler.record_function"


def run(name: str, *arguments: str, before: tuple[str, ...] = (), limit_s: float = 500.0) -> list[dict]:
    """Runs an example in processes of its own and returns what each of them told."""
    command = [sys.executable, *before, str(DRIVER), name, *arguments]
    env = child_environment() | {"OMP_NUM_THREADS": "1", "SAFECOMPILE_WAIT_WARNING_S": "900"}  # a busy machine is slow
    env["PYTHONPATH"] += os.pathsep + str(EXAMPLES)  # so that workers find what a program pickles
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=env, start_new_session=True) as child:
        try:
            out, err = child.communicate(timeout=limit_s)
        finally:
            with contextlib.suppress(ProcessLookupError):  # what it has started
                os.killpg(child.pid, signal.SIGKILL)
    assert child.returncode == 0, f"exit code {child.returncode}\n{out}\n{err}"
    told = [json.loads(line) for line in out.splitlines() if line.startswith('{"')]
    assert told, out
    for one in told:
        assert one["right"] == one["of"] > 0, out
        assert [line for line in one["log"] if TORCHS_OWN not in line] == []
    assert not [line for line in err.splitlines() if any(word in line for word in OURS)], err
    return told


def needs(*packages: str) -> pytest.MarkDecorator:
    """Skips where a package is missing: ``pip install -e '.[programs]'`` brings them all."""
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


@needs("fastapi", "uvicorn", "httpx")
def test_fastapi():
    """2,000 of 2,000 answers are right; one compile for a batch of one, one for all other sizes."""
    (told,) = run("fastapi_server")
    assert (told["of"], told["graphs"]) == (2000, 2)


@pytest.mark.parametrize(
    ("name", "graphs"),
    [
        pytest.param("flask_server", 1, marks=needs("flask")),
        pytest.param("asyncio_server", 1),
        pytest.param("gradio_app", 1, marks=needs("gradio")),
        pytest.param("ray_actor", 1, marks=needs("ray")),
    ],
)
def test_servers_compile_once(name: str, graphs: int):
    """Threads of a server share one compile for batches of any size."""
    (told,) = run(name)
    assert told["graphs"] == graphs


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("train_in_threads"),
        pytest.param("dataloader_workers", marks=pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")),
        pytest.param("fabric_training", marks=needs("lightning_fabric")),
        pytest.param("tools_beside_serving"),
        pytest.param("shared_caches"),
        pytest.param("changing_models"),
        pytest.param("server"),
    ],
)
def test_an_example_is_right(name: str):
    """It does what eager code does."""
    run(name)


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_two_processes(kind: str):
    """A collective in each step, and a pool of threads in each process that compiles another model."""
    assert len(run("distributed_training", kind, before=TWO_PROCESSES)) == 2


@needs("transformers")
@pytest.mark.parametrize(
    ("part", "graphs"), [("forward", 1), ("generate", None), ("stream", None), ("flex", None), ("modernbert", 1)]
)
def test_transformers(part: str, graphs: int | None):
    """Logits and tokens are those of eager code; one compile serves all lengths."""
    (told,) = run("transformers_threads", part)
    assert graphs is None or told["graphs"] == graphs

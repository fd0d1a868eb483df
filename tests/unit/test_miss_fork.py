"""A process may fork while another of its threads compiles; the child compiles as if nothing had been."""

from __future__ import annotations

import os

import pytest

from tests.helpers.nursery import in_forked_process

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")

#: A thread is in the middle of a compile, with the lock; a follower waits for it.
COMPILING = """
import os, sys, threading, time, warnings
import torch
{install}
from tests.helpers.threads import ParkedBackend
warnings.simplefilter("ignore")
torch.set_num_threads(1)

def body(x):
    return x + 1

def other(x):
    return x + 2

backend = ParkedBackend()
compiled = torch.compile(body, backend=backend)
def call():
    compiled(torch.zeros(2))

def in_child():
    assert torch.compile(other, backend="eager")(torch.zeros(2)).tolist() == [2.0, 2.0]
    backend.release()
    assert compiled(torch.zeros(2)).tolist() == [1.0, 1.0]
    assert torch.compile(body, backend="eager")(torch.zeros(3)).tolist() == [1.0, 1.0, 1.0]

def start():
    threads = [threading.Thread(target=call, daemon=True) for _ in range(2)]
    threads[0].start()
    backend.wait_parked()
    threads[1].start()
    time.sleep(0.3)
    return threads

def finish(threads):
    backend.release()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
    in_child()
    print("done")
"""
FORK = """
threads = start()
pid = os.fork()
if pid == 0:
    import faulthandler
    faulthandler.dump_traceback_later(15, exit=True)
    try:
        in_child()
        os._exit(0)
    except BaseException:
        import traceback
        traceback.print_exc()
        os._exit(1)
assert os.waitpid(pid, 0)[1] == 0, "the child failed"
finish(threads)
"""
DATA_LOADER = """
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return torch.compile(other, backend="eager")(torch.full((2,), float(index)))

threads = start()
loader = torch.utils.data.DataLoader(Data(), num_workers=2, batch_size=2, timeout=20, multiprocessing_context="fork")
assert sorted(x for batch in loader for x in batch[:, 0].tolist()) == [2.0, 3.0, 4.0, 5.0]
finish(threads)
"""


def run(script: str, install: str = "import safecompile.patch_all") -> tuple[int, str]:
    result = in_forked_process(COMPILING.format(install=install) + script)
    return result.returncode, result.stdout + result.stderr


def test_fork_while_another_thread_compiles() -> None:
    """The child of os.fork() compiles, also the function that was being compiled; the parent goes on."""
    code, output = run(FORK)
    assert code == 0, output
    assert "done" in output.splitlines(), output  # torch may warn after it, where triton is missing, say


def test_plain_torch_hangs_in_the_child() -> None:
    """Red twin: in plain torch, nobody in the child ever frees the compile lock."""
    code, output = run(FORK, install="")
    assert code != 0, output
    assert "Timeout" in output


def test_a_data_loader_with_forked_workers() -> None:
    """The workers of a DataLoader compile, although they were forked while another thread compiled."""
    code, output = run(DATA_LOADER)
    assert code == 0, output
    assert "done" in output.splitlines(), output  # torch may warn after it, where triton is missing, say


CACHED_PROPERTY = """
import functools, os, threading
import torch
import safecompile.patch_all

parent, inside, go = os.getpid(), threading.Event(), threading.Event()

class Kept:
    @functools.cached_property
    def value(self):
        if os.getpid() == parent:
            inside.set()
            go.wait(30)
        return 1.0

def backend(graph, inputs):
    Kept().value
    return graph.forward

def in_child():
    assert Kept().value == 1.0

thread = threading.Thread(target=lambda: torch.compile(lambda x: x + 1, backend=backend)(torch.zeros(2)), daemon=True)
def start():
    thread.start()
    assert inside.wait(30)
def finish(_):
    go.set()
    thread.join(20)
    print("done")
"""


def test_fork_while_the_compiling_thread_has_the_lock_of_a_cached_property() -> None:
    """Python 3.10 and 3.11 have one for each, which nobody in the child would ever free."""
    result = in_forked_process(CACHED_PROPERTY + FORK)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "done" in result.stdout.splitlines(), result.stderr


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing(method: str) -> None:
    """A process started by multiprocessing compiles, whatever the parent's threads are doing."""
    script = f"""
    import multiprocessing, threading
    import torch, safecompile.patch_all
    from tests.helpers.threads import ParkedBackend
    from tests.unit.test_miss_fork import child_of_multiprocessing
    backend = ParkedBackend()
    compiled = torch.compile(lambda x: x + 1, backend=backend)
    thread = threading.Thread(target=lambda: compiled(torch.zeros(2)), daemon=True)
    thread.start()
    backend.wait_parked()
    process = multiprocessing.get_context({method!r}).Process(target=child_of_multiprocessing)
    process.start()
    process.join(60)
    print(process.exitcode)
    backend.release()
    thread.join(20)
    """
    result = in_forked_process(script)
    assert result.stdout.split() == ["0"], result.stderr


def child_of_multiprocessing() -> None:
    """Compiles in the child; importable, since spawn imports what it runs."""
    import torch

    import safecompile.patch_all  # noqa: F401

    torch.set_num_threads(1)
    assert torch.compile(lambda x: x + 2, backend="eager")(torch.zeros(2)).tolist() == [2.0, 2.0]

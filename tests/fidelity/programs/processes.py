"""Whole processes: exit codes, daemon threads, what the end prints, the import of torch."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time

from ..child import Leaving
from ..table import program


def _compile(backend="eager", n=2):
    import torch

    compiled = torch.compile(lambda x: x + 1, backend=backend)
    return compiled(torch.ones(n)).tolist()


def _raise():
    raise KeyError("at the end")


def _error_of_a_compile():
    def fails(gm, inputs):
        raise ValueError("at the end")

    try:
        _compile(fails)
    except Exception as error:
        raise SystemExit(f"{type(error).__name__}: {str(error).splitlines()[0]}") from None


WAYS = {
    "0": lambda: sys.exit(0),
    "3": lambda: sys.exit(3),
    "text": lambda: sys.exit("a text"),
    "none": lambda: sys.exit(),
    "_exit": lambda: os._exit(5),
    "error": _raise,
    "interrupt": lambda: (_ for _ in ()).throw(KeyboardInterrupt),
    "of a compile": _error_of_a_compile,
    "terminated": lambda: os.kill(os.getpid(), 15),
    "atexit": lambda: atexit.register(lambda: print("at exit", _compile())),
    "atexit raises": lambda: atexit.register(_raise),
    "falls off": lambda: None,
}


@program(WAYS, ends=True, quick=("3", "atexit"))
def left(how):
    """The status, and what is said at the end."""
    return Leaving(_compile(), how)


def _daemon(work):
    begun = threading.Event()
    threading.Thread(target=work, args=(begun.set,), daemon=True).start()
    begun.wait(30)


def _sleeping(begun):
    _compile()
    begun()
    time.sleep(1e6)


def _calling(begun):
    import torch

    compiled = torch.compile(lambda x: x + 1, backend="eager")
    compiled(torch.ones(2))
    begun()
    while True:
        compiled(torch.ones(2))
        time.sleep(0.001)


def _compiling(begun):
    def backend(gm, inputs):
        begun()
        time.sleep(1e6)

    _compile(backend)


def _waiting(begun):
    import torch

    inside = threading.Event()

    def backend(gm, inputs):
        inside.set()
        time.sleep(1e6)

    compiled = torch.compile(lambda x: x + 1, backend=backend)
    threading.Thread(target=compiled, args=(torch.ones(2),), daemon=True).start()
    inside.wait(30)
    threading.Thread(target=compiled, args=(torch.ones(2),), daemon=True).start()
    time.sleep(0.3)
    begun()


DAEMONS = {"sleeping": _sleeping, "calling": _calling, "compiling": _compiling, "waiting": _waiting}


@program(DAEMONS, ends=True, quick=("sleeping",))
def left_with_a_daemon(work):
    """A daemon thread sleeps, calls, compiles, or waits for a compile, when the main thread ends."""
    _daemon(work)
    return Leaving("begun", lambda: time.sleep(0.7) if work is _waiting else None)


@program({"3": 3}, ends=True)
def left_by_a_thread(status):
    """A thread of its own ends the process."""
    _compile()
    return Leaving("begun", lambda: threading.Thread(target=os._exit, args=(status,)).start())


@program(ends=True)
def left_with_an_object_that_compiles_at_the_end():
    """A global object's __del__ calls compiled code while the interpreter ends."""
    import torch

    compiled = torch.compile(lambda x: x + 1, backend="eager")
    compiled(torch.ones(2))

    class Ends:
        def __del__(self, call=compiled, argument=torch.ones(2)):
            print("del", call(argument).tolist())

    sys.modules["kept for the end"] = Ends()  # type: ignore[assignment]
    return "made"


IMPORTS = {
    "dynamo": "import torch._dynamo",
    "decorators": "import torch._dynamo.decorators",
    "fx": "import torch.fx",
    "find_spec": "import importlib.util; importlib.util.find_spec('torch._dynamo.eval_frame')",
    "inductor": "import torch._inductor.compile_fx",
    "export": "import torch.export",
    "there is none": "try:\n import torch.there_is_none\nexcept ImportError as e:\n print(e, e.name)",
    "in a thread": "import threading\nt = threading.Thread(target=lambda: __import__('torch._dynamo'))\nt.start(); t.join()",
    "cold Adam": "import torch; torch.optim.Adam([torch.ones(1, requires_grad=True)]).step()",
}


@program(IMPORTS, fresh=True)
def imported(code):
    """What an import loads, and what it leaves in the process; then a compile."""
    exec(code, {})
    found = sorted(name for name in sys.modules if name.startswith("torch"))
    return (
        len(found),
        found[-1:],
        [type(finder).__name__ for finder in sys.meta_path if "wrapt" not in type(finder).__module__],
    )


@program({"spec": 0, "reload": 1, "loader": 2, "again": 3}, fresh=True)
def machinery_of_import(kind):
    """Specs, loaders and reloads of torch's modules."""
    import importlib

    import torch
    import torch._dynamo.eval_frame as module

    if kind == 0:
        return (
            str(module.__spec__.loader.__class__),
            module.__spec__.origin,
            module.__name__,
            str(module.__loader__)[:40],
        )
    if kind == 1:
        importlib.reload(torch.compiler)
        return _compile()
    if kind == 2:
        return module.__spec__.loader.get_source(module.__name__)[:50], module.__spec__.loader.is_package(
            module.__name__
        )
    del sys.modules["torch.fx.traceback"]
    try:
        importlib.import_module("torch.fx.traceback")
    except Exception as error:
        return type(error).__name__
    return _compile()


@program({"default": "", "pool": "2"}, fresh=True, timeout_s=240, columns=("alone", "idle"))
def after_a_cold_compile_with_inductor(threads):
    """A cold compile with Inductor leaves a thread; the same rules afterwards."""
    import random
    import tempfile

    os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
    if threads:
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = threads
    import torch

    torch.compile(lambda x: (x.sin() + 1).sum())(torch.ones(64))

    def draws(gm, inputs):
        torch.randn(3)
        random.random()
        return gm.forward

    torch.manual_seed(0)
    random.seed(0)
    torch.compile(lambda x: x + 1, backend=draws)(torch.ones(2))
    with torch.compiler.set_stance(skip_guard_eval_unsafe=True):
        skips = torch._dynamo.eval_frame._stance.skip_guard_eval_unsafe
    del os.environ["TORCHINDUCTOR_CACHE_DIR"]
    return round(torch.rand(1).item(), 6), round(random.random(), 6), skips, threading.active_count()


#: A torch in which the library finds something that it does not know, so that it refuses each compile.
@program(fresh=True, columns=("alone", "idle"))
def a_torch_that_the_library_refuses():
    """The error that says so has, each time, a traceback of the same length; plain torch raises none."""
    import torch
    import torch.fx._symbolic_trace as module

    uninstall = sys.modules.get("safecompile")
    if uninstall is not None:
        uninstall.uninstall()
    del module._Patcher.patch_method
    if uninstall is not None:
        uninstall.install()
    compiled = torch.compile(lambda x: x + 1, backend="eager")
    lengths = []
    for _ in range(4):
        length, error = 0, None
        try:
            compiled(torch.ones(1))
        except Exception as raised:
            error = raised.__traceback__
        while error is not None:
            length, error = length + 1, error.tb_next
        lengths.append(length)
    return len(set(lengths)) == 1


@program({"unittest": 0, "doctest": 1, "runpy": 2}, fresh=True)
def under_other_runners(kind):
    """unittest, doctest, runpy run a program that compiles."""
    import doctest
    import io
    import runpy
    import tempfile
    import unittest

    if kind == 0:

        class Test(unittest.TestCase):
            def test(self):
                self.assertEqual(_compile(), [2.0, 2.0])

        result = unittest.TextTestRunner(stream=io.StringIO()).run(unittest.TestLoader().loadTestsFromTestCase(Test))
        return result.testsRun, len(result.errors), len(result.failures)
    if kind == 1:
        return list(doctest.run_docstring_examples(">>> 1 + 1\n2\n", {}) or []), _compile()
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write("import torch\nx = torch.compile(lambda x: x + 1, backend='eager')(torch.ones(2)).tolist()\n")
        file.flush()
        return runpy.run_path(file.name)["x"]

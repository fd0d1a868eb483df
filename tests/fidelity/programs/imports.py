"""The import of torch and the library's hooks on it; whole programs in fresh interpreters."""

from __future__ import annotations

import os
import sys
import threading

from tests.fidelity.table import program


def _compile(backend="eager", n=2):
    import torch

    compiled = torch.compile(lambda x: x + 1, backend=backend)
    return compiled(torch.ones(n)).tolist()


IMPORTS = {
    "dynamo": "import torch._dynamo",
    "decorators": "import torch._dynamo.decorators",
    "fx": "import torch.fx",
    "find_spec": "import importlib.util; importlib.util.find_spec('torch._dynamo.eval_frame')",
    "inductor": "import torch._inductor.compile_fx",
    "export": "import torch.export",
    "there is none": "try:\n import torch.there_is_none\nexcept ImportError as e:\n print(e, e.name)",
    "in a thread": "import threading as t\na = t.Thread(target=__import__, args=['torch._dynamo'])\na.start();a.join()",
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
        [
            type(finder).__name__
            for finder in sys.meta_path
            if type(finder).__module__.partition(".")[0] not in ("wrapt", "safecompile")
        ],
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


@program({"default": "", "pool": "2"}, fresh=True, timeout_s=240, columns=("alone",))
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

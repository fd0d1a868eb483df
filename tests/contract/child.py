"""One process of the contract: runs files of PyTorch's tests, and writes what became of each test, a line for each.

It uses nothing of this project's but, if asked, ``import safecompile.patch_all``, before anything of torch.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import re
import sys
import threading
import types
import unittest
from pathlib import Path
from typing import Any


class NeedsDevice(unittest.SkipTest, AttributeError):
    """A test wants what only the device package has; ``hasattr`` gets its no."""


class _Absent(types.ModuleType):
    """Stands for the device package: importable, without a device; whatever else a test wants of it skips the test."""

    __path__: tuple[str, ...] = ()

    def is_available(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NeedsDevice(f"{self.__name__}.{name} needs the device")


def put_stubs() -> None:
    """Puts the modules that the tests import of the device package, and ``torch.npu``, which that package adds."""
    import torch

    for name in ("torch_npu", "torch_npu.testing", "torch_npu.npu", "torchair"):
        sys.modules[name] = _Absent(name)
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, sys.modules[name])
    torch.npu = sys.modules["torch_npu.npu"]
    triton = importlib.import_module("torch.testing._internal.triton_utils")
    vars(triton).setdefault("HAS_CUDA", False)  # imported with a star; 2.13 has another name for it


class _Gone(Exception):
    """Stands for a name that the tests import and this release of torch lacks: an exception, a decorator, any class."""

    def __new__(cls, *args: Any) -> Any:
        if len(args) == 1 and isinstance(args[0], types.FunctionType):
            return args[0]
        raise unittest.SkipTest("this release lacks a name that the test imports")


def _imported(file: str) -> types.ModuleType:
    """Imports a file of tests; gives torch's modules the names that it wants and this release lacks."""
    while True:
        try:
            return importlib.import_module(file.removesuffix(".py").replace("/", "."))
        except ImportError as error:
            first: BaseException = error
            while first.__context__ is not None:
                first = first.__context__
            lacking = re.match(r"cannot import name '(\w+)' from '(torch[\w.]*)'", str(first))
            if lacking is None:
                raise
            setattr(sys.modules[lacking[2]], lacking[1], _Gone)


class _Result(unittest.TestResult):
    """Writes each outcome at once, so that a process that dies loses one test; limits each test."""

    def __init__(self, out: Path, limit_s: float) -> None:
        super().__init__()
        self._out, self._limit_s, self._outcome = out.open("a"), limit_s, ("passed", "")
        self.file = ""

    def write(self, name: str, outcome: str, why: str = "") -> None:
        self._out.write(json.dumps([f"{self.file}::{name}", outcome, " ".join(why.split())[:400]]) + "\n")
        self._out.flush()

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802 - unittest's name
        self._outcome = ("passed", "")
        self.write(test.id(), "started")
        # A thread of C's, which Python does not count: a test must be as alone as it is without a limit.
        faulthandler.dump_traceback_later(self._limit_s, exit=True)

    def stopTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        faulthandler.cancel_dump_traceback_later()
        self.write(test.id(), *self._outcome)

    def addError(self, test: unittest.TestCase, error: Any) -> None:  # noqa: N802
        needs_device = re.search(r"\bnpu\b", str(error[1]))
        self._outcome = ("skipped" if needs_device else "failed", f"{error[0].__name__}: {error[1]}")
        if not isinstance(test, unittest.TestCase) or not hasattr(test, "_testMethodName"):
            self.write(test.id(), *self._outcome)  # a class or a file that could not be set up

    addFailure = addError  # noqa: N815

    def addSubTest(self, test: unittest.TestCase, _: Any, error: Any) -> None:  # noqa: N802
        if error is not None:
            self.addError(test, error)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        self._outcome = ("skipped", reason)

    def addExpectedFailure(self, test: unittest.TestCase, error: Any) -> None:  # noqa: N802
        self._outcome = ("failed as expected", "")

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        self._outcome = ("passed unexpectedly", "")


def _tests(suite: Any) -> Any:
    for one in suite:
        if isinstance(one, unittest.TestSuite):
            yield from _tests(one)
        else:
            yield one


def main(settings: dict[str, Any]) -> None:
    """Runs ``files``; of them only the tests in ``tests``, if there are any, and none of those in ``done``."""
    faulthandler.enable()
    if settings["idle_thread"]:
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    if settings["safe"]:
        import safecompile.patch_all  # noqa: F401
    from torch.testing._internal import common_utils

    assert ("safecompile" in sys.modules) is settings["safe"]
    put_stubs()
    folder = Path(settings["snapshot"], "test")
    sys.path.insert(0, str(folder))
    sys.argv = [str(folder / settings["files"][0])]
    common_utils.parse_cmd_line_args()  # what run_tests() begins with
    result = _Result(Path(settings["out"]), settings["test_limit_s"])
    only, done = set(settings["tests"]), set(settings["done"])
    for file in settings["files"]:
        os.chdir((folder / file).parent)
        result.file = file
        try:
            module = _imported(file)
        except BaseException as error:
            result.write("import", "failed", repr(error))
            continue
        loaded = _tests(unittest.defaultTestLoader.loadTestsFromModule(module))
        found = {f"{file}::{test.id()}": test for test in loaded}
        wanted = (only or set(found)) - done
        unittest.TestSuite(test for name, test in found.items() if name in wanted).run(result)
    result.write("", "all done")
    os._exit(0)  # what the tests left behind is not judged


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))

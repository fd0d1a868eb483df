"""Imports of torch's modules beside each other: nobody waits under CPython's import lock; one imports Dynamo first."""

from __future__ import annotations

import traceback
import warnings

import pytest

from safecompile._installing import imports
from tests.helpers.threads import in_fresh_process

from .processes import passes_without_torch

STAGED = """
import importlib, os, sys, threading, time
{first}
import torch, torch.fx
from tests.helpers import first_uses
if "flex" in "{b}":
    import torch.nn.attention.flex_attention
if "torch._dynamo" in sys.modules:  # 2.7.1 imports it with flex_attention, by a statement of the user's
    os._exit(0)
reached, begun, results = threading.Event(), threading.Event(), {{}}

def audit(event, args):
    # Thread A stops in the middle of the import of torch._dynamo, once.
    if event == "import" and threading.current_thread().name == "A" and not reached.is_set():
        if str(args[0]) in ("torch._dynamo.aot_compile", "torch._dynamo.convert_frame"):
            reached.set()
            begun.wait(30)
            time.sleep(0.5)

sys.addaudithook(audit)

def job(name, call):
    try:
        call()
        results[name] = "ok"
    except BaseException as error:
        results[name] = repr(error)

def run(name, call):
    thread = threading.Thread(target=job, args=(name, call), name=name, daemon=True)
    thread.start()
    return thread

a = run("A", {a})
assert reached.wait(60), results
b = run("B", lambda: (begun.set(), ({b})()))
bystander = run("C", lambda: (begun.wait(30), time.sleep(0.2), importlib.import_module("colorsys")))
for thread in (bystander, a, b):
    thread.join(60)
print(results)
os._exit({verdict})
"""
NONE_HANGS = "0 if results.keys() == {'A', 'B', 'C'} and results['C'] == 'ok' else 3"
ALL_RIGHT = "0 if list(results.values()) == ['ok'] * 3 else 3"
SAFE = "import safecompile.patch_all"
#: A finder that imports the parent, as wrapt's and others do.
WAITING = """
import importlib.util
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("torch._dynamo."):
            importlib.import_module(name.rpartition(".")[0])
sys.meta_path.insert(0, Finder())
"""

SUBMODULES = ("decorators", "eval_frame", "convert_frame", "guards", "utils", "trace_rules", "compiled_autograd")
RAW = "lambda: importlib.import_module('torch._dynamo{}')"


@pytest.mark.parametrize("name", SUBMODULES)
def test_import_of_a_submodule_beside_the_import_of_dynamo(name):
    """Both imports end, with an ImportError at worst as in plain torch, and other imports go on meanwhile."""
    program = STAGED.format(first=SAFE, a=RAW.format(""), b=RAW.format(f".{name}"), verdict=NONE_HANGS)
    passes_without_torch(program, timeout_s=200)


def test_a_finder_that_imports_the_parent_hangs_every_import():
    """What the library's own finder must not do: with such a finder the same scene hangs, and a bystander with it."""
    program = STAGED.format(first=WAITING, a=RAW.format(""), b=RAW.format(".decorators"), verdict=NONE_HANGS)
    program = program.replace("thread.join(60)", "thread.join(5)")
    done = in_fresh_process(program, timeout_s=200)
    assert done.returncode == 3, done.stdout + done.stderr


USES = ("compile_eager", "export", "adam", "flex_attention", "checkpoint", "vmap", "symbolic_trace")


@pytest.mark.parametrize("use", USES)
def test_first_use_beside_the_import_of_dynamo(use):
    """A public entry that is called while another thread imports Dynamo waits for it, and works."""
    program = STAGED.format(first=SAFE, a="first_uses.adam", b=f"first_uses.{use}", verdict=ALL_RIGHT)
    passes_without_torch(program, timeout_s=300)


def test_first_use_in_plain_torch():
    """The red twin: without the library torch.compile gets a half imported module (2.9.1, 2.13.0; 2.15.0 is right)."""
    program = STAGED.format(first="", a="first_uses.adam", b="first_uses.compile_eager", verdict=ALL_RIGHT)
    done = in_fresh_process(program, timeout_s=300)
    if done.returncode == 0:
        pytest.skip("this torch gets it right by itself")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "Error" in done.stdout, done.stdout


def test_what_is_left_of_a_first_call():
    """Signature, source and identity of torch.compile are as before, and after the first call its code is torch's."""
    passes_without_torch(
        """
    import inspect, sys
    import torch
    plain, code, text = torch.compile, torch.compile.__code__, inspect.getsource(torch.compile)
    signature = inspect.signature(torch.compile)
    import safecompile.patch_all
    assert torch.compile is plain and plain.__code__ is not code
    assert inspect.signature(plain) == signature and inspect.getsource(plain) == text
    assert callable(torch.compile(backend="eager")) and "torch._dynamo" not in sys.modules
    assert torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1)) == 2
    assert plain.__code__ is code and torch.export.export.__code__.co_name == "export"
    assert not [one for one in torch.export.export.__code__.co_consts if callable(one)]  # nor does any other wait
    """
    )


def test_modules_have_the_loaders_of_plain_torch():
    """Loader, specification and data of a module that the library waits for are what they are in plain Python."""
    passes_without_torch(
        """
    import importlib.machinery, importlib.util, inspect, pickle, sys
    import safecompile.patch_all
    spec = importlib.util.find_spec("torch._dynamo.eval_frame") if "torch" in sys.modules else None
    import torch
    found = importlib.util.find_spec("torch._dynamo")
    assert isinstance(found.loader, importlib.machinery.SourceFileLoader) and found.loader.is_package("torch._dynamo")
    assert type(pickle.loads(pickle.dumps(found.loader))) is importlib.machinery.SourceFileLoader
    import torch._dynamo
    for name in ("torch", "torch._dynamo", "torch._dynamo.eval_frame", "torch.fx.graph"):
        module = sys.modules[name]
        assert type(module.__loader__) is type(module.__spec__.loader) is importlib.machinery.SourceFileLoader, name
        assert module.__loader__ is module.__spec__.loader and inspect.getsource(module)
    import safecompile
    finders = [one for one in sys.meta_path if type(one).__module__.startswith("safecompile")]
    assert len(finders) == 1, finders
    safecompile.install()
    assert len([one for one in sys.meta_path if type(one).__module__.startswith("safecompile")]) == 1
    safecompile.uninstall()
    assert not [one for one in sys.meta_path if type(one).__module__.startswith("safecompile")]
    """
    )


def test_lazy_modules_stay_lazy_and_are_patched():
    """A module of importlib.util.LazyLoader is patched when its code has run, and not made to run before."""
    passes_without_torch(
        """
    import importlib.util, sys
    import torch
    import safecompile
    name = "torch._dynamo"
    spec = importlib.util.find_spec(name)
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    safecompile.install()
    assert type(module) is importlib.util._LazyModule
    module.reset
    assert safecompile._installing.installer.state()["miss"] == "on"
    """
    )


def test_a_module_that_fails_shows_no_frame_of_an_import(tmp_path, monkeypatch):
    """The traceback of its error has the frames that it has in plain Python, and its warning names the same place."""
    (tmp_path / "warns_and_fails.py").write_text("import warnings\nwarnings.warn('x', stacklevel=2)\nraise OSError\n")
    monkeypatch.syspath_prepend(tmp_path)

    def seen():
        with warnings.catch_warnings(record=True) as caught, pytest.raises(OSError) as raised:
            warnings.simplefilter("always")
            import warns_and_fails  # noqa: F401
        return caught[0].filename, [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]

    plain = seen()
    finder = imports.Finder(["warns_and_fails"], lambda _: None)
    finder.put_in()
    try:
        assert seen() == plain
    finally:
        finder.take_out()

"""Pickles and files, read back in a process that has no library."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from tests.fidelity.table import program

from ._common import attempt, ones, told

READER = """
import sys
sys.modules["safecompile"] = None
import io, json, pickle, torch
kind, data = pickle.loads(open(sys.argv[1], "rb").read())
read = pickle.loads if kind == "pickle" else lambda d: torch.load(io.BytesIO(d), weights_only=kind == "weights")
found = read(data)
if isinstance(found, (list, tuple)):
    found = found[0]
if isinstance(found, dict):
    print(sorted(found))
else:
    print(type(found).__module__, type(found).__name__, found(torch.ones(2, 2)).shape if callable(found) else found)
"""


def _read_elsewhere(kind, data):
    with tempfile.NamedTemporaryFile(suffix=".bin") as file:
        Path(file.name).write_bytes(pickle.dumps((kind, data)))
        done = subprocess.run([sys.executable, "-c", READER, file.name], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr.strip().splitlines()[-1:]


def _saved(value):
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


class Own(torch.nn.Module):
    """A module of the user's."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)

    def forward(self, x):
        return self.layer(x)


def _compiled(module=None, *, called=True):
    compiled = torch.compile(module or torch.nn.Linear(2, 2), backend="eager")
    if called:
        compiled(ones(2, 2))
    return compiled


def _module_compile():
    module = torch.nn.Linear(2, 2)
    module.compile(backend="eager")
    module(ones(2, 2))
    return module


THINGS = {
    "compiled": _compiled,
    "never called": lambda: _compiled(called=False),
    "of the user": lambda: _compiled(Own()),
    "part": lambda: torch.nn.Sequential(_compiled(), torch.nn.ReLU()),
    "deep copy": lambda: copy.deepcopy(_compiled()),
    "module compile": _module_compile,
    "in a list": lambda: [_compiled()],
    "read back": lambda: pickle.loads(pickle.dumps(_compiled())),
    "plain": lambda: torch.nn.Linear(2, 2),
    "graph module": lambda: torch.fx.symbolic_trace(torch.nn.Linear(2, 2)),
    "state": lambda: _compiled().state_dict(),
}


@program(THINGS, quick=("compiled",))
def pickled(make):
    """The bytes name no library, and can be read back."""
    thing = make()
    try:
        data = pickle.dumps(thing)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    back = pickle.loads(data)
    back = back[0] if isinstance(back, list) else back
    return b"safecompile" in data, type(back).__name__, attempt(lambda: list(back(ones(2, 2)).shape))


@program({name: THINGS[name] for name in ("compiled", "part", "module compile", "state")})
def saved(make):
    """A file of torch.save's names no library, and is read back."""
    data = _saved(make())
    back = torch.load(io.BytesIO(data), weights_only=False)
    back = back[0] if isinstance(back, list) else back
    return b"safecompile" in data, type(back).__name__, attempt(lambda: list(back(ones(2, 2)).shape))


ELSEWHERE = {
    name: (name, kind) for name, kind in (("compiled", "pickle"), ("of the user", "save"), ("state", "weights"))
}


@program(ELSEWHERE, columns=("alone", "idle"), timeout_s=120)
def read_without_the_library(name, kind):
    """Another process reads it, which cannot import the library."""
    thing = THINGS[name]()
    return _read_elsewhere(kind, pickle.dumps(thing) if kind == "pickle" else _saved(thing))


@program({"2": 2, "3": 3, "4": 4, "5": 5})
def pickled_by_protocol(protocol):
    """The opcodes are those of plain torch, whatever the protocol."""
    import pickletools

    module = _compiled(Own())
    try:
        data = pickle.dumps(module, protocol)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    names = {"GLOBAL", "STACK_GLOBAL", "SHORT_BINUNICODE"}
    return [str(arg) for op, arg, _ in pickletools.genops(data) if op.name in names and "/" not in str(arg)]


@program({"compile": torch.compile, "set_stance": torch.compiler.set_stance, "trace": torch.fx.Tracer,
          "is_compiling": torch.compiler.is_compiling, "module": torch.nn.Module, "reset": torch._dynamo.reset},
)  # fmt: skip
def functions_of_torch(function):
    """torch's own functions are pickled by reference, copied as themselves."""
    return pickle.dumps(function).decode("latin-1"), copy.deepcopy(function) is function


@program()
def reduced():
    """What copyreg and __reduce_ex__ say."""
    compiled = _compiled()
    return (
        str(attempt(lambda: compiled.__reduce_ex__(2)[0])),
        str(type(compiled).__reduce__),
        sorted(compiled.__getstate__()),
    )


@program()
def state_loaded():
    """load_state_dict between a compiled module and a plain one."""
    compiled, plain = _compiled(Own()), Own()
    return attempt(plain.load_state_dict, compiled._orig_mod.state_dict()), told(
        compiled(ones(2, 2)).equal(plain(ones(2, 2)))
    )


@program(needs="torch.compiler.save_cache_artifacts")
def cache_artifacts():
    """save_cache_artifacts without Inductor."""
    _compiled()
    return attempt(torch.compiler.save_cache_artifacts)


@program()
def weights_only():
    """torch.load refuses a whole compiled module with the same words."""
    data = _saved(_compiled())
    raised = attempt(torch.load, io.BytesIO(data), weights_only=True)
    return raised["type"], raised["text"][:400]


@program()
def deep_copies_share_nothing():
    """A deep copy has weights and hooks of its own."""
    first = _compiled(Own())
    second = copy.deepcopy(first)
    with torch.no_grad():
        second._orig_mod.layer.weight.zero_()
        second._orig_mod.layer.bias.zero_()
    return told(second(ones(2, 2))), bool(first(ones(2, 2)).any()), sorted(vars(second))

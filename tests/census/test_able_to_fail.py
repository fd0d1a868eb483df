"""The census can fail: each kind of state that a scene changes for a while is seen from another thread."""

from __future__ import annotations

import json

import pytest

from tests.helpers.threads import in_fresh_process

#: What a scene does between ``before`` and ``after`` a call, and the place that must be told.
CHANGES = {
    "a variable": ("subject.VARIABLE = 1", "subject.VARIABLE = 0", "torch.subject.VARIABLE"),
    "a class": ("subject.Thing.attribute = 1", "subject.Thing.attribute = 0", "torch.subject.Thing.attribute"),
    "an object": ("subject.thing.own = 1", "del subject.thing.own", "torch.subject.thing.own"),
    "an object in an object": ("subject.outer.inner.x = 2", "subject.outer.inner.x = 1", "torch.subject.outer.inner.x"),
    "a slot": ("subject.slotted.x = 2", "subject.slotted.x = 1", "torch.subject.slotted.x"),
    "a list": ("subject.LIST.append(3)", "subject.LIST.pop()", "torch.subject.LIST[]"),
    "a set": ("subject.SET.add(3)", "subject.SET.discard(3)", "torch.subject.SET[]"),
    "a dictionary": ("subject.DICT['a'] = 3", "subject.DICT['a'] = 1", "torch.subject.DICT[]"),
    "a closure": ("subject.put(1)", "subject.put(0)", "torch.subject.made.<locals>.put.<cell>"),
    "a function's code": ("swap()", "swap()", "torch.subject.function.__code__"),
    "builtins": ("builtins.max = min", "builtins.max = real", "builtins.max"),
    "math": ("math.pow = min", "math.pow = pow_", "math.pow"),
    "an environment variable": ("os.environ['CENSUS'] = '1'", "del os.environ['CENSUS']", "os.environ._data[]"),
    "a logger": ("log.setLevel(10)", "log.setLevel(0)", "logging.Logger().level"),
    "a filter of warnings": ("warnings.simplefilter('error')", "warnings.filters.pop(0)", "warnings.filters[]"),
    "the collector": ("gc.set_threshold(9)", "gc.set_threshold(700, 10, 10)", "gc.get_threshold()"),
    "a hook": ("sys.excepthook = min", "sys.excepthook = sys.__excepthook__", "sys.excepthook"),
    "a switch in C": ("torch.set_default_dtype(d)", "torch.set_default_dtype(f)", "torch._C.get_default_dtype()"),
    "random numbers": ("random.seed(1)", "random.setstate(state)", "random.getstate()"),
}
PROGRAM = """
import builtins, gc, json, logging, math, os, random, sys, types, warnings
import torch, torch._dynamo
subject = sys.modules["torch.subject"] = types.ModuleType("torch.subject")
exec('''
VARIABLE, LIST, SET, DICT = 0, [1], {1}, {"a": 1}
class Thing:
    attribute = 0
class Slotted:
    __slots__ = ("x",)
thing, outer, slotted = Thing(), Thing(), Slotted()
outer.inner, slotted.x = Thing(), 1
outer.inner.x = 1
def made():
    cell = 0
    def put(value):
        nonlocal cell
        cell = value
    return put
put = made()
def function():
    return 1
def other():
    return 2
''', vars(subject))
from tests.census.parking import Watch
real, pow_, d, f, state = max, math.pow, torch.float64, torch.float32, random.getstate()
log = logging.getLogger("census.log")
def swap():
    subject.function.__code__, subject.other.__code__ = subject.other.__code__, subject.function.__code__
def in_between():
    pass
def run():
    for before, after in CHANGES:
        exec(before)
        in_between()  # seen at this call only
        exec(after)
watch = Watch(run, 10 ** 6, 60.0)
watch.look()
print(json.dumps(watch.found))
"""


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, object]]:
    changes = [(before, after) for before, after, _ in CHANGES.values()]
    done = in_fresh_process(f"CHANGES = {changes!r}\n{PROGRAM}", timeout_s=120.0)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("kind", CHANGES)
def test_what_another_thread_sees_for_one_call_is_told(found, kind: str) -> None:
    """A change that is there during one call alone is found, and that it went back."""
    place = CHANGES[kind][2]
    assert place in found, sorted(found)
    assert not found[place]["stays"]


def test_nothing_else_is_told(found) -> None:
    """What the scene has not touched is as before."""
    assert found.keys() <= {place for _, _, place in CHANGES.values()} | {
        "threading._active[]",  # the scene's own thread
        "threading._dangling.data[]",
        "torch.subject.other.__code__",
        "math.pow(2, 3)",  # what was replaced in ``math`` and ``builtins`` answers
        "max(names, key=len)",
        "torch.Storage",  # they follow the default dtype
        "torch.ones(1).dtype",
        "torch.fx.operator_schemas._type_eval_globals[][]",  # the dictionary of builtins
    }

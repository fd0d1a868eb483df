"""Anomaly mode: what an AOT trace switches is its own, and what other threads set is theirs.

torch's switch, in C, is one for the process. A trace of a joint graph turns it on, for the stacks that autograd then
notes, and turns its NaN check off. Here torch's functions tell each thread its own: inside such a trace what the
trace has set, else what users have set last. In C the mode is on while one traces, and NaNs are looked for as users
have set it, but for the moments in which a trace runs a backward of its own.
"""

from __future__ import annotations

import ast
import threading
from types import ModuleType
from typing import Any, Final

from .._common import forks
from .._patching import rewriting
from .._patching.families import Part
from .._patching.patches import AttributePatch, CodePatch, Patch
from .._torch import autograd as host
from .._torch.dynamo import TRACE_RULES

_RECORDING = "__safecompile_recording__"

#: The mode and its NaN check.
_Set = tuple[bool, bool]


class _Here(threading.local):
    """What the traces that this thread is in have set, the innermost last."""

    def __init__(self) -> None:
        self.traces: list[_Set] = []


_here = _Here()

# A leaf lock around all of the following and torch's own switch. Reentrant for signal handlers and finalizers.
_switch = threading.RLock()
_users: _Set = (False, True)
_traces = 0
_own_backwards = 0
_engine: Any = None


def _is_enabled() -> bool:
    """Returns whether anomaly mode is on: what this thread's trace has set, else what users have."""
    return _seen()[0]


def _is_check_nan_enabled() -> bool:
    """Returns whether anomaly mode looks for NaNs: what this thread's trace has set, else what users have."""
    return _seen()[1]


def _seen() -> _Set:
    if _here.traces:
        return _here.traces[-1]
    with _switch:
        return _users if _traces else host.anomaly_mode()


def _set_enabled(enabled: bool, check_nan: bool = True) -> None:
    """Sets anomaly mode: in a trace for it alone, else for all threads."""
    global _users
    if _here.traces:
        _here.traces[-1] = (enabled, check_nan)
        return
    with _switch:
        _users = (enabled, check_nan)
        _apply()


def _apply() -> None:
    """Gives torch's own switch the value for what goes on by now."""
    global _engine
    enabled, check_nan = _users
    if _traces:
        host.set_anomaly_mode(True, enabled and check_nan and not _own_backwards)
    else:
        host.set_anomaly_mode(enabled, check_nan)
    if (_traces and enabled and check_nan) and _engine is None:
        _engine = _with_own_backwards(host.execution_engine())
        host.set_execution_engine(_engine)
    elif not _traces and _engine is not None:
        if host.execution_engine() is _engine:
            host.set_execution_engine(_engine.original)
        _engine = None


def _with_own_backwards(before: Any) -> Any:
    """Returns an engine in which no NaN is looked for in the backward of a trace, whose tensors have no values."""
    run = before.run_backward

    class Engine(type(before)):  # type: ignore[misc]
        """torch's engine, beside traces."""

        original = before

        def run_backward(self, *args: Any, **kwargs: Any) -> Any:
            if not _here.traces:
                return run(*args, **kwargs)
            _count_own_backwards(1)
            try:
                return run(*args, **kwargs)
            finally:
                _count_own_backwards(-1)

    return Engine()


def _count_own_backwards(change: int) -> None:
    global _own_backwards
    with _switch:
        _own_backwards += change
        _apply()


class _Recording:
    """What stands in the place of ``torch.autograd.detect_anomaly(check_nan=False)`` in a trace."""

    def __enter__(self) -> None:
        global _users, _traces
        with _switch:
            if not _traces:
                _users = host.anomaly_mode()
            _traces += 1
            _here.traces.append((True, False))
            _apply()

    def __exit__(self, *_: object) -> None:
        global _traces
        with _switch:
            _here.traces.pop()
            _traces -= 1
            _apply()


class _OfATrace(ast.NodeTransformer):
    """Turns ``torch.autograd.detect_anomaly(check_nan=False)`` into ``__safecompile_recording__()``."""

    changed = 0

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if ast.unparse(node) != "torch.autograd.detect_anomaly(check_nan=False)":
            return node
        self.changed += 1
        return ast.copy_location(ast.Call(ast.copy_location(ast.Name(_RECORDING, ast.Load()), node), [], []), node)


def patches_of_aot_autograd(_: ModuleType) -> list[Patch]:
    """Returns the patches for the traces of joint graphs; changes nothing."""
    module, functions = host.users_of_anomaly_mode()
    patches: list[Patch] = [AttributePatch(module, _RECORDING, _Recording, new=True)]
    for function in functions:
        code = rewriting.changed(function, _OfATrace(), "one block with anomaly mode")
        patches.append(CodePatch(function, code))
    return patches


def patches_of_anomaly_mode(_: ModuleType) -> list[Patch]:
    """Returns the patches for torch's functions that tell and set the mode; changes nothing."""
    functions = (_is_enabled, _is_check_nan_enabled, _set_enabled)
    names = zip(host.ANOMALY_MODE, functions, strict=True)
    return [AttributePatch(host.torch(), name, function) for name, function in names]


class _RulesPatch:
    """Adds rules for the functions that tell the mode to Dynamo's, and to the table that it may have made of them."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._rule = module, host.rule_of_functions_in_c(module)
        self._functions = (_is_enabled, _is_check_nan_enabled)
        self._by_name = {f"{__name__}.{function.__name__}": self._rule for function in self._functions}

    def apply(self) -> None:
        host.rules(self._module).append(self._by_name)
        table = host.table_of_rules(self._module)
        for function in self._functions:
            table[function] = self._rule

    def revert(self) -> str | None:
        rules = host.rules(self._module)
        rules[:] = [one for one in rules if one is not self._by_name]
        table = host.table_of_rules(self._module)
        for function in self._functions:
            table.pop(function, None)
        return None


def patches_of_trace_rules(module: ModuleType) -> list[Patch]:
    """Returns the patch by which Dynamo takes the functions that tell the mode for torch's; changes nothing."""
    return [_RulesPatch(module)]


@forks.in_child
def after_fork_in_child() -> None:
    """Forgets the traces of threads that the child does not have."""
    global _switch, _traces, _own_backwards
    _switch = threading.RLock()
    if _traces != len(_here.traces):
        _traces, _own_backwards = len(_here.traces), 0
        _apply()


PARTS: Final = (
    Part("anomaly mode", host.ANOMALY_MODULE, patches_of_anomaly_mode),
    Part("anomaly mode", host.AOT_AUTOGRAD, patches_of_aot_autograd),
    Part("anomaly mode", TRACE_RULES, patches_of_trace_rules),
)

"""Switches of the process that a compile flips under other threads: here each thread has its own.

``torch.compiler.is_compiling()`` and ``is_exporting()``; the flags of active dispatch modes; error_on_graph_break;
whether torch's rules skip nothing; the metrics context; the active DistributedDataParallel; the callbacks around a
compile.
Autograd's workers need no copy: a trace keeps autograd on its own thread.
"""

from __future__ import annotations

import ast
import contextvars
import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final

from .._patching import rewriting, thread_names
from .._patching.families import Part
from .._patching.patches import AttributePatch, CodePatch, Patch
from .._patching.thread_globals import thread_local_globals
from .._torch import state as host
from .._torch.dynamo import TRACE_RULES


class _Local(threading.local):
    """The per-thread values; a thread begins with what a process begins with."""

    def __getattr__(self, name: str) -> Any:
        # Made when the thread compiles, or is in a mode of an export's, for the first time.
        makers = {host.METRICS_CONTEXT: host.new_metrics_context, host.PRE_DISPATCH: host.new_pre_dispatch_state}
        if name not in makers:
            raise AttributeError(name)
        value = vars(self)[name] = makers[name]()
        return value


# In the class: a signal handler may come in the middle of a thread's first use.
for _name, _value in host.initial_values().items():
    setattr(_Local, _name, _value)

local: Any = _Local()


def patches_of_compiler(module: ModuleType) -> list[Patch]:
    """Returns the patches for is_compiling() and is_exporting(); changes nothing."""
    return thread_local_globals(module, host.COMPILING, local, flags=host.COMPILING)


def patches_of_export_utils(module: ModuleType) -> list[Patch]:
    """Returns the patch for torch.export, which sets those flags from outside; changes nothing."""
    return [_by_attribute(function, host.COMPILING) for function in host.export_flag_setters(module)]


def patches_of_dispatch_modes(module: ModuleType) -> list[Patch]:
    """Returns the patches for the flags of active dispatch modes; changes nothing."""
    flags = (*host.DISPATCH_MODES, *host.DISPATCH_MODES_OPTIONAL)
    return thread_local_globals(
        module, host.DISPATCH_MODES, local, optional=flags[len(host.DISPATCH_MODES) :], flags=flags
    )


def patches_of_ops(module: ModuleType) -> list[Patch]:
    """Returns the patch for the stack of modes in which an export traces; changes nothing."""
    # One for the process (2.7-2.15): beside an export, what another thread prints or
    # compiles pops it ("Trying to pop empty mode stack").
    function, change = host.pre_dispatch_state(module), thread_names.ThreadLocalNames([host.PRE_DISPATCH])
    code = rewriting.recompiled(function, change.visit)
    if not change.changed:
        msg = f"a use of {host.PRE_DISPATCH} in {function.__qualname__}"
        raise LookupError(msg)
    return [AttributePatch(module, thread_names.LOCAL, local, new=True), CodePatch(function, code)]


def patches_of_dynamo_utils(module: ModuleType) -> list[Patch]:
    """Returns the patches for error_on_graph_break and the metrics context; changes nothing."""
    return thread_local_globals(
        module, (), local, optional=(host.ERROR_ON_GRAPH_BREAK, host.METRICS_CONTEXT), flags=[host.ERROR_ON_GRAPH_BREAK]
    )


def patches_of_trace_rules(module: ModuleType) -> list[Patch]:
    """Returns the patch for the switch that has torch's rules skip nothing; changes nothing."""
    return thread_local_globals(module, (), local, optional=[host.FORCE_INLINE], flags=[host.FORCE_INLINE])


def patches_of_ddp(module: ModuleType) -> list[Patch]:
    """Returns the patches for the active DistributedDataParallel; changes nothing."""
    found = [_by_attribute(function, [host.ACTIVE_DDP_MODULE]) for function in host.ddp_functions(module)]
    return [AttributePatch(module.DistributedDataParallel, thread_names.LOCAL, local, new=True), *found]


def patches_of_autograd_graph(module: ModuleType) -> list[Patch]:
    """Returns the patch for the context that a backward pass hands to autograd's workers; changes nothing."""
    # torch 2.12 and 2.13 run each compiled backward in the one context: the second worker that enters it raises
    # "cannot enter context". 2.14 runs each in a copy. Older releases have no such context.
    function = host.run_backward(module)
    if "copy_context" not in function.__code__.co_names:
        return []
    change = _SharedContext()
    return [
        AttributePatch(module, _SharedContext.NAME, _Context, new=True),
        CodePatch(function, rewriting.recompiled(function, change.visit)),
    ]


class _Calling(threading.local):
    """Whether this thread is inside a callback, and how many compiles it is in the middle of."""

    on = False
    compiles = 0

    def call(self, callbacks: Callable[..., None], given: tuple[Any, ...]) -> None:
        """Runs the callbacks: a compile inside one has none of its own."""
        self.on = True
        try:
            callbacks(*given)
        finally:
            self.on = False


def patches_of_callback(module: ModuleType) -> list[Patch]:
    """Returns the patch that runs the callbacks of a compile without a lock; changes nothing."""
    # torch 2.7-2.15 holds a lock that is not reentrant while it runs the callbacks of on_compile_start() and
    # on_compile_end(): one that calls compiled code hangs, with one thread too.
    owner, calling = module.CompilationCallbackHandler, _Calling()
    if host.pending_callbacks(owner(), 0) != 0:
        msg = "a count of pending callbacks that begins with 0"
        raise LookupError(msg)

    @contextmanager
    @functools.wraps(owner.install_callbacks)
    def _patched_install_callbacks(self: Any, *args: Any, **kwargs: Any) -> Iterator[None]:
        if calling.on:
            yield
            return
        # torch 2.8+ tells the callbacks what compiles. Drop when min torch > 2.7.
        given = (module.CallbackArgs(*args, **kwargs),) if hasattr(module, "CallbackArgs") else ()
        first = host.pending_callbacks(self, 1) == 1
        calling.compiles += 1
        try:
            if first:
                calling.call(self.run_start_callbacks, given)
            yield
        finally:
            calling.compiles -= 1
            if host.pending_callbacks(self, -1) == 0:
                calling.call(self.run_end_callbacks, given)

    return [
        AttributePatch(owner, "install_callbacks", _patched_install_callbacks),
        AttributePatch(owner, "clear", _patched_clear(owner.clear, calling)),
    ]


def _patched_clear(original: Callable[[Any], None], calling: _Calling) -> Callable[[Any], None]:
    @functools.wraps(original)
    def clear(self: Any) -> None:
        try:
            original(self)
        except AssertionError:
            # By now all is cleared (2.11+). Another thread may be between its callbacks beside a reset: recording a
            # CUDA graph, it holds no lock.
            if calling.compiles or host.pending_callbacks(self, 0) == 0:
                raise

    return clear


class _SharedContext(ast.NodeTransformer):
    """Turns ``contextvars.copy_context()`` into ``__safecompile_context__()``."""

    NAME = "__safecompile_context__"

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if ast.unparse(node.func) == "contextvars.copy_context":
            node.func = ast.copy_location(ast.Name(self.NAME, ast.Load()), node.func)
        return node


class _Context:
    """A copy of the caller's context that any number of threads may run in at once, each in a copy of its own."""

    __slots__ = ("_context",)

    def __init__(self) -> None:
        self._context = contextvars.copy_context()

    def run(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """As ``contextvars.Context.run``."""
        return self._context.copy().run(function, *args, **kwargs)

    def copy(self) -> contextvars.Context:
        """As ``contextvars.Context.copy``."""
        return self._context.copy()


def _by_attribute(function: Any, names: Any) -> Patch:
    flags = [name for name in names if name in host.COMPILING]
    change = thread_names.ThreadLocalNames(names, flags=flags, attributes=True)
    code = rewriting.recompiled(function, change.visit)
    if not change.changed:
        msg = f"a use of {names[0]} in {function.__qualname__}"
        raise LookupError(msg)
    return CodePatch(function, code)


PARTS: Final = (
    Part("compiling", host.COMPILER, patches_of_compiler),
    Part("compiling", host.EXPORT_UTILS, patches_of_export_utils),
    Part("dispatch modes", host.PYTHON_DISPATCH, patches_of_dispatch_modes),
    Part("dispatch modes", host.OPS, patches_of_ops),
    Part("dynamo", host.DYNAMO_UTILS, patches_of_dynamo_utils),
    Part("dynamo", TRACE_RULES, patches_of_trace_rules),
    Part("autograd context", host.AUTOGRAD_GRAPH, patches_of_autograd_graph),
    Part("callbacks", host.CALLBACK, patches_of_callback),
    Part("ddp", host.DISTRIBUTED, patches_of_ddp),
)

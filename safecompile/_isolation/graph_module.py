"""The code of a GraphModule, made by several threads at once: one makes it, the others wait for milliseconds.

While a graph writes its code, each node carries the names that this code gives it. Two threads that do it for one graph
take each other's names (NameError in the generated forward, 2.7-2.15), and put back the wrong ones. A lazy GraphModule
writes its code at its first call.
"""

from __future__ import annotations

import ast
import functools
import threading
from types import ModuleType
from typing import Any, Final

from .._common import forks
from .._patching import rewriting
from .._patching.families import Part
from .._patching.patches import AttributePatch, CodePatch, Patch
from .._torch import fx as torch_fx

# Held while code is written, for milliseconds. One for the process: two threads could not write at once under the GIL
# anyway. A transform of the user's may compile or import meanwhile and so wait: whoever waits here for longer than
# AT_MOST_S goes on without it, as plain torch does. After a fork the child makes it anew.
_writing = threading.RLock()
AT_MOST_S = 2.0


def _one_at_a_time(owner: Any, name: str) -> Patch:
    original = vars(owner)[name]

    @functools.wraps(original)
    def _patched_writer(self: Any, *args: Any, **kwargs: Any) -> Any:
        lock = _writing
        held = lock.acquire(timeout=AT_MOST_S)
        try:
            return original(self, *args, **kwargs)
        finally:
            if held:
                lock.release()

    return AttributePatch(owner, name, _patched_writer)


class _NoAssertion(ast.NodeTransformer):
    """Takes out what asserts that nobody has asked for new code since this thread has written it."""

    changed = False

    def _drop(self, node: ast.AST) -> ast.AST | None:
        if torch_fx.IS_ASKED_ANEW not in ast.unparse(node):
            return node
        self.changed = True
        return None

    visit_Assert = visit_If = _drop  # noqa: N815 - the names that ast asks for


def patches_of_graph(module: ModuleType) -> list[Patch]:
    """Returns the patch for ``Graph.python_code``; changes nothing."""
    return [_one_at_a_time(module.Graph, "python_code")]


def patches_of_graph_module(module: ModuleType) -> list[Patch]:
    """Returns the patch for ``GraphModule.recompile``; changes nothing."""
    return [_one_at_a_time(module.GraphModule, "recompile")]


def patches_of_lazy_graph_module(module: ModuleType) -> list[Patch]:
    """Returns the patches for a GraphModule that writes its code at its first call; changes nothing."""
    owner, change = torch_fx.lazy_graph_module(module), _NoAssertion()
    lazy = torch_fx.lazy_forward(owner)
    code = rewriting.recompiled(lazy, change.visit)
    if not change.changed:
        msg = f"the assertion in {lazy.__qualname__}"
        raise LookupError(msg)
    return [_one_at_a_time(owner, "real_recompile"), CodePatch(lazy, code)]


@forks.in_child
def after_fork_in_child() -> None:
    """Makes the lock anew: the thread that held it does not exist in the child."""
    global _writing
    _writing = threading.RLock()


PARTS: Final = (
    Part("graph modules", torch_fx.GRAPH, patches_of_graph),
    Part("graph modules", torch_fx.GRAPH_MODULE, patches_of_graph_module),
    Part("graph modules", torch_fx.LAZY_GRAPH_MODULE, patches_of_lazy_graph_module),
)

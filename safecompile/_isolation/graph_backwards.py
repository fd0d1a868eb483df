"""Backwards that run without CUDA graphs: each tells the tree manager of the thread that calls it, not of one other.

torch binds to such a backward, when it is compiled, the manager of the thread that compiles.
"""

from __future__ import annotations

import ast
from types import ModuleType
from typing import Final

from .._patching import rewriting
from .._patching.families import Part
from .._patching.patches import AttributePatch, CodePatch, Patch
from .._torch import cuda_graphs as host
from . import graph_trees


class _ManagerOfTheCall:
    """Stands for the tree manager that torch binds to a backward which runs without graphs: whose ever it is."""

    def __init__(self, device: int) -> None:
        self.device = device

    def set_to_running_backward(self) -> None:
        """Tells the manager of the thread whose backward this is, if it has one."""
        mine = host.in_thread(graph_trees.Trees.KEY)
        container = None if mine is None else mine.tree_manager_containers.get(self.device)
        if container is not None and container.tree_manager is not None:
            container.tree_manager.set_to_running_backward()


class _OfTheCall(ast.NodeTransformer):
    """Puts :class:`_ManagerOfTheCall` in the place of a manager that is looked up when a backward is compiled."""

    NAME: Final = "__safecompile_manager_of_the_call__"
    changed = False

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if ast.unparse(node.func) != host.GET_MANAGER:
            return node
        self.changed = True
        name = ast.copy_location(ast.Name(self.NAME, ast.Load()), node.func)
        return ast.copy_location(ast.Call(name, node.args[:1], []), node)


def patches_of_backwards(module: ModuleType) -> list[Patch]:
    """Returns the patches for the modules that bind a manager to a backward; changes nothing."""
    found: list[Patch] = [AttributePatch(module, _OfTheCall.NAME, _ManagerOfTheCall, new=True)]
    for function in host.binds_a_manager(module):
        change = _OfTheCall()
        found.append(CodePatch(function, rewriting.recompiled(function, change.visit)))
        if not change.changed:
            msg = f"a call of get_manager in {function.__qualname__}"
            raise LookupError(msg)
    return found


PARTS: Final = (
    Part("cuda graphs", host.OUTPUT_CODE, patches_of_backwards),
    Part("cuda graphs", host.CUDAGRAPHS_BACKEND, patches_of_backwards),
)

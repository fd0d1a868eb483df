"""The change of a function by which a global variable of its module becomes one per thread: how it is named there."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any

from .rewriting import located

#: The names under which a rewritten module finds its per-thread values, and the function that sets a flag among them.
LOCAL = "__safecompile_local__"
SET_FLAG = "__safecompile_set_flag__"


def anywhere(flag: str) -> str:
    """Returns the name under which a rewritten module finds whether ``flag`` is on in any thread."""
    return f"__safecompile_{flag.strip('_')}_anywhere__"


class ThreadLocalNames(ast.NodeTransformer):
    """Turns the global variable ``x`` into ``__safecompile_local__.x``.

    A flag, which is False nearly always and read on warm calls, is read as ``<whether it is on in any thread> and
    __safecompile_local__.x``: while it is off everywhere, that costs a jump more than reading the variable did. With
    ``kept=True`` the variable itself tells whether it is on in any thread; where it is ``True`` it is on in all.

    With ``attributes=True`` it is ``module.x`` that is turned, for functions that reach into a module from outside.
    """

    def __init__(
        self, names: Iterable[str], *, flags: Iterable[str] = (), kept: bool = False, attributes: bool = False
    ) -> None:
        self.names, self.flags, self.kept = frozenset(names), frozenset(flags), kept
        self.attributes, self.changed = attributes, False

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        declared = {n for s in ast.walk(node) if isinstance(s, ast.Global) for n in s.names}
        bound = {a.arg for a in ast.walk(node) if isinstance(a, ast.arg)}
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                bound.add(inner.id)
            elif isinstance(inner, ast.ImportFrom):
                bound.update(alias.asname or alias.name for alias in inner.names)
        saved, self.names = self.names, self.names - (bound - declared)
        self.generic_visit(node)
        self.names = saved
        return node

    def visit_Global(self, node: ast.Global) -> ast.AST:
        left = [name for name in node.names if name not in self.names]
        return ast.copy_location(ast.Global(left) if left else ast.Pass(), node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        node.value = self.visit(node.value)
        target = node.targets[0]
        name = getattr(target, "attr" if self.attributes else "id", None)
        if len(node.targets) == 1 and name in self.flags & self.names:
            self.changed = True
            setter = f"{ast.unparse(target.value)}." if isinstance(target, ast.Attribute) else ""
            call: Any = located(ast.parse(f"{setter}{SET_FLAG}({name!r}, None)").body[0], node)
            call.value.args[1] = node.value
            return call  # type: ignore[no-any-return]
        node.targets = [self.visit(target) for target in node.targets]
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if self.attributes or node.id not in self.names:
            return node
        self.changed = True
        local = ast.copy_location(ast.Name(LOCAL, ast.Load()), node)
        value = ast.copy_location(ast.Attribute(local, node.id, node.ctx), node)
        if node.id not in self.flags or not isinstance(node.ctx, ast.Load):
            return value
        text = f"{node.id} and ({node.id} is True or here)" if self.kept else f"{anywhere(node.id)} and here"
        both: Any = located(ast.parse(text, mode="eval").body, node)
        (both.values[-1] if self.kept else both).values[-1] = value
        return both  # type: ignore[no-any-return]

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if self.attributes and node.attr in self.names:
            self.changed = True
            node.value = ast.copy_location(ast.Attribute(node.value, LOCAL, ast.Load()), node)
        return node

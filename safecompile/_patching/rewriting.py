"""Recompiles a function of another library from its own source, with a small change, in place.

Global variables become per-thread ones (:mod:`.thread_names`), for example. In place means that only ``__code__`` is
exchanged: the function object stays the same, so closures, ``from`` imports and tables keyed by it follow, and no call
costs a frame more.

The proof that it is the right text: before anything is exchanged, the *unchanged* source is compiled, and the result
must equal the code object that is there. If it does not, :class:`RewriteError`.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import types
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

_Node = TypeVar("_Node", bound=ast.AST)


class RewriteError(Exception):
    """The function is not what its source says, or the source lacks what was to be changed."""


class Counting(Protocol):
    """A change of a syntax tree that counts the places that it has changed."""

    changed: int

    def visit(self, node: ast.AST, /) -> Any: ...


def changed(function: types.FunctionType, change: Counting, what: str, *, places: int = 1) -> types.CodeType:
    """Returns what :func:`recompiled` does, of a function in which ``change`` finds so many places.

    Raises:
        RewriteError: as there.
        LookupError: it finds fewer or more; ``what`` says of what.
    """
    code = recompiled(function, change.visit)
    if change.changed != places:
        msg = f"{what} in {function.__qualname__}"
        raise LookupError(msg)
    return code


def recompiled(function: types.FunctionType, change: Callable[[ast.AST], ast.AST]) -> types.CodeType:
    """Returns the code object of ``function`` after ``change`` was applied to its syntax tree.

    Args:
        function: a Python function without free variables, whose source file is readable.
        change: receives the ``ast.FunctionDef`` and returns the changed one.

    Raises:
        RewriteError: no source, or the source does not compile to the present code object.

    Thread safety: reads only; may run at any time in any thread.
    """
    code = function.__code__
    for lines_of in (_lines_by_indentation, _lines_by_tokens):
        lines = lines_of(code)
        header = _enclosing(function) if lines[0][:1].isspace() else []
        # CPython 3.11 and 3.12 call a method of a name that the module imports with other instructions. Which names it
        # imports is guessed from their values; where that guess does not give the present code, the file is read.
        for names_of in (_foreign_names, _imported_names):
            names = names_of(function)
            above = [*([f"import {', '.join(names)}\n"] if names else []), *header]
            # Empty lines above keep every number of a line as it is in the file: far cheaper than to count up a tree.
            text = "".join(["\n" * (code.co_firstlineno - 1 - len(above)), *above, *lines])
            try:
                if _compiled(text, code) == code:
                    return _changed(text, len(header), change, code)
            except SyntaxError:
                break  # the lines are not all of the function
    msg = f"the source of {function.__qualname__} in {code.co_filename} is not what is running"
    raise RewriteError(msg)


def _compiled(source: str | ast.Module, code: types.CodeType) -> types.CodeType:
    flags = code.co_flags & _FUTURE_FLAGS
    return _find(compile(source, code.co_filename, "exec", flags=flags, dont_inherit=True), code.co_name)


def _changed(text: str, depth: int, change: Callable[[ast.AST], ast.AST], code: types.CodeType) -> types.CodeType:
    tree = ast.parse(text)
    body: list[ast.AST] = tree.body  # type: ignore[assignment]
    for _ in range(depth):
        body = body[-1].body  # type: ignore[attr-defined]
    body[-1] = change(body[-1])
    try:
        return _compiled(tree, code)
    except TypeError:  # a node without a location; to look for them takes longer than to compile
        return _compiled(ast.fix_missing_locations(tree), code)


def _lines_by_indentation(code: types.CodeType) -> list[str]:
    """Returns the lines of ``code``: to the last that its code names, and on while lines are indented more."""
    lines, first = _lines_in(code.co_filename), code.co_firstlineno - 1
    if first >= len(lines):
        msg = f"the source of {code.co_name} can't be read"
        raise RewriteError(msg)
    indentation = len(lines[first]) - len(lines[first].lstrip())
    end = max(line for one in _with_nested(code) for _, _, line in one.co_lines() if line)
    while end < len(lines) and (not lines[end].strip() or lines[end][: indentation + 1].isspace()):
        end += 1
    return lines[first:end]


@functools.lru_cache(maxsize=4)
def _lines_in(filename: str) -> list[str]:
    """Returns the lines of a file. None stay in ``linecache``: with them Python's warnings would take another way."""
    known = filename in linecache.cache
    lines = linecache.getlines(filename)
    if not known:
        linecache.cache.pop(filename, None)
    return lines


def _lines_by_tokens(code: types.CodeType) -> list[str]:
    """Returns the lines of ``code``, where the indentation does not show its end; takes ten times as long."""
    try:
        return inspect.getsourcelines(code)[0]
    except (OSError, TypeError) as error:
        msg = f"the source of {code.co_name} can't be read"
        raise RewriteError(msg) from error


def _with_nested(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from _with_nested(one)


def _foreign_names(function: types.FunctionType) -> tuple[str, ...]:
    """Returns the global names in ``function`` whose values come from elsewhere."""
    space, found = function.__globals__, set()
    for code in _with_nested(function.__code__):
        for name in code.co_names:
            value = space.get(name)
            # Of an instance, which has the module of its class, nobody can tell whether it was imported.
            if isinstance(value, types.ModuleType) or (
                isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType))
                and value.__module__ != space["__name__"]
            ):
                found.add(name)
    return tuple(sorted(found))


def _enclosing(function: types.FunctionType) -> list[str]:
    """Returns the lines that stand for the classes and functions around an indented ``function``.

    They keep every column as it is in the file, and give what is nested its qualified name and its private names
    their mangling. Python 3.10 has the qualified names only as constants of the code, and none in the code itself.
    """
    path = getattr(function.__code__, "co_qualname", function.__qualname__).split(".")[:-1]
    if not path:
        return ["if 1:\n"]
    header: list[str] = []
    for name, inner in zip(path, [*path[1:], ""], strict=True):
        if name != "<locals>":
            block = f"def {name}():\n" if inner == "<locals>" else f"class {name}:\n"
            header.append(" " * len(header) + block)
    return header


def _imported_names(function: types.FunctionType) -> tuple[str, ...]:
    """Returns the names that the module of ``function`` imports outside its functions and classes."""
    return _imports_in(function.__code__.co_filename)


@functools.cache
def _imports_in(filename: str) -> tuple[str, ...]:
    lines, found = _lines_in(filename), set[str]()
    try:
        tree = ast.parse("".join(_outside_definitions(lines)))
    except SyntaxError:  # a string over many lines may look like anything
        tree = ast.parse("".join(lines))
    pending: list[ast.AST] = [tree]
    while pending:
        for child in ast.iter_child_nodes(pending.pop()):
            if isinstance(child, (ast.Import, ast.ImportFrom)):
                found.update(a.asname or a.name.partition(".")[0] for a in child.names)
            elif isinstance(child, (ast.If, ast.Try, ast.With, ast.ExceptHandler)):
                pending.append(child)
    return tuple(sorted(found - {"*"}))


def _outside_definitions(lines: list[str]) -> Iterator[str]:
    """Yields the lines that stand in no function or class of the module: a tenth of them, nearly always."""
    inside = False
    for line in lines:
        if line[:1].strip() and line[0] not in "#)]}":
            inside = line.startswith(("def ", "class ", "async def ", "@"))
        if not inside:
            yield line


def located(new: _Node, old: ast.AST) -> _Node:
    """Gives ``new``, and all that is in it, the place of ``old`` in the file; returns it."""
    for part in ast.walk(new):
        ast.copy_location(part, old)
    return new


class KnowingTheEnd(ast.NodeTransformer):
    """A change that knows whether it is in a ``finally``, where what was changed is put back."""

    at_the_end = False

    def visit_Try(self, node: ast.Try) -> ast.AST:
        node.body = [self.visit(one) for one in node.body]
        self.at_the_end = True
        node.finalbody = [self.visit(one) for one in node.finalbody]
        self.at_the_end = False
        return node


_FUTURE_FLAGS = __import__("__future__").annotations.compiler_flag


def _find(code: types.CodeType, name: str) -> types.CodeType:
    for one in _with_nested(code):
        if one is not code and one.co_name == name:
            return one
    raise RewriteError(f"no function {name} in the source")  # noqa: EM102


def with_constants(code: types.CodeType, values: dict[str, object]) -> types.CodeType:
    """Returns ``code`` with ``values`` in the places of the placeholders, in nested functions too."""
    constants = (with_constants(c, values) if isinstance(c, types.CodeType) else c for c in code.co_consts)
    replaced = tuple(values.get(c, c) if isinstance(c, str) else c for c in constants)
    return code.replace(co_consts=replaced)

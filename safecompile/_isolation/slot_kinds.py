"""What a place is that a symbolic trace patches: an entry that is replaced, or a method that dispatches by thread.

The third kind, a function of a module in C, is in :mod:`.module_slots`.
"""

from __future__ import annotations

import ast
import functools
import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any

from .._patching import rewriting

_ABSENT = object()


class Slot:
    """One place that traces patch: an entry of a module's dictionary, or an attribute of a class."""

    def __init__(self, owner: Any, name: str, standing: Callable[..., Any]) -> None:
        self.owner, self.name, self.standing = owner, name, standing
        self.is_class = isinstance(owner, type)
        self.original = (vars(owner) if self.is_class else owner).get(name, _ABSENT)
        self.stacks: dict[int, list[Callable[..., Any]]] = {}

    def stand(self) -> None:
        """Puts in the place what acts for the threads that trace."""
        self._put(self.standing)

    def clear(self) -> None:
        """Brings the original back."""
        self._put(self.original)

    def _put(self, value: Any) -> None:
        if value is _ABSENT:
            if self.is_class:
                delattr(self.owner, self.name)
            else:
                del self.owner[self.name]
        elif self.is_class:
            setattr(self.owner, self.name, value)
        else:
            self.owner[self.name] = value


#: The slots that are in place, by (id of the class or dictionary, name). The slot keeps the owner alive, and is
#: in the table only while a thread traces. Guarded by :mod:`.slots`.
in_place: dict[tuple[int, str], Slot] = {}


def wraps(new: Callable[..., Any], slot: Slot) -> bool:
    """Tells whether this is FX's wrapper of what stands there, not somebody's own replacement."""
    return getattr(new, "__wrapped__", None) is slot.original


class FunctionSlot(Slot):
    """A method that each trace replaces by its own: the function stays, and dispatches by thread while one traces.

    Dynamo compares ``nn.Module.__call__`` and ``__getattr__`` by identity. With another function in their place, a
    compile beside a trace would inline it, and its guards would fail when the trace ends.
    """

    def __init__(self, owner: type, name: str) -> None:
        self.function = vars(owner)[name]
        super().__init__(owner, name, self.function)
        self.code = self.function.__code__
        self.hook = f"__safecompile_{name.strip('_')}__"
        self.dispatching = rewriting.recompiled(self.function, _Dispatching(self.hook).visit)
        self.names = {
            self.hook: self._dispatcher(),
            f"{self.hook[:-2]}_stacks__": self.stacks,
            f"{self.hook[:-2]}_thread__": threading.get_ident,
        }
        self.function.__globals__.update(self.names)

    def leave(self) -> None:
        """Takes its names out of the module of the function."""
        for name in self.names:
            self.function.__globals__.pop(name, None)

    def _dispatcher(self) -> Callable[..., Any]:
        stacks, get_ident, plain = self.stacks, threading.get_ident, plain_function(self.function)

        def dispatch(*args: Any, **kwargs: Any) -> Any:
            stack = stacks.get(get_ident())
            return (stack[-1] if stack else plain)(*args, **kwargs)

        return dispatch

    def stand(self) -> None:
        self.function.__code__ = self.dispatching

    def clear(self) -> None:
        self.function.__code__ = self.code


def plain_function(function: FunctionType) -> FunctionType:
    """Returns a function of its own that does what ``function`` does while nobody traces."""
    copy = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    functools.update_wrapper(copy, function)
    return copy


class _Dispatching(ast.NodeTransformer):
    """Puts in front of a method's body: ``if <this thread traces>: return hook(<arguments>)``.

    What Dynamo sees of the condition is ``not torch.compiler.is_dynamo_compiling() and …``. It folds that, and inlines
    what it would inline without it. A thread that does not trace pays for no call of Python's more than that one.
    """

    def __init__(self, hook: str) -> None:
        self.hook = hook

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        given = [one.arg for one in (*node.args.posonlyargs, *node.args.args)]
        given += [f"*{node.args.vararg.arg}"] if node.args.vararg else []
        given += [f"{one.arg}={one.arg}" for one in node.args.kwonlyargs]
        given += [f"**{node.args.kwarg.arg}"] if node.args.kwarg else []
        here = f"{self.hook[:-2]}_thread__() in {self.hook[:-2]}_stacks__"
        text = f"if not torch.compiler.is_dynamo_compiling() and {here}:\n    return {self.hook}({', '.join(given)})"
        node.body.insert(0, rewriting.located(ast.parse(text).body[0], node.body[0]))
        return node

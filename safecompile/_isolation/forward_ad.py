"""Forward-mode AD: each thread has its own level, and its own count of ``jvp`` inside ``jvp``.

In plain torch both are the process's: two threads in ``dual_level`` or ``jvp`` at once raise, or one takes the
tangents of the other away. torch allows one level, in C. All threads share that one: tangents are kept by the
tensors, so none sees another's. It ends with the last thread that is in it.
"""

from __future__ import annotations

import ast
import threading
from collections.abc import Callable
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

from .._common import forks
from .._patching import rewriting, thread_names
from .._patching.families import Part
from .._patching.patches import AttributePatch, CodePatch, Patch
from .._patching.thread_globals import thread_local_globals
from .._torch import functorch as host

_IS_OUTERMOST = "__safecompile_is_outermost__"


class _Local(threading.local):
    """The per-thread values; a thread begins with what a process begins with."""

    is_in_the_level = False

    def __init__(self) -> None:
        # Not in the class: Dynamo would read them there.
        vars(self).update(host.initial_values())


local: Any = _Local()

# A leaf lock around the count of threads in the level, held while torch makes or ends it. Reentrant for signals.
_bookkeeping = threading.RLock()
_inside = 0


def _entering(original: Callable[[], int]) -> Callable[[], int]:
    def enter() -> int:
        global _inside
        with _bookkeeping:
            # torch raises for a second level of one thread.
            level = original() if local.is_in_the_level or not _inside else 0
            _inside += 1
            local.is_in_the_level = True
        return level

    return host.known_as(enter, original)


def _exiting(original: Callable[..., None]) -> Callable[..., None]:
    def exit_level(level: int) -> None:
        global _inside
        with _bookkeeping:
            if not local.is_in_the_level:
                original(level=level if not _inside else -1)  # raises
            elif _inside == 1:
                original(level=level)
            _inside -= 1
            local.is_in_the_level = False

    return host.known_as(exit_level, original)


class _Taken:
    """Takes over what the installing thread is in, and gives it back."""

    def __init__(self, module: ModuleType, name: str) -> None:
        self.module, self.name = module, name

    def apply(self) -> None:
        global _inside
        value, space = host.initial_values()[self.name], vars(self.module)
        setattr(local, self.name, space[self.name])
        if self.name == host.LEVEL:
            local.is_in_the_level = space[self.name] != value
            _inside = int(local.is_in_the_level)
        space[self.name] = value

    def revert(self) -> str | None:
        vars(self.module)[self.name] = getattr(local, self.name)
        return None


def patches_of_eager_transforms(module: ModuleType) -> list[Patch]:
    """Returns the patches for the level in C, and for the count of ``jvp`` inside ``jvp``; changes nothing."""
    patches: list[Patch] = [_Taken(module, host.JVP_NESTING)]
    makers: tuple[Callable[..., Any], ...] = (_entering, _exiting)
    for make, places in zip(makers, host.dual_levels(), strict=True):
        owner, name = places[0]
        counted = make(getattr(owner, name))
        patches += [AttributePatch(*place, counted) for place in places]
    in_jvp, *nesting = host.users_of_jvp_nesting(module)
    change = _IsOutermost()
    code = rewriting.recompiled(in_jvp, change.visit)
    if not change.changed:
        msg = f"'{host.OUTERMOST}' in {in_jvp.__qualname__}"
        raise LookupError(msg)
    names = thread_names.ThreadLocalNames([host.JVP_NESTING])
    return [
        *patches,
        AttributePatch(module, _IS_OUTERMOST, _telling_outermost(module), new=True),
        AttributePatch(module, thread_names.LOCAL, local, new=True),
        CodePatch(in_jvp, code),
        *(CodePatch(one, rewriting.recompiled(one, names.visit)) for one in nesting),
    ]


class _IsOutermost(ast.NodeTransformer):
    """Turns ``JVP_NESTING == 1`` into ``__safecompile_is_outermost__()``."""

    changed = 0

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        if ast.unparse(node) != host.OUTERMOST:
            return node
        self.changed += 1
        return ast.copy_location(ast.Call(ast.copy_location(ast.Name(_IS_OUTERMOST, ast.Load()), node), [], []), node)


def _telling_outermost(module: ModuleType) -> FunctionType:
    """Returns, as a function of that module, what tells whether this thread is in one ``jvp`` and no other."""
    # Dynamo skips functions of the library's files. The result is a constant of the trace; a guard on functorch's
    # levels tells when it is no longer so.
    text = f"def {_IS_OUTERMOST}():\n    return {thread_names.LOCAL}.{host.JVP_NESTING} == 1\n"
    whole = compile(text, str(module.__file__), "exec", dont_inherit=True)
    code = next(one for one in whole.co_consts if isinstance(one, CodeType))
    function = FunctionType(code, vars(module))
    host.mark_constant(function)
    return function


def patches_of_forward_ad(module: ModuleType) -> list[Patch]:
    """Returns the patches for the level that is on; changes nothing."""
    return [_Taken(module, host.LEVEL), *thread_local_globals(module, [host.LEVEL], local)]


@forks.in_child
def after_fork_in_child() -> None:
    """Counts the one thread that the child has."""
    global _bookkeeping, _inside
    _bookkeeping = threading.RLock()
    if _inside and not local.is_in_the_level:
        host.end_level()
    _inside = int(local.is_in_the_level)


PARTS: Final = (
    Part("forward AD", host.FORWARD_AD, patches_of_forward_ad),
    Part("forward AD", host.EAGER_TRANSFORMS, patches_of_eager_transforms),
)

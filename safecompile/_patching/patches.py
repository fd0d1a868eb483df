"""The records of what is patched: each knows how to put itself in, and how to bring the original back.

A record is made (and probes what it relies on) before anything is changed; making one changes nothing.
``apply`` and ``revert`` are called by the installer alone, under its lock.
"""

from __future__ import annotations

import functools
import gc
import sys
import types
import weakref
from collections.abc import Iterable
from typing import Any, Protocol

_MISSING = object()


class Patch(Protocol):
    """One reversible change of the host."""

    def apply(self) -> None:
        """Puts the replacement in."""

    def revert(self) -> str | None:
        """Brings the original back, or says (as a phrase) what somebody else has put there meanwhile."""


class CodePatch:
    """Exchanges the ``__code__`` of a function in place: every reference to the function follows."""

    def __init__(self, function: types.FunctionType, code: types.CodeType) -> None:
        self.function, self.code, self.original = function, code, function.__code__

    def apply(self) -> None:
        self.function.__code__ = self.code

    def revert(self) -> str | None:
        if self.function.__code__ is not self.code:
            return f"the code of {self.function.__module__}.{self.function.__qualname__}"
        self.function.__code__ = self.original
        return None


class ClosurePatch:
    """Exchanges the code of every function that was made with it: those there are, and at revert those made since."""

    def __init__(self, old: types.CodeType, new: types.CodeType) -> None:
        self.old, self.new = old, new

    def apply(self) -> None:
        _exchange(self.old, self.new)

    def revert(self) -> str | None:
        _exchange(self.new, self.old)
        return None


def _exchange(old: types.CodeType, new: types.CodeType) -> None:
    """Exchanges the code of all functions that have it, those too that ``gc.freeze()`` hides from ``get_referrers``.

    Where something is frozen, what has come into being since is frozen with it afterwards: it can't be told apart.
    """
    near = _functions_near(old)
    if _references(old) - len(near) > _without_functions():  # elsewhere, too: a search through everything, 20 ms
        frozen = gc.get_freeze_count() > 0
        if frozen:
            gc.unfreeze()
        try:
            near = [one for one in gc.get_referrers(old) if type(one) is types.FunctionType and one.__code__ is old]
        finally:
            if frozen:
                gc.freeze()
    for one in near:
        one.__code__ = new


def _functions_near(code: types.CodeType) -> list[types.FunctionType]:
    """Returns the functions with this code that the module of its file holds, by name or wrapped."""
    found: dict[int, types.FunctionType] = {}
    for module in list(sys.modules.values()):
        if type(module) is not types.ModuleType or vars(module).get("__file__") != code.co_filename:
            continue
        pending = list(vars(module).values())
        while pending:
            value = pending.pop()
            if type(value) is types.FunctionType:
                pending.append(vars(value).get("__wrapped__"))
                if value.__code__ is code:
                    found[id(value)] = value
    return list(found.values())


def _references(code: types.CodeType) -> int:
    return sys.getrefcount(code)


@functools.cache
def _without_functions() -> int:
    """Returns how many references a code has that no function uses: it is a constant, and of a patch. Tried out."""
    outer = compile("def outer():\n    def inner(): return 1\n", "", "exec").co_consts[0]
    patch = ClosurePatch(next(one for one in outer.co_consts if isinstance(one, types.CodeType)), outer)
    return _counted(patch.old, patch.new)


def _counted(old: types.CodeType, new: types.CodeType) -> int:  # noqa: ARG001 - called as _exchange is
    return _references(old)


#: Where each function was put in, and what it stands for.
_replaced: weakref.WeakKeyDictionary[types.FunctionType, tuple[Any, Any]] = weakref.WeakKeyDictionary()


def _hosts_own(value: Any, owner: Any) -> Any:
    """Returns the host's own function where ``owner`` has taken over, at its import, another's replacement of it."""
    if not isinstance(value, types.FunctionType):
        return value
    first, original = _replaced.get(value, (owner, value))
    return value if first is owner else original


class AttributePatch:
    """Replaces an attribute of a module or class, or with ``new=True`` adds one.

    Raises:
        LookupError: there is no such attribute of the owner's own to replace.
    """

    def __init__(self, owner: Any, name: str, replacement: Any, *, new: bool = False) -> None:
        self.owner, self.name, self.replacement = owner, name, replacement
        self.original = _hosts_own(vars(owner).get(name, _MISSING), owner)
        if self.original is _MISSING and not new:
            msg = f"{getattr(owner, '__name__', owner)}.{name}"
            raise LookupError(msg)

    def apply(self) -> None:
        if isinstance(self.replacement, types.FunctionType):
            _replaced[self.replacement] = (self.owner, self.original)
        setattr(self.owner, self.name, self.replacement)

    def revert(self) -> str | None:
        if vars(self.owner).get(self.name, _MISSING) is not self.replacement:
            return f"{getattr(self.owner, '__name__', self.owner)}.{self.name}"
        if self.original is _MISSING:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.original)
        return None


class MembersPatch:
    """Adds members to a set of the host's."""

    def __init__(self, members: set[Any], added: Iterable[Any]) -> None:
        self.members, self.added = members, set(added) - members

    def apply(self) -> None:
        self.members |= self.added

    def revert(self) -> str | None:
        self.members -= self.added
        return None


def late_references(patches: Iterable[Patch]) -> list[str]:
    """Returns, as ``module.name``, each global outside of torch that is what a patch has replaced in torch."""
    replaced = {
        id(patch.original): patch.original
        for patch in patches
        if isinstance(patch, AttributePatch)
        and isinstance(patch.owner, types.ModuleType)
        and patch.owner.__name__.partition(".")[0] == "torch"
        and not isinstance(patch.original, types.ModuleType)  # an import of torch's, which others import too
    }
    return [
        f"{module_name}.{name}"
        for module_name, module in list(sys.modules.items())
        if isinstance(module, types.ModuleType) and module_name.partition(".")[0] not in ("torch", "safecompile")
        # Not vars(module): a look at any attribute of a lazy module imports it.
        for name, value in list(object.__getattribute__(module, "__dict__").items())
        if id(value) in replaced and value is replaced[id(value)]
    ]

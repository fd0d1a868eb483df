"""The records of what is patched: each knows how to put itself in, and how to bring the original back.

A record is made (and probes what it relies on) before anything is changed; making one changes nothing.
``apply`` and ``revert`` are called by the installer alone, under its lock.
"""

from __future__ import annotations

import gc
import sys
import threading
import types
from collections.abc import Iterable
from typing import Any, Protocol

from . import _rewrite

_MISSING = object()

# A leaf lock, held for two assignments: "on in some thread" must follow the set. Reentrant, since a signal handler
# may set a flag. After a fork the child makes it anew.
_flags = threading.RLock()


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
    for one in gc.get_referrers(old):
        if type(one) is types.FunctionType and one.__code__ is old:
            one.__code__ = new


class AttributePatch:
    """Replaces an attribute of a module or class, or with ``new=True`` adds one.

    Raises:
        LookupError: there is no such attribute of the owner's own to replace.
    """

    def __init__(self, owner: Any, name: str, replacement: Any, *, new: bool = False) -> None:
        self.owner, self.name, self.replacement = owner, name, replacement
        self.original = vars(owner).get(name, _MISSING)
        if self.original is _MISSING and not new:
            msg = f"{getattr(owner, '__name__', owner)}.{name}"
            raise LookupError(msg)

    def apply(self) -> None:
        setattr(self.owner, self.name, self.replacement)

    def revert(self) -> str | None:
        if vars(self.owner).get(self.name, _MISSING) is not self.replacement:
            return f"{getattr(self.owner, '__name__', self.owner)}.{self.name}"
        if self.original is _MISSING:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.original)
        return None


class GlobalsPatch:
    """Makes global variables of a module per-thread; the functions that use them are patched with :class:`CodePatch`.

    The variables leave the module's dictionary, and a module ``__getattr__`` answers for them, so that
    ``module.x`` and ``from module import x`` elsewhere read the calling thread's value.

    Args:
        module: the module that owns the variables.
        names: the variables; those that the module does not have are left out.
        local: a ``threading.local`` whose attributes of the same names hold the values.
        flags: those of the variables that are False nearly always and read often.

    A module whose variables are all flags keeps them, as "on in some thread", and gets no ``__getattr__``: CPython does
    not specialise reads of a module that has one, and ``torch.compiler`` is read on each warm call (measured on 3.11:
    1.6 % more instructions).
    """

    def __init__(self, module: types.ModuleType, names: Iterable[str], local: Any, flags: Iterable[str] = ()) -> None:
        self.module, self.local = module, local
        self.threads: dict[str, set[int]] = {name: set() for name in flags if name in vars(module)}
        self.names = tuple(name for name in names if name in vars(module))
        self.originals: dict[str, Any] = {}
        self.is_still_used = False  # by code that somebody else has made of ours
        self.getattr = AttributePatch(module, "__getattr__", self._module_getattr(), new=True)
        self.keeps = self.threads.keys() == set(self.names)

    def _module_getattr(self) -> Any:
        names, local = frozenset(self.names), self.local
        inherited = vars(self.module).get("__getattr__")
        module_name = self.module.__name__

        def __getattr__(name: str) -> Any:  # noqa: N807 - PEP 562
            if name in names:
                return getattr(local, name)
            if inherited is not None:
                return inherited(name)
            msg = f"module {module_name!r} has no attribute {name!r}"
            raise AttributeError(msg)

        return __getattr__

    def set_flag(self, name: str, value: Any) -> None:
        """Sets a flag for the calling thread."""
        setattr(self.local, name, value)
        threads = self.threads[name]
        with _flags:
            if value:
                threads.add(threading.get_ident())
            else:
                threads.discard(threading.get_ident())
            vars(self.module)[self._anywhere(name)] = bool(threads)

    def _anywhere(self, name: str) -> str:
        return name if self.keeps else _rewrite.anywhere(name)

    def apply(self) -> None:
        space = vars(self.module)
        space[_rewrite.LOCAL] = self.local
        space[_rewrite.SET_FLAG] = self.set_flag
        # A flag that is on just now is put back by whoever has it on.
        self.originals = {name: False if name in self.threads else space[name] for name in self.names}
        for name, threads in self.threads.items():
            space[self._anywhere(name)] = bool(threads)
        _applied.append(self)

    def revert(self) -> str | None:
        space = vars(self.module)
        if self in _applied:
            _applied.remove(self)
        if self.keeps:
            space.update(self.originals)
        if not self.is_still_used and not any(self.threads.values()):
            for name in (_rewrite.LOCAL, _rewrite.SET_FLAG, *map(_rewrite.anywhere, self.threads)):
                space.pop(name, None)
        return None


class _NamesLeave:
    """Takes the variables out of the module once no function reads them there; brings them back before one does."""

    def __init__(self, patch: GlobalsPatch) -> None:
        self.patch = patch

    def apply(self) -> None:
        self.patch.getattr.apply()
        for name in self.patch.names:
            del vars(self.patch.module)[name]

    def revert(self) -> str | None:
        space, originals = vars(self.patch.module), self.patch.originals
        foreign = [n for n, value in originals.items() if space.setdefault(n, value) is not value]
        return self.patch.getattr.revert() or (f"{self.patch.module.__name__}.{foreign[0]}" if foreign else None)


class MembersPatch:
    """Adds members to a set of the host's."""

    def __init__(self, members: set[Any], added: Iterable[Any]) -> None:
        self.members, self.added = members, set(added) - members

    def apply(self) -> None:
        self.members |= self.added

    def revert(self) -> str | None:
        self.members -= self.added
        return None


def thread_local_globals(
    module: types.ModuleType,
    names: Iterable[str],
    local: Any,
    *,
    optional: Iterable[str] = (),
    flags: Iterable[str] = (),
) -> list[Patch]:
    """Returns the patches that make the globals ``names`` of ``module`` per-thread, and ``optional`` where there.

    Raises:
        LookupError: the module lacks one of ``names``.
        RewriteError: a function that uses them can't be recompiled.
    """
    wanted = tuple(names)
    for name in wanted:
        if name not in vars(module):
            msg = f"{module.__name__}.{name}"
            raise LookupError(msg)
    present = [*wanted, *(name for name in optional if name in vars(module))]
    if not present:
        return []
    patch = GlobalsPatch(module, present, local, flags)
    users = _rewrite.users_of_globals(module, present, flags, kept=patch.keeps)
    if not users:
        msg = f"a function in {module.__name__} that uses {present[0]}"
        raise LookupError(msg)
    leave = [] if patch.keeps else [_NamesLeave(patch)]
    return [patch, *(CodePatch(f, code) for f, code in users), *leave]


def late_references(patches: Iterable[Patch]) -> list[str]:
    """Returns, as ``module.name``, each global outside of torch that is what a patch has replaced in torch."""
    replaced = {
        id(patch.original): patch.original
        for patch in patches
        if isinstance(patch, AttributePatch)
        and isinstance(patch.owner, types.ModuleType)
        and patch.owner.__name__.partition(".")[0] == "torch"
    }
    return [
        f"{module_name}.{name}"
        for module_name, module in list(sys.modules.items())
        if isinstance(module, types.ModuleType) and module_name.partition(".")[0] not in ("torch", "safecompile")
        for name, value in list(vars(module).items())
        if id(value) in replaced and value is replaced[id(value)]
    ]


#: The patches of global variables that are in.
_applied: list[GlobalsPatch] = []


def after_fork_in_child() -> None:
    """Makes the lock anew, and forgets the parent's other threads: they do not exist in the child."""
    global _flags
    _flags = threading.RLock()
    for patch in _applied:
        for name, threads in patch.threads.items():
            threads &= {threading.get_ident()}
            vars(patch.module)[patch._anywhere(name)] = bool(threads)

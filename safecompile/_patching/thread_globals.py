"""Global variables of another library's module, one for each thread.

The variable leaves the module's dictionary for a ``threading.local``, and the functions that use it are recompiled
(:mod:`.rewriting`) to look there. Whoever reads or assigns ``module.x`` from outside reaches the calling thread's
value (:mod:`.thread_modules`).
"""

from __future__ import annotations

import threading
import types
from collections.abc import Iterable, Iterator
from typing import Any

from .._common import forks
from . import thread_modules
from .patches import AttributePatch, ClosurePatch, CodePatch, Patch
from .rewriting import recompiled
from .thread_names import LOCAL, SET_FLAG, ThreadLocalNames, anywhere

# A leaf lock, held for two assignments: "on in some thread" must follow the set. Reentrant, since a signal handler
# may set a flag. After a fork the child makes it anew.
_flags = threading.RLock()


def functions_of(module: types.ModuleType) -> Iterator[types.FunctionType]:
    """Yields each function defined in ``module``, methods and the bodies of decorated ones included."""
    seen: set[int] = set()
    spaces: list[dict[str, Any]] = [vars(module)]
    spaces += [
        dict(vars(value))
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == module.__name__
    ]
    for space in spaces:
        for value in list(space.values()):
            function = getattr(value, "__func__", getattr(value, "fget", value))
            while function is not None:
                if (
                    type(function) is types.FunctionType
                    and function.__globals__ is vars(module)
                    and id(function) not in seen
                ):
                    seen.add(id(function))
                    yield function
                function = getattr(function, "__dict__", {}).get("__wrapped__")


def users_of_globals(
    module: types.ModuleType, names: Iterable[str], flags: Iterable[str] = (), *, kept: bool = False
) -> list[tuple[types.FunctionType, types.CodeType]]:
    """Returns the functions of ``module`` that use its globals ``names``, each with its per-thread code.

    A function that another one of the module has made, around something, is not among them: its code comes with that of
    its maker (:func:`_of_makers`).

    Raises:
        RewriteError: see :func:`recompiled`; nothing was changed.

    Thread safety: reads only; may run at any time in any thread.
    """
    found = []
    for function in functions_of(module):
        if function.__code__.co_freevars or not _mentions(function.__code__, names):
            continue
        transformer = ThreadLocalNames(names, flags=flags, kept=kept)
        code = recompiled(function, transformer.visit)
        if transformer.changed:
            found.append((function, code))
    return found


def _mentions(code: types.CodeType, names: Iterable[str]) -> bool:
    return any(name in code.co_names for name in names) or any(
        _mentions(c, names) for c in code.co_consts if isinstance(c, types.CodeType)
    )


def _of_makers(users: Iterable[tuple[types.FunctionType, types.CodeType]]) -> Iterator[ClosurePatch]:
    """Yields the patches for the functions that ``users`` have made so far, and that have variables of theirs."""
    for function, code in users:
        inner = [
            [one for one in each.co_consts if isinstance(one, types.CodeType)] for each in (function.__code__, code)
        ]
        yield from (ClosurePatch(old, new) for old, new in zip(*inner, strict=True) if old.co_freevars and old != new)


#: What a flag that stays in its module holds while it is on in some thread. ``True`` is what somebody else has
#: assigned: then it is on in every thread, as without this library.
ON_SOMEWHERE = 1


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
                value = getattr(local, name)
                if value is not thread_modules.DELETED:
                    return value
            elif inherited is not None:
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
            self._tell(name)

    def _tell(self, name: str) -> None:
        space, key = vars(self.module), self._anywhere(name)
        if space.get(key) is not True:
            space[key] = ON_SOMEWHERE if self.threads[name] else False

    def _anywhere(self, name: str) -> str:
        return name if self.keeps else anywhere(name)

    def apply(self) -> None:
        space = vars(self.module)
        space[LOCAL] = self.local
        space[SET_FLAG] = self.set_flag
        # A flag that is on just now is put back by whoever has it on.
        self.originals = {name: False if name in self.threads else space[name] for name in self.names}
        for name in self.threads:
            space[self._anywhere(name)] = ON_SOMEWHERE if self.threads[name] else False
        _applied.append(self)

    def revert(self) -> str | None:
        space = vars(self.module)
        if self in _applied:
            _applied.remove(self)
        if self.keeps:
            space.update({name: value for name, value in self.originals.items() if space.get(name) is not True})
        if not self.is_still_used and not any(self.threads.values()):
            for name in (LOCAL, SET_FLAG, *map(anywhere, self.threads)):
                space.pop(name, None)
        return None


class _NamesLeave:
    """Takes the variables out of the module once no function reads them there; brings them back before one does."""

    def __init__(self, patch: GlobalsPatch) -> None:
        self.patch = patch

    def apply(self) -> None:
        self.patch.getattr.apply()
        thread_modules.exchange(self.patch.module, self.patch)
        for name in self.patch.names:
            del vars(self.patch.module)[name]

    def revert(self) -> str | None:
        space, originals = vars(self.patch.module), self.patch.originals
        thread_modules.exchange(self.patch.module, None)
        foreign = [n for n, value in originals.items() if space.setdefault(n, value) is not value]
        return self.patch.getattr.revert() or (f"{self.patch.module.__name__}.{foreign[0]}" if foreign else None)


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
    users = users_of_globals(module, present, flags, kept=patch.keeps)
    if not users:
        msg = f"a function in {module.__name__} that uses {present[0]}"
        raise LookupError(msg)
    leave = [] if patch.keeps else [_NamesLeave(patch)]
    return [patch, *(CodePatch(f, code) for f, code in users), *_of_makers(users), *leave]


#: The patches of global variables that are in.
_applied: list[GlobalsPatch] = []


@forks.in_child
def after_fork_in_child() -> None:
    """Makes the lock anew, and forgets the parent's other threads: they do not exist in the child."""
    global _flags
    _flags = threading.RLock()
    for patch in _applied:
        for name, threads in patch.threads.items():
            threads &= {threading.get_ident()}
            patch._tell(name)

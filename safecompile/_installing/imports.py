"""Tells when a module of torch has run, and keeps nobody waiting meanwhile.

CPython holds one import lock for the whole process around each finder. A finder that waits there, for example because
it imports the parent package, stops every import of the process. This one asks the finders behind it, with the path
that it was given, as CPython would have done next; it imports nothing and takes no lock.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable, Iterable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import wrapt

Told = Callable[[ModuleType], None]

# A module of importlib.util.LazyLoader, whose code runs at the first look at any of its attributes.
_LAZY: type = importlib.util._LazyModule  # type: ignore[attr-defined]


def is_lazy(module: ModuleType) -> bool:
    """Tells whether the code of ``module`` has not run yet, without making it run."""
    return type(module) is _LAZY


class _Loader(wrapt.ObjectProxy):  # type: ignore[type-arg]
    """A module's loader, which tells when it has run the module. The module is left with the loader itself."""

    def __init__(self, loader: Any, told: Told, *, is_lazy_no_more: bool = False) -> None:
        super().__init__(loader)
        self._self_told, self._self_is_last = told, is_lazy_no_more

    def exec_module(self, module: ModuleType) -> None:
        spec = object.__getattribute__(module, "__spec__")
        if spec.loader is self:
            spec.loader = self.__wrapped__
        if object.__getattribute__(module, "__dict__").get("__loader__") is self:
            object.__setattr__(module, "__loader__", self.__wrapped__)
        self.__wrapped__.exec_module(module)
        if is_lazy(module) and not self._self_is_last:
            tell_of(module, self._self_told)
        else:
            self._self_told(module)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.__wrapped__.__reduce_ex__(protocol)


# Under this name CPython takes it out of an error's traceback, with the import system's own frames above it, which
# would stay otherwise; and a warning of the module does not count it (3.10-3.13).
_Loader.exec_module.__code__ = _Loader.exec_module.__code__.replace(
    co_filename="<frozen importlib._bootstrap>", co_name="_call_with_frames_removed"
)


def tell_of(module: ModuleType, told: Told) -> None:
    """Calls ``told`` once the code of the lazy ``module`` has run; does not make it run."""
    spec = object.__getattribute__(module, "__spec__")
    if type(spec.loader) is not _Loader:
        spec.loader = _Loader(spec.loader, told, is_lazy_no_more=True)


class Finder:
    """Finds the modules ``names`` as the finders behind it do, and calls ``told`` with each that has run.

    ``told`` is called in the thread that imports, with the locks of that module and of those that wait for it held;
    for the import system the module is not complete before ``told`` returns.

    Thread safety: may be put in and taken out while other threads import.
    """

    def __init__(self, names: Iterable[str], told: Told) -> None:
        self.names, self.told = frozenset(names), told
        self._asking = _Asking()

    def put_in(self) -> None:
        """Puts the finder in front of all others."""
        sys.meta_path.insert(0, self)

    def take_out(self) -> None:
        """Takes the finder out."""
        # A list without it, rather than the list made shorter: a thread that walks the list would leave a finder out.
        sys.meta_path = [one for one in sys.meta_path if one is not self]

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Returns what the finders behind this one find, with a loader that tells; None for any other name."""
        asking = self._asking.names
        if name not in self.names or name in asking:  # a finder behind this one may ask all of them once more
            return None
        asking.add(name)
        try:
            spec = self._found_behind(name, path, target)
        finally:
            asking.discard(name)
        loader: Any = getattr(spec, "loader", None)
        if spec is not None and type(loader) is not _Loader and hasattr(loader, "exec_module"):
            spec.loader = _Loader(loader, self.told)  # type: ignore[assignment]
        return spec

    def _found_behind(self, name: str, path: Any, target: ModuleType | None) -> ModuleSpec | None:
        finders: list[Any] = list(sys.meta_path)
        here = next((index for index, one in enumerate(finders) if one is self), -1)
        for finder in finders[here + 1 :]:
            find = getattr(finder, "find_spec", None)
            if find is None:  # Python 3.10 and 3.11 know what to do with it
                return None
            spec: ModuleSpec | None = find(name, path, target)
            if spec is not None:
                return spec
        return None


class _Asking(threading.local):
    """The names for which this thread asks the finders behind just now."""

    def __init__(self) -> None:
        self.names: set[str] = set()

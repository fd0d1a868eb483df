"""What is assigned to a variable of a module whose variables are per-thread: it is the calling thread's."""

from __future__ import annotations

import importlib
import types
from typing import Any, Protocol


class PerThread(Protocol):
    """The per-thread variables of one module."""

    names: tuple[str, ...]
    threads: dict[str, set[int]]  # those of them that are flags
    local: Any

    def set_flag(self, name: str, value: Any) -> None:
        """Sets a flag for the calling thread."""


#: What a variable holds that a thread has deleted.
DELETED = object()

#: The per-thread variables by the id of their module.
_by_module: dict[int, PerThread] = {}


class _Variable:
    """One name as an attribute of such modules. A descriptor: what patches attributes for a while asks for one."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, module: Any, owner: Any = None) -> Any:
        if module is None:
            return self
        variables = self._of(module)
        value = vars(module).get(self.name, DELETED) if variables is None else getattr(variables.local, self.name)
        if value is DELETED:
            raise AttributeError(self.name)  # Python then asks the module's own __getattr__
        return value

    def __set__(self, module: Any, value: Any) -> None:
        variables = self._of(module)
        if variables is None:
            vars(module)[self.name] = value
        elif self.name in variables.threads:
            variables.set_flag(self.name, value)
        else:
            setattr(variables.local, self.name, value)

    def __delete__(self, module: Any) -> None:
        variables = self._of(module)
        if variables is None:
            del vars(module)[self.name]
        else:  # unittest.mock deletes, looks whether it is gone, and then assigns
            setattr(variables.local, self.name, DELETED)

    def _of(self, module: Any) -> PerThread | None:
        variables = _by_module.get(id(module))
        return variables if variables is not None and self.name in variables.names else None


class ModuleOfThreads(types.ModuleType):
    """The class of a module whose variables have left: what is assigned from outside is the calling thread's."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return importlib.import_module, (self.__name__,)


def exchange(module: types.ModuleType, variables: PerThread | None) -> None:
    """Gives a module the class for its per-thread variables, or with None its own. Does nothing to other classes."""
    if variables is None and _by_module.pop(id(module), None) is not None:
        module.__class__ = types.ModuleType
    elif variables is not None and type(module) is types.ModuleType:
        for name in variables.names:
            if name not in vars(ModuleOfThreads):
                setattr(ModuleOfThreads, name, _Variable(name))
        _by_module[id(module)] = variables
        module.__class__ = ModuleOfThreads

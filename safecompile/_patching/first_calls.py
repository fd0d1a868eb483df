"""Something to do before the first call of a function of another library, and nothing left of it afterwards.

The function's ``__code__`` is exchanged for one with the same parameters, which does it, brings the original code
back and calls the function. So every reference follows, its signature and source look as before, and from the second
call on the function is what it was.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any

_ENTER = "__safecompile_enter__"


class FirstCallPatch:
    """Calls ``before`` ahead of the first call of ``function``.

    Args:
        function: a function without free variables.
        before: does what is to be done; returns False where it was in vain and must be tried again at the next call.
        when: an expression of the function's parameters: calls for which it is false are not the first.

    Thread safety: any number of threads may be in the first call at once; each calls ``before``.
    """

    def __init__(self, function: types.FunctionType, before: Callable[[], bool], when: str = "True") -> None:
        self.function, self.before, self.original = function, before, function.__code__
        if self.original.co_freevars:
            msg = f"{function.__qualname__} has free variables"
            raise ValueError(msg)
        self.code = self._entering(when)

    def apply(self) -> None:
        self.function.__code__ = self.code

    def revert(self) -> str | None:
        if self.function.__code__ is self.code:
            self.function.__code__ = self.original
        return None

    def _entering(self, when: str) -> types.CodeType:
        name, (parameters, arguments) = self.original.co_name, _parameters(self.original)
        source = f"def {name}({parameters}):\n    {_ENTER} = '{_ENTER}'\n    return {_ENTER}({when})({arguments})\n"
        module = compile(source, self.original.co_filename, "exec", dont_inherit=True)
        code = next(one for one in module.co_consts if isinstance(one, types.CodeType))
        constants = tuple(self._enter if one == _ENTER else one for one in code.co_consts)
        code = code.replace(co_consts=constants, co_firstlineno=self.original.co_firstlineno)
        qualname = getattr(self.original, "co_qualname", None)
        return code if qualname is None else code.replace(co_qualname=qualname)  # Python 3.11+

    def _enter(self, is_first: Any) -> types.FunctionType:
        """Returns what is to be called now."""
        if is_first and self.before():
            self.revert()
        if self.function.__code__ is not self.code:
            return self.function
        plain = types.FunctionType(self.original, self.function.__globals__, self.function.__name__)
        plain.__defaults__, plain.__kwdefaults__ = self.function.__defaults__, self.function.__kwdefaults__
        return plain


def _parameters(code: types.CodeType) -> tuple[str, str]:
    """Returns the parameters of ``code`` as they stand in a definition, and in a call that passes them on."""
    count, names = code.co_argcount, code.co_varnames
    positional, keywords = names[:count], names[count : count + code.co_kwonlyargcount]
    rest = names[count + code.co_kwonlyargcount :]
    defined = [*positional[: code.co_posonlyargcount], *("/" for _ in [0] if code.co_posonlyargcount)]
    defined += positional[code.co_posonlyargcount :]
    passed = list(positional)
    if code.co_flags & inspect.CO_VARARGS:
        defined.append(f"*{rest[0]}")
        passed.append(f"*{rest[0]}")
        rest = rest[1:]
    elif keywords:
        defined.append("*")
    defined += keywords
    passed += [f"{name}={name}" for name in keywords]
    if code.co_flags & inspect.CO_VARKEYWORDS:
        defined.append(f"**{rest[0]}")
        passed.append(f"**{rest[0]}")
    return ", ".join(defined), ", ".join(passed)

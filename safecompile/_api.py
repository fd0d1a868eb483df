"""safe_compile: torch.compile, with the patches in."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from typing_extensions import ParamSpec

from ._installing import installer

if TYPE_CHECKING:
    from torch import nn

_P = ParamSpec("_P")
_R = TypeVar("_R")
_M = TypeVar("_M", bound="nn.Module")


# A module first: what comes back has the attributes that went in.
@overload
def safe_compile(
    model: _M,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Callable[..., Any] | None = "inductor",
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    name: str | None = None,
    disable: bool = False,
    recompile_limit: int | None = None,
    isolate_recompiles: bool = False,
    max_wait_s: float | None = ...,
    **kwargs: Any,
) -> _M: ...
@overload
def safe_compile(
    model: Callable[_P, _R],
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Callable[..., Any] | None = "inductor",
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    name: str | None = None,
    disable: bool = False,
    recompile_limit: int | None = None,
    isolate_recompiles: bool = False,
    max_wait_s: float | None = ...,
    **kwargs: Any,
) -> Callable[_P, _R]: ...
@overload
def safe_compile(
    model: None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Callable[..., Any] | None = "inductor",
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    name: str | None = None,
    disable: bool = False,
    recompile_limit: int | None = None,
    isolate_recompiles: bool = False,
    max_wait_s: float | None = ...,
    **kwargs: Any,
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]: ...


def safe_compile(*args: Any, **kwargs: Any) -> Any:
    """``torch.compile``, safe to call from several threads.

    It takes what the installed ``torch.compile`` takes, passes it on untouched and returns what that returns: an
    ``OptimizedModule`` for an ``nn.Module``, a function otherwise; without a model, a decorator. The first call
    installs the same patches as ``import safecompile.patch_all``, unless it stands in code that is being traced. They
    act where torch compiles, so every compiled function of the process is covered. One keyword is the library's own:
    ``max_wait_s``.

    Args:
        model: a function, a bound method, an ``nn.Module`` or a callable object.
        max_wait_s: for how many seconds a call of this function waits for another thread's compile before it runs
            uncompiled, this once, with all that it calls; 0: it never waits; None: as long as it takes. If it is not
            given, that of the function that calls this one counts, then that of :func:`install`. What must be compiled
            (higher-order operators such as flex attention, checkpoints, a call inside a backward pass, beside a process
            group) waits all the same, and one WARNING says why.
        **kwargs: the keywords of ``torch.compile``: ``fullgraph``, ``dynamic``, ``backend``, ``mode``, ``options``,
            ``disable``, and whatever else the installed release has.

    Returns:
        What ``torch.compile`` returns.

    Raises:
        InstallError: the patches were not in yet, and could not be put in: another thread was tracing or compiling for
            more than ten seconds, this thread is, or this Python runs without the GIL.
        SafeCompileError: ``max_wait_s`` is not a number of seconds.
        HostMismatchError: raised by the first call that compiles, if this torch lacks what the patches need.

    Example::

        model = safe_compile(model)  # instead of torch.compile(model)

    Thread safety: may be called from any thread. What it returns may be called from any number of threads at once:
    the first call for a function and device compiles, calls that need the same result wait for it, a call for
    another device waits at most for the trace, and a call that finds its compiled code waits for nothing.
    """
    import torch

    # In code that Dynamo traces this is torch.compile, no more: there an installation may be a graph break too many.
    if not (installer.is_installed() or torch.compiler.is_dynamo_compiling() or installer.is_inside_a_trace()):
        installer.install()
    if "max_wait_s" in kwargs:
        return _with_limit(args, kwargs)
    return torch.compile(*args, **kwargs)


def _with_limit(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    import torch

    given = {name: value for name, value in kwargs.items() if name != "max_wait_s"}
    if torch.compiler.is_compiling():  # the region that is being compiled has its own limit
        return torch.compile(*args, **given)
    from ._common import environment
    from ._engine import limits

    seconds = environment.seconds_to_wait(kwargs["max_wait_s"])
    compiled: Any = torch.compile(*args, **given)
    if (args[0] if args else given.get("model")) is not None:
        return limits.give(compiled, seconds)
    return lambda model: limits.give(compiled(model), seconds)


class _SignatureOfTorch(inspect.Signature):
    """The signature of the installed ``torch.compile``, which is imported only when somebody looks."""

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:  # type: ignore[override]
        import torch

        own = inspect.Parameter("max_wait_s", inspect.Parameter.KEYWORD_ONLY, default=..., annotation="float | None")
        theirs = dict(inspect.signature(torch.compile).parameters)
        last = [theirs.pop(name) for name, one in list(theirs.items()) if one.kind is inspect.Parameter.VAR_KEYWORD]
        return MappingProxyType({one.name: one for one in (*theirs.values(), own, *last)})


safe_compile.__signature__ = _SignatureOfTorch()  # type: ignore[attr-defined]

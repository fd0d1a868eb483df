"""The backward of a compiled function, which AOTAutograd compiles at the first backward pass: once, by one thread.

torch checks whether it is compiled before it takes any lock, and Inductor alone takes one: N threads compile N
times (2.7-2.15), and up to 2.10 the second one fails. Here the compile lock is taken for every backend, and the
check is made again under it. A thread that waits for the lock here is often one of autograd's workers; it can,
because no trace waits for a backward.
"""

from __future__ import annotations

import dataclasses
import functools
from types import ModuleType
from typing import Any

from . import _settings, _torch
from ._patches import AttributePatch, Patch


def patches_of_runtime_wrappers(module: ModuleType) -> list[Patch]:
    """Returns the patch for the release that is there; changes nothing."""
    # torch 2.12+ has a class for it. Drop the other form when min torch > 2.11.
    if hasattr(module, "_AutogradBackwardCompiler"):
        return [_patch_of_class(module._AutogradBackwardCompiler)]
    return [_patch_of_post_compile(module.AOTDispatchAutograd)]


def _patch_of_class(compiler: Any) -> Patch:
    original = compiler.get_or_compile

    @functools.wraps(original)
    def _patched_get_or_compile(self: Any, **kwargs: Any) -> Any:
        if self.compiled_bw is not None:
            return self.compiled_bw
        with _torch.compile_lock(), _torch.autograd_on_this_thread(), _settings.applied():
            return original(self, **kwargs)  # which looks again

    return AttributePatch(compiler, "get_or_compile", _patched_get_or_compile)


def _patch_of_post_compile(owner: Any) -> Patch:
    original = owner.post_compile

    @functools.wraps(original)
    def _patched_post_compile(*args: Any, **kwargs: Any) -> Any:
        given = [*args, *kwargs.values()]
        config = next((one for one in given if type(one).__name__ == "AOTConfig"), None)
        if config is not None and config.bw_compiler is not None:
            once = dataclasses.replace(config, bw_compiler=_compiling_once(config.bw_compiler))
            args = tuple(once if one is config else one for one in args)
            kwargs = {name: once if one is config else one for name, one in kwargs.items()}
        return original(*args, **kwargs)

    return AttributePatch(owner, "post_compile", staticmethod(_patched_post_compile))


def _compiling_once(compiler: Any) -> Any:
    """Returns ``compiler`` such that its first result is every caller's. One such function serves one graph."""
    first: list[Any] = []

    @functools.wraps(compiler)
    def once(*args: Any, **kwargs: Any) -> Any:
        with _torch.compile_lock(), _torch.autograd_on_this_thread():
            if not first:
                first.append(compiler(*args, **kwargs))
            return first[0]

    return once

"""The errors and warnings of the library. Each message says what happened, what it means, what to do."""

from __future__ import annotations

import os

_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep  # noqa: PTH120 - no import of pathlib, which takes long


#: Where it is told what to do about an error or a warning.
MORE = "More: docs/debugging.md#errors-and-warnings"


class SafeCompileError(RuntimeError):
    """Base class of every error that safecompile raises by itself.

    Thread safety: immutable.
    """

    def __str__(self) -> str:
        return f"{super().__str__()} {MORE}"


class HostMismatchError(SafeCompileError):
    """The installed torch lacks something that the library relies on, so nothing was patched.

    Args:
        family: the group of patches whose probe failed, for example ``"miss"``.
        what: what was expected and not found.

    Thread safety: immutable.
    """

    def __init__(self, family: str, what: str, version: str = "") -> None:
        self.family, self.what, self.version = family, what, version
        super().__init__(
            f"safecompile does not fit this torch ({version or 'unknown version'}): its '{family}' patches need "
            f"{what}. Nothing is patched, and compiled functions raise this error rather than run unprotected. Install "
            "a release of torch that README names, or set SAFECOMPILE_DISABLE=1 to use plain torch.compile."
        )

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        return type(self), (self.family, self.what, self.version)


class InstallError(SafeCompileError):
    """The patches could not be put in, or taken out, at this moment.

    Thread safety: immutable.
    """


class RecompileError(SafeCompileError):
    """A call of a function that was warmed up would have compiled.

    Args:
        function: the qualified name of the function whose frame missed.
        where: its file and line.
        device: the device of the call.
        guards: the guard that failed, of each compiled version.

    Thread safety: immutable.
    """

    def __init__(self, function: str, where: str, device: str, guards: list[str]) -> None:
        self.function, self.where, self.device, self.guards = function, where, device, guards
        why = "\n".join(f"- {one}" for one in guards) or "- there is no compiled version"
        super().__init__(
            f"this call of {function} ({where}) on {device} would compile, which is an error after "
            "safecompile.warmup(). Add the inputs of this call to the warm-up, or pass it recompiles_are_errors=False. "
            f"What does not fit:\n{why}\n"
        )

    def __reduce__(self) -> tuple[type, tuple[str, str, str, list[str]]]:
        return type(self), (self.function, self.where, self.device, self.guards)


class SafeCompileWarning(UserWarning):
    """Something is not protected, or may go wrong; the program goes on.

    Thread safety: immutable.
    """

    def __str__(self) -> str:
        return f"{super().__str__()} {MORE}"


class LateInstallWarning(SafeCompileWarning):
    """A reference was taken before the patches were installed and does not go through them.

    Thread safety: immutable.
    """


def shorten(error: BaseException) -> None:
    """Takes frames of the library out of the traceback of ``error``: those below the calling one, down to torch's own.

    To be called where ``error`` is caught, and followed by ``raise``: one frame of the library's is left.
    """
    caught = error.__traceback__
    following = caught and caught.tb_next
    while following is not None and following.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        following = following.tb_next
    if caught is not None and following is not None:  # else the error is the library's own
        caught.tb_next = following

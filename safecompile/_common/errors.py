"""The errors and warnings of the library. Each message says what happened, what it means, what to do."""

from __future__ import annotations


class SafeCompileError(RuntimeError):
    """Base class of every error that safecompile raises by itself.

    Thread safety: immutable.
    """


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
            f"safecompile can't protect this torch ({version or 'unknown version'}): the '{family}' patches need "
            f"{what}. Nothing is patched, so torch.compile is as unsafe under threads as without safecompile. "
            "Install a supported torch (see README), or set SAFECOMPILE_DISABLE=1 to run plain torch.compile."
        )

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        return type(self), (self.family, self.what, self.version)


class InstallError(SafeCompileError):
    """The patches could not be put in, or taken out, at this moment.

    Thread safety: immutable.
    """


class SafeCompileWarning(UserWarning):
    """Something is not protected, or may go wrong; the program goes on.

    Thread safety: immutable.
    """


class LateInstallWarning(SafeCompileWarning):
    """A reference was taken before the patches were installed and does not go through them.

    Thread safety: immutable.
    """

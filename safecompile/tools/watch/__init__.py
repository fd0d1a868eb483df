"""``safecompile.watch()``: looks for hazards of threads in plain torch, and cures nothing."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable
from types import ModuleType

from typing_extensions import Self

from ..._common import events
from ..._common.errors import InstallError, SafeCompileWarning
from ..._installing import imports, installer
from ..._patching.patches import Patch
from ..._patching.rewriting import RewriteError
from ..._torch import dynamo
from ..._torch import watching as host
from .compiles import Compiles
from .cycles import Cycles
from .findings import Finding, Findings, told
from .traces import Traces

__all__ = ["Finding", "watch"]

#: The watch that is on, if there is one.
_on: list[watch] = []


class watch:  # noqa: N801 - used as a function is
    """Watches what threads do to each other in plain torch, inside a ``with`` block.

    It finds: who set FX's tracing flag while another thread read it; modules that were called through another thread's
    tracer; traces that overlapped; compiles that were repeated; calls that silently ran eager; settings that a compile
    did not see; threads that wait for each other around a compile. Each finding is something that happened in this run;
    what did not happen is not guessed. Nothing is cured: inside, ``safe_compile`` is plain ``torch.compile``.

    Args:
        provoke: make each of the first 200 symbolic traces some milliseconds longer, so that what may collide does.
        cycle_s: for how many seconds a thread must stand still in its compile, while another waits for it, to be told
            of. It is logged at once, as the program may never end.

    Raises:
        InstallError: on entering: the patches are in, and there is no plain torch to watch; or another watch is on.

    Example::

        with safecompile.watch() as watched:
            serve()
        print(watched)

    Thread safety: all threads are watched; to be entered and left by one thread, one watch at a time.
    """

    def __init__(self, *, provoke: bool = False, cycle_s: float = 10.0) -> None:
        self._findings = Findings()
        self._traces, self._compiles = Traces(self._findings, provoke=provoke), Compiles(self._findings)
        self._cycles = Cycles(self._findings, self._compiles, cycle_s, self._log_cycles)
        self._parts: dict[str, Callable[[ModuleType], list[Patch]]] = {
            host.SYMBOLIC_TRACE: self._traces.patches_of_symbolic_trace,
            host.CONVERT_FRAME: self._compiles.patches_of_convert_frame,
            host.CONFIG_MODULE: self._compiles.patches_of_config_module,
        }
        self._finder = imports.Finder(self._parts, self._apply)
        self._applied: dict[str, list[Patch]] = {}
        self._not_watched: list[str] = []
        self._applying = threading.RLock()
        self._seconds = 0.0

    @property
    def findings(self) -> list[Finding]:
        """What was found so far, the worst first.

        Thread safety: may be read from any thread.
        """
        return self._findings.ranked()

    def __enter__(self) -> Self:
        """Begins to watch; see the class for what it raises."""
        if installer.is_installed():
            msg = (
                "safecompile.watch() looks at plain torch, but safecompile's patches are in, and prevent what it looks "
                "for. Nothing is watched. Call safecompile.uninstall() first, or set SAFECOMPILE_DISABLE=1."
            )
            raise InstallError(msg)
        if _on:
            msg = (
                "safecompile.watch() is on already, and only one at a time can be. This one watches nothing. Leave "
                "the other one first; it watches all threads."
            )
            raise InstallError(msg)
        _on.append(self)
        self._began, self._disabled = time.monotonic(), os.environ.get("SAFECOMPILE_DISABLE")
        os.environ["SAFECOMPILE_DISABLE"] = "1"
        self._finder.put_in()
        for name in self._parts:
            module = dynamo.loaded(name)
            if module is not None:
                self._apply(module)
        self._cycles.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Ends it and takes out what it has put in."""
        _on.clear()
        self._cycles.stop()
        self._finder.take_out()
        with self._applying:
            left = [
                what for patches in self._applied.values() for patch in reversed(patches) if (what := patch.revert())
            ]
            self._applied.clear()
        if self._disabled is None:
            os.environ.pop("SAFECOMPILE_DISABLE", None)
        else:
            os.environ["SAFECOMPILE_DISABLE"] = self._disabled
        self._seconds = time.monotonic() - self._began
        for what in left:
            warnings.warn(
                f"safecompile.watch() leaves {what} as it is, because something else has patched it since. It may cost "
                "time; the program runs as before.",
                SafeCompileWarning,
                stacklevel=2,
            )

    def __str__(self) -> str:
        """The whole report, for people."""
        seconds = self._seconds or time.monotonic() - self._began
        counts = {"compile": self._compiles.count, "trace": self._traces.count, "finding": len(self.findings)}
        told_counts = ", ".join(f"{count} {what}{'' if count == 1 else 's'}" for what, count in counts.items())
        seen = f"Watched {seconds:.1f} s, torch {dynamo.version() or '(not imported)'}: {told_counts}."
        return told(self.findings, "\n".join([seen, *self._not_watched]))

    def _apply(self, module: ModuleType) -> None:
        with self._applying:
            if module.__name__ in self._applied:
                return
            done = self._applied[module.__name__] = []
            try:
                for patch in self._parts[module.__name__](module):
                    patch.apply()
                    done.append(patch)
            except (AttributeError, LookupError, TypeError, RewriteError, SyntaxError) as error:
                self._not_watched.append(f"Not watched is {module.__name__}, which is not as expected: {error}")

    def _log_cycles(self) -> None:
        for one in self.findings:
            if one.kind == "cycle":
                events.log.warning("safecompile.watch() has found threads that may wait for each other:\n%s", one)

"""The records of what the library did, one type for each kind of event."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Event:
    """Something that happened to one function, or one device, in one thread.

    Args:
        at_s: when, in seconds of ``time.monotonic()``. Of what lasts (a wait, a compile, a miss), its end.
        thread: the name of the thread.
        thread_id: the thread's number in the operating system, by which profilers name it.
        device: the device that the engine took for the call, for example ``"cuda:1"``.
        function: the qualified name of the function; with `` (backward)`` behind it, for the compile of its backward.
            The name of a Triton kernel, or empty, where no function is known.
        filename, line: where the function is; empty and 0 where it is not known.

    Thread safety: immutable.
    """

    at_s: float
    thread: str
    thread_id: int
    device: str
    function: str
    filename: str
    line: int


@dataclass(frozen=True)
class Miss(Event):
    """One call that found no compiled version of its function. Its class tells what came of it, where that is rare.

    Args:
        role: ``"leader"`` if this thread compiled, ``"follower"`` if it waited for another that did.
        waited_s: seconds spent waiting for another thread.
        compiled_s: seconds spent in the trace, the backend and the guards.
        outcome: ``"compiled"``, ``"reused"``, ``"skipped"`` (torch runs it eagerly from now on), ``"uncompiled"`` (it
            ran eagerly this once) or ``"failed"``.

    Thread safety: immutable.
    """

    role: str
    waited_s: float
    compiled_s: float
    outcome: str


@dataclass(frozen=True)
class Reuse(Miss):
    """A miss that used what another thread had compiled.

    Thread safety: immutable.
    """


@dataclass(frozen=True)
class Uncompiled(Miss):
    """A miss whose call ran eagerly, this once.

    Thread safety: immutable.
    """


@dataclass(frozen=True)
class Failed(Miss):
    """A miss that raised.

    Args:
        error: the name of the exception's class.

    Thread safety: immutable.
    """

    error: str


@dataclass(frozen=True)
class CompileBegun(Event):
    """A thread has the compile lock and begins to trace.

    Thread safety: immutable.
    """


@dataclass(frozen=True)
class CompileEnded(Event):
    """A compile is over.

    Args:
        seconds: how long it took.
        outcome: ``"compiled"``, ``"skipped"``, ``"uncompiled"`` or ``"failed"``.

    Thread safety: immutable.
    """

    seconds: float
    outcome: str


@dataclass(frozen=True)
class Wait(Event):
    """A thread has waited for another one.

    Args:
        seconds: how long.
        reason: ``"result"`` (of another thread's compile), ``"lock"`` (another function is compiled) or ``"kernel"``
            (another thread launches it for the first time).
        holder: the name of the thread that it waited for; empty where that is not known.

    Thread safety: immutable.
    """

    seconds: float
    reason: str
    holder: str


@dataclass(frozen=True)
class ForeignTrace(Event):
    """A function was compiled while another thread's symbolic trace had a name that it uses wrapped.

    Args:
        name: that name.

    Thread safety: immutable.
    """

    name: str


@dataclass(frozen=True)
class CaptureGated(Event):
    """A warm-up or capture of CUDA graphs has waited for another thread's on the same device.

    Args:
        seconds: how long.

    Thread safety: immutable.
    """

    seconds: float


@dataclass(frozen=True)
class ResetPutOff(Event):
    """A function is reset so often that its reset comes a moment later.

    Thread safety: immutable.
    """


#: The types of misses by their outcome; the others are plain ones.
OF_OUTCOME: dict[str, type[Miss]] = {"reused": Reuse, "uncompiled": Uncompiled, "failed": Failed}

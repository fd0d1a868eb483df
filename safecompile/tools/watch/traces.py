"""Looks at FX's traces in plain torch: who reads the flag, who is caught in another's tracer, what overlaps."""

from __future__ import annotations

import ast
import functools
import sys
import threading
import time
from types import FrameType, ModuleType
from typing import Any, Final

from ..._common import identity, thread_frames
from ..._patching import rewriting
from ..._patching.patches import AttributePatch, CodePatch, Patch
from ..._torch import threads
from ..._torch import watching as host
from .findings import Findings, Stack, stack_of

_TELL: Final = "safecompile: the function flag_is_read stands here"

#: Seconds by which a trace is made longer, if that is asked for, and how many traces at most.
PROVOKED_S: Final = 0.005
PROVOKED_AT_MOST: Final = 200


class Traces:
    """What is watched of FX.

    Args:
        provoke: make traces a little longer, so that what may collide does.
    """

    def __init__(self, findings: Findings, *, provoke: bool) -> None:
        self.findings, self.provoke = findings, provoke
        self.count = 0
        self.last: tuple[str, Stack] | None = None

    def patches_of_symbolic_trace(self, module: ModuleType) -> list[Patch]:
        """Returns the patches that watch; changes nothing."""
        reader, patcher = host.reader_of_the_flag(module), host.patcher(module)
        # A constant of the code, so that a call that runs while the patches are taken out still finds it.
        telling = rewriting.with_constants(rewriting.recompiled(reader, _Tells().visit), {_TELL: self.flag_is_read})
        return [
            CodePatch(reader, telling),
            AttributePatch(patcher, "__init__", self._beginning(patcher.__init__)),
            AttributePatch(patcher, "patch_method", self._patching(patcher.patch_method)),
        ]

    def flag_is_read(self) -> bool:
        """Is called where a compiled call is told that FX traces; returns what it is told: True."""
        reader = sys._getframe(1)
        if host.tracer_of(reader) is None:
            me, function = threading.current_thread().name, host.compiled_function(reader)
            setter = self._setter()
            if setter is None:
                what = f"Thread {me!r} called {function}; nobody traced."
                self.findings.add("flag left on", (function,), what, read_by=reader)
            else:
                name, stack = setter
                what = f"Thread {me!r} called {function} while thread {name!r} was tracing, and had the flag set."
                self.findings.add("flag", (function, name), what, set_by=stack, read_by=reader)
        return True

    def _setter(self) -> tuple[str, Stack] | None:
        """Returns who has set the flag, and from where; None if nobody traces, and it is on."""
        for _ in range(3):  # a trace may begin between the look at the stacks and the one at the flag
            for ident, top in _others_tracing():
                trace = _trace_in(top)
                stack = stack_of(trace)
                if trace is not None and len(stack) > 1:  # else it has ended meanwhile
                    return _name(ident), stack
            if not host.flag_is_on():
                return self.last
        return None

    def _beginning(self, original: Any) -> Any:
        @functools.wraps(original)
        def beginning(patcher: Any, *args: Any, **kwargs: Any) -> None:
            original(patcher, *args, **kwargs)
            mine = sys._getframe(1)
            self.count += 1
            self.last = (threading.current_thread().name, stack_of(_trace_in(mine)))
            is_symbolic = host.is_symbolic(host.tracer_of(mine))
            for ident, top in _others_tracing():
                if is_symbolic or host.is_symbolic(host.tracer_of(top)):
                    me, name = threading.current_thread().name, _name(ident)
                    what = f"Thread {me!r} began to trace while thread {name!r} was tracing."
                    self.findings.add(
                        "overlapping traces", (_where(mine), _where(top)), what, began=mine, was_there=top
                    )
            self._linger(is_symbolic=is_symbolic)

        return beginning

    def _linger(self, *, is_symbolic: bool) -> None:
        if self.provoke and is_symbolic and self.count <= PROVOKED_AT_MOST and threads.others_are_alive():
            time.sleep(PROVOKED_S)

    def _patching(self, original: Any) -> Any:
        @functools.wraps(original)
        def patch_method(patcher: Any, cls: type, name: str, new_fn: Any, *args: Any, **kwargs: Any) -> None:
            if not host.is_symbolic(host.tracer_of(sys._getframe(1))):
                original(patcher, cls, name, new_fn, *args, **kwargs)
                return
            owner, thread = identity.of_this_thread(), threading.current_thread().name
            traced_by = stack_of(_trace_in(sys._getframe(1)))

            @functools.wraps(new_fn)
            def watched(*args: Any, **kwargs: Any) -> Any:
                if identity.of_this_thread() is not owner:
                    self._foreign(type(args[0]).__qualname__, name, thread, traced_by, sys._getframe(1))
                return new_fn(*args, **kwargs)

            original(patcher, cls, name, watched, *args, **kwargs)
            self._linger(is_symbolic=True)

        return patch_method

    def _foreign(self, module: str, method: str, tracing: str, traced_by: Stack, frame: FrameType) -> None:
        me = threading.current_thread().name
        self.findings.add(
            "foreign tracer",
            (module, method, tracing),
            f"Thread {me!r} used a module of class {module} ({method}), and got into the trace of thread {tracing!r}.",
            called_by=frame,
            traced_by=traced_by,
        )


class _Tells(ast.NodeTransformer):
    """Turns ``return x`` into ``return x and flag_is_read()``: nothing more runs while nobody traces."""

    def visit_Return(self, node: ast.Return) -> ast.AST:
        assert node.value is not None
        call = ast.parse("None.__call__()", mode="eval").body
        call.func.value.value = _TELL  # type: ignore[attr-defined]
        node.value = ast.BoolOp(ast.And(), [node.value, call])
        return rewriting.located(node, node)


def _others_tracing() -> list[tuple[int, FrameType]]:
    """Returns the other threads that are in a trace: identity and innermost frame."""
    frames = thread_frames.of_all_threads()
    frames.pop(threading.get_ident(), None)
    return [(ident, top) for ident, top in frames.items() if host.tracer_of(top) is not None]


def _trace_in(frame: FrameType) -> FrameType | None:
    one: FrameType | None = frame
    while one is not None and not host.is_trace(one.f_code):
        one = one.f_back
    return one


def _where(frame: FrameType) -> str:
    """Returns the place from which FX's function was called that traces."""
    trace = _trace_in(frame)
    caller = trace.f_back if trace is not None else None
    return "" if caller is None else f"{caller.f_code.co_filename}:{caller.f_lineno}"


def _name(ident: int) -> str:
    return next((one.name for one in threading.enumerate() if one.ident == ident), f"thread {ident}")

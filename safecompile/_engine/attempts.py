"""The call of torch's own compile: once more if something that it read was changed by another thread meanwhile.

torch's compile reads shared things for seconds: the names that FX wraps, settings, the arguments. Where one changes
under its eyes torch raises an internal error. It runs under the compile lock, but nothing can hold the others' hands.
"""

from __future__ import annotations

import sys
from time import sleep
from typing import Any, Final

from .._common import events, totals
from .._isolation import graph_trees, open_compiles, slots
from .._torch import cache, dynamo, threads
from . import containers

#: Beside a thread that traces symbolically without a pause, one of several hundred attempts failed (2.13).
ATTEMPTS_AT_MOST = 8

#: Seconds after which another thread's capture of a CUDA graph, during which Inductor draws no random numbers and
#: measures no kernel on that device, is likely over.
CAPTURE_IS_OVER_S: Final = 0.05

_NOTE = (
    "safecompile: other threads worked while torch traced this call. If one of them changed an argument (a dict or a "
    "list that got longer or shorter), that may be the cause. Pass each call a container of its own."
)


def compiled(original: Any, callback: Any, frame: Any, head: Any, frame_state: Any) -> Any:
    """Returns what torch's callback ``original`` returns.

    After an internal error it is asked again if that can help: some more times after a setting or a function that FX
    wraps was exchanged or beside a capture of a CUDA graph, once more if the backend was not called yet. Then, if
    another thread keeps changing what the call reads, the call runs uncompiled, this once. Else the error is raised,
    with a note if the arguments may be the cause.
    """
    attempts, seen = 0, None
    while True:
        attempts += 1
        if attempts > 1:
            totals.count("second traces")
        before, graphs = _surroundings(), dynamo.graphs_compiled()
        try:
            return original(callback, frame, head, frame_state)
        except Exception as error:
            if attempts < ATTEMPTS_AT_MOST and graph_trees.was_in_the_way(error):
                sleep(CAPTURE_IS_OVER_S)
                continue
            if not dynamo.is_internal_error(error):
                raise
            others = _others_have_worked()
            moved = others and before != _surroundings()
            if moved and attempts < ATTEMPTS_AT_MOST:
                continue
            if others and not moved:
                seen = seen or containers.look(frame)
                if attempts == 1 and graphs == dynamo.graphs_compiled():
                    dynamo.forget_frame()
                    continue
                changing = containers.keep_changing(frame, seen, error)
                if changing and not dynamo.wants_one_graph(callback):
                    events.warn_of_changing_container(frame.f_code, error)
                    return cache.uncompiled_this_once()
                if (changing or attempts == 1) and not dynamo.is_about_settings(error) and sys.version_info >= (3, 11):
                    error.add_note(_NOTE)
            raise


def _others_have_worked() -> bool:
    one = open_compiles.innermost()
    return threads.others_are_alive() if one is None else threads.have_worked(one.look)


def _surroundings() -> tuple[int, int, tuple[Any, ...]]:
    one = open_compiles.innermost()
    return slots.changes, 0 if one is None else len(one.set_by_others), dynamo.global_settings()

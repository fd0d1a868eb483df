"""How much each workload does: as much as the machine can do in about two minutes."""

from __future__ import annotations

from typing import NamedTuple

#: Seconds that Inductor takes for one small function on a quiet machine of two cores, its first checks done.
USUAL_S = 2.5


class Sizes(NamedTuple):
    """Requests of the server, steps of each drafter, seconds of tracing."""

    requests: int = 400
    steps: int = 6
    tracing_s: float = 3.0

    @property
    def words(self) -> str:
        """The sizes as they are shown."""
        return f"{self.requests} requests, {self.steps} steps, {self.tracing_s:.0f} s of tracing"


USUAL = Sizes()


def sizes_for(measured_s: float | None) -> Sizes:
    """Returns the sizes for a machine that takes ``measured_s`` for one small compile; None: it was not measured.

    A slow machine, or one that is busy with other things, gets fewer calls, and more time for those that are told by
    the clock.
    """
    slow = min(max((measured_s or USUAL_S) / USUAL_S, 1.0), 8.0)
    return Sizes(round(USUAL.requests / slow), max(2, round(USUAL.steps / slow)), USUAL.tracing_s * min(slow, 4.0))

"""The demo's table, and the sentence that says what was seen."""

from __future__ import annotations

import sys
import textwrap
import time

from ._child import Row

WIDTH = 100
_FORMAT = "{:<9} {:<7} {:<14} {:>9} {:>9} {:>8} {:>8} {:>9} {:>9}"


class Progress:
    """Live progress on stderr: one line that changes on a terminal, a line now and then elsewhere."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._begin = self._said = time.monotonic()

    def begin(self, what: str) -> None:
        """Starts the clock of one child."""
        self._begin = self._said = time.monotonic()
        print(what, end="" if self._terminal else "\n", file=sys.stderr, flush=True)

    def __call__(self, row: Row) -> None:
        """Shows what one child has done so far."""
        now = time.monotonic()
        if now - self._said < (0.2 if self._terminal else 10.0):
            return
        self._said = now
        text = (
            f"  {row.workload}, {row.side}: {now - self._begin:.0f} s, {row.calls:,} calls, {row.raised:,} raised, "
            f"{row.compiles} compiles"
        )
        print(f"\r{text:<{WIDTH - 1}}" if self._terminal else text, end="" if self._terminal else "\n", file=sys.stderr)
        sys.stderr.flush()

    def end(self, text: str) -> None:
        """Says what came of one child."""
        print(f"\r{text:<{WIDTH - 1}}" if self._terminal else text, file=sys.stderr, flush=True)


def table(rows: list[Row]) -> str:
    """Returns all rows as a table of at most 100 columns, with the first errors below it."""
    lines = [
        _FORMAT.format("workload", "side", "outcome", "calls", "raised", "wrong", "eager", "compiles", "seconds"),
        "-" * 90,
    ]
    notes = []
    for row in rows:
        counts = [f"{n:,}" for n in (row.calls, row.raised, row.wrong, row.eager, row.compiles)]
        lines.append(_FORMAT.format(row.workload, row.side, row.outcome, *counts, f"{row.seconds:.1f}"))
        what = f"{row.workload}, {row.side}"
        if row.workload == "server" and row.calls:
            parts = (f"{name[:3]} {getattr(row, name):,.1f} ms" for name in ("p50_ms", "p95_ms", "p99_ms"))
            notes.append(f"{what}: answers {', '.join(parts)}; longest first one {row.longest_first_ms / 1e3:.1f} s")
        if row.first_error:
            notes.append(f"{what}: first error: {row.first_error}")
        if row.hung_at:
            notes.append(f"{what}: hung with {row.hung_at}")
        if row.log:
            notes.append(f"{what}: its stacks: {row.log}")
    lines.append("  raised, wrong: calls that raised, that gave wrong numbers")
    if any(row.outcome == "hung" for row in rows):
        lines.append("  hung: not done at its time limit, and killed")
    lines.append("  eager: calls of a compiled function that torch ran uncompiled, without a word")
    if any(row.side == "no wait" for row in rows):
        lines.append("  no wait: safe_compile with max_wait_s=0, whose calls run uncompiled while another compiles")
    for note in notes:
        lines += textwrap.wrap(textwrap.shorten(note, 400), WIDTH, subsequent_indent="    ", break_on_hyphens=False)
    return "\n".join(lines)


def conclusion(rows: list[Row]) -> str:
    """Returns what was seen, in one sentence."""
    plain = [row for row in rows if row.side == "plain"]
    safe = [row for row in rows if row.side == "safe"]
    parts = []
    if plain:
        faults = [f"{row.workload}: {_fault(row)}" for row in plain if not row.right]
        if faults:
            parts.append(
                f"plain torch.compile went wrong in {len(faults)} of {_workloads(len(plain))} ({'; '.join(faults)})"
            )
        else:
            parts.append("plain torch.compile went wrong in none of them this time, though nothing keeps it from that")
    if safe:
        faults = [f"{row.workload}: {_fault(row)}" for row in safe if not row.right]
        if faults:
            parts.append(
                f"safe_compile went wrong in {len(faults)} of {_workloads(len(safe))} ({'; '.join(faults)}), "
                f"{_advice(safe)}"
            )
        else:
            parts.append(f"with safe_compile all of {_workloads(len(safe))} gave the right numbers, compiled")
    sentence = "; ".join(parts)
    return sentence[:1].upper() + sentence[1:] + "."


def _workloads(count: int) -> str:
    return f"{count} workload{'s' if count > 1 else ''}"


def _advice(safe: list[Row]) -> str:
    report = "report it with the output of 'python -m safecompile report'"
    if any(row.outcome == "hung" for row in safe):
        return f"which may be a bug: on a slow or busy machine try a larger --time-limit first, then {report}"
    return f"which may be a bug: please {report}"


def _fault(row: Row) -> str:
    if row.outcome == "raised":
        return f"{row.raised:,} of {row.calls:,} calls raised" if row.raised else "it could not run"
    if row.outcome == "wrong numbers":
        return f"{row.wrong:,} of {row.calls:,} calls gave wrong numbers"
    if row.outcome == "finished":
        return f"{row.eager:,} calls silently ran eager"
    return f"not done after {row.seconds:.0f} s" if row.outcome == "hung" else f"it {row.outcome}"

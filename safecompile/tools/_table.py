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

    def __call__(self, row: Row, quiet_s: float) -> None:
        """Shows what one child has done so far; ``quiet_s``: seconds since anything was done."""
        now = time.monotonic()
        if now - self._said < (0.2 if self._terminal else 10.0):
            return
        self._said = now
        text = (
            f"  {row.workload}, {row.side}: {now - self._begin:.0f} s, {row.calls:,} calls, {row.raised:,} raised, "
            f"{row.compiles} compiles"
        )
        if quiet_s >= 5.0:
            text += f", nothing new for {quiet_s:.0f} s"
        if row.compiling:
            text = f"{text}, {row.compiling}"[: WIDTH - 1]
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
        lines.append("  hung: no call came back any more, and no CPU time was used; killed")
    if any(row.outcome == "too slow" for row in rows):
        lines.append("  too slow: still at work at its time limit; killed")
    lines.append("  eager: calls of a compiled function that torch ran uncompiled, without a word")
    if any(row.side == "no wait" for row in rows):
        lines.append("  no wait: safe_compile with max_wait_s=0, whose calls run uncompiled while another compiles")
    for note in notes:
        lines += textwrap.wrap(textwrap.shorten(note, 400), WIDTH, subsequent_indent="    ", break_on_hyphens=False)
    return "\n".join(lines)


def conclusion(rows: list[Row]) -> str:
    """Returns what was seen, in one sentence."""
    if not rows:
        return "Nothing was tried."
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
            parts.append(f"safe_compile went wrong in {len(faults)} of {_workloads(len(safe))} ({'; '.join(faults)})")
        elif len(safe) == 1:
            parts.append("with safe_compile it gave the right numbers, compiled")
        else:
            parts.append(f"with safe_compile all {len(safe)} gave the right numbers, compiled")
    sentence = "; ".join(parts)
    return sentence[:1].upper() + sentence[1:] + "."


def _workloads(count: int) -> str:
    return f"{count} workload{'s' if count > 1 else ''}"


def advice(rows: list[Row], torch_fails: str | None = None) -> str:
    """Returns what to do next; ``torch_fails``: what torch.compile itself said on this machine."""
    if torch_fails:
        return (
            f"torch.compile itself does not work on this machine yet: {textwrap.shorten(torch_fails, 200)}. The server "
            "and the drafters were left out. Install what torch.compile needs (on the CPU a C++ compiler such as g++, "
            "on CUDA Triton), then run the demo again."
        )
    faults = [row for row in rows if row.side == "safe" and not row.right]
    if any(row.outcome != "too slow" for row in faults):
        return (
            "this may be a bug of safecompile. Please report it with this table and the output of "
            "'python -m safecompile report'."
        )
    if faults:
        return "the machine was too slow, which says nothing of safe_compile. Give it time: --time-limit 1800."
    return (
        "in your program write 'from safecompile import safe_compile' and use it in place of torch.compile; or change "
        "nothing else and put 'import safecompile.patch_all' first. The README's 'Use' and 'Reference' have the rest."
    )


def _fault(row: Row) -> str:
    if row.outcome == "raised":
        return f"{row.raised:,} of {row.calls:,} calls raised" if row.raised else "it could not run"
    if row.outcome == "wrong numbers":
        return f"{row.wrong:,} of {row.calls:,} calls gave wrong numbers"
    if row.outcome == "finished":
        return f"{row.eager:,} calls silently ran eager"
    if row.outcome == "too slow":
        return f"still at work after {row.seconds:.0f} s, {row.calls:,} calls made"
    return f"it hung after {row.calls:,} calls" if row.outcome == "hung" else f"it {row.outcome}"

"""The report as text for people."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterator
from typing import Any

_REASONS = {
    "result": "for the compile of",
    "lock": "for the compile lock, held by",
    "kernel": "for the first launch of a kernel by",
}

_COUNTS = {"waited_s": "s waited", "compiled_s": "s compiling", "skipped": "left to eager mode by torch"}


def of(found: dict[str, Any]) -> str:
    """Returns the report as lines of at most a hundred columns, but for long paths."""
    return "\n".join([*_head(found), *_families(found), *_now(found), *_totals(found)])


def _head(found: dict[str, Any]) -> Iterator[str]:
    yield f"safecompile {found['safecompile']}"
    if found["problem"]:
        yield from textwrap.wrap(f"  PROBLEM  {found['problem']}", 100, subsequent_indent="           ")
    imported = "" if found["torch_imported"] else " (not imported in this process)"
    yield f"  torch    {found['torch'] or 'not installed'}{imported}, wrapt {found['wrapt']}"
    gil = "" if found["gil"] else ", without its global interpreter lock"
    yield f"  Python   {found['python'].split()[0]}{gil}, {found['platform']}"
    devices = ", ".join(f"cuda:{i} {name}" for i, name in enumerate(found["cuda_devices"]))
    yield f"  devices  {devices or 'cpu'}" + (f" (CUDA {found['cuda']})" if found["cuda"] else "")
    for name, value in found["environment"].items():
        yield f"  {name}={value}"


def _families(found: dict[str, Any]) -> Iterator[str]:
    yield ""
    if found["disabled"]:
        yield "Patches: off, as SAFECOMPILE_DISABLE is set. torch.compile is plain torch's."
    elif not found["installed"]:
        yield "Patches: not installed. torch.compile is plain torch's. Call safecompile.install() to put them in."
    else:
        fitting = [name for name, family in found["families"].items() if family["state"] != "off"]
        yield "Patches: installed" if fitting else "Patches: none are in. These must be, and do not fit this torch:"
        for name, family in found["families"].items():
            if not fitting and not family["does_not_fit"]:
                continue
            line = f"  {name:<22} {family['state']:<11} {family['why']}"
            line += f". They are for: {family['is_for']}" if family["does_not_fit"] else ""
            yield from textwrap.wrap(line, 100, subsequent_indent=" " * 37, break_on_hyphens=False)
    if found["late_references"]:
        late = ", ".join(found["late_references"])
        yield from textwrap.wrap(f"  References taken before, as in plain torch: {late}", 100, subsequent_indent="    ")


def _now(found: dict[str, Any]) -> Iterator[str]:
    yield ""
    yield f"Now, with {found['threads']} thread{'s' if found['threads'] > 1 else ''}"
    if not found["compiling"] and not found["waiting"]:
        yield "  Nobody compiles, and nobody waits."
    for one in found["compiling"]:
        yield f"  {one['thread']!r} has been compiling for {one['for_s']:.1f} s: {_where(one)}. Its stack:"
        yield from _without_torchs(one["stack"])
    for one in found["waiting"]:
        holder = repr(one["holder"]) if one["holder"] else "another thread"
        reason = f"{_REASONS[one['reason']]} {holder}"
        yield f"  {one['thread']!r} has waited for {one['for_s']:.1f} s {reason}: {_where(one)}"


def _without_torchs(stack: list[str]) -> Iterator[str]:
    """Yields the frames of a stack, those of torch in a row as one."""
    for is_torchs, frames in itertools.groupby(stack, lambda frame: "/torch/" in frame or "/safecompile/_" in frame):
        if is_torchs:
            yield f"      ... {len(list(frames))} frames of torch's"
        else:
            yield from (f"      {frame}" for frame in frames)


def _totals(found: dict[str, Any]) -> Iterator[str]:
    yield ""
    yield "So far"
    counts = [f"{value:g} {_COUNTS.get(name, name.replace('_', ' '))}" for name, value in found["totals"].items()]
    yield from textwrap.wrap(", ".join(counts), 100, initial_indent="  ", subsequent_indent="  ")
    for title, rows in (("Most compiles", found["most_compiles"]), ("Longest waits", found["longest_waits"])):
        if rows:
            yield ""
            yield f"{title}"
            yield "  compiles  reused  uncompiled  failed  compile s  longest wait s"
        for row in rows:
            numbers = f"{row['compiles']:>10}{row['reused']:>8}{row['uncompiled']:>12}{row['failed']:>8}"
            yield f"{numbers}{row['compiled_s']:>11.2f}{row['longest_wait_s']:>16.2f}  {_where(row)}"


def _where(one: dict[str, Any]) -> str:
    place = f"{one['function']} ({one['file']}:{one['line']})" if one["file"] else one["function"]
    return f"{place} on {one['device']}" if one.get("device") else place

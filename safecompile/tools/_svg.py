"""A trace as a picture: a row for each thread, bars for compiles and waits, by the clock."""

from __future__ import annotations

import re
from html import escape
from typing import Any, Final, NamedTuple

#: The category of the library's events in a trace.
CATEGORY: Final = "safecompile"

WIDTH: Final = 1000
GUTTER: Final = 150
RIGHT: Final = 24
TOP: Final = 64
ROW: Final = 24
BAR: Final = 16
LETTER: Final = 6.2  # a letter's width at 11 px, about

_COLORS: Final = {
    "compile": "#2f6fb5",
    "backward": "#6a4fa3",
    "failed": "#c23b3b",
    "wait": "#f0c36d",
    "capture gated": "#e08a4f",
}
_LEGEND: Final = {
    "compile": "compile",
    "backward": "compile of a backward",
    "failed": "failed",
    "wait": "wait",
    "capture gated": "wait for a capture",
}
_FONT: Final = 'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif"'


class _Bar(NamedTuple):
    thread: int
    begin: float
    seconds: float
    color: str
    label: str
    told: str


def picture(trace: dict[str, Any]) -> str:
    """Returns the library's events of a trace as SVG: threads from top to bottom, time from left to right."""
    ours = [one for one in trace["traceEvents"] if isinstance(one, dict) and one.get("cat") == CATEGORY]
    bars = sorted((_bar(one) for one in ours if one["ph"] == "X"), key=lambda one: one.begin)
    marks = [one for one in ours if one["ph"] == "i"]
    begin = min([bar.begin for bar in bars] + [one["ts"] / 1e6 for one in marks], default=0.0)
    end = max([bar.begin + bar.seconds for bar in bars] + [one["ts"] / 1e6 for one in marks], default=1.0)
    span = max(end - begin, 1e-4)
    names = {one["tid"]: one["args"]["name"] for one in trace["traceEvents"] if is_name(one)}
    leaders = [bar.thread for bar in bars if bar.color != _COLORS["wait"]]
    threads = list(dict.fromkeys([*leaders, *(bar.thread for bar in bars), *(one["tid"] for one in marks)]))
    rows = {thread: TOP + ROW * index for index, thread in enumerate(threads)}
    height = TOP + ROW * len(rows) + 40

    def x(seconds: float) -> float:
        return GUTTER + (seconds - begin) / span * (WIDTH - GUTTER - RIGHT)

    parts = [*_head(bars, len(rows), span, height), *_axis(span, x, begin, height)]
    for thread, y in rows.items():
        name = _clipped(str(names.get(thread, thread)), GUTTER - 16, end=6)
        parts.append(f'<text x="{GUTTER - 10}" y="{y + 12}" text-anchor="end" fill="#333">{_escaped(name)}</text>')
    parts += [_drawn(bar, x(bar.begin), x(bar.begin + bar.seconds), rows[bar.thread]) for bar in bars]
    parts += [_mark(one, x(one["ts"] / 1e6), rows[one["tid"]]) for one in marks]
    return "\n".join([*parts, "</svg>", ""])


def _escaped(text: str) -> str:
    """Returns text for XML, which knows no control characters, and no halves of letters as in names of files."""
    return escape(re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text))


def is_name(one: Any) -> bool:
    """Tells whether an event of a trace names a thread."""
    return isinstance(one, dict) and one.get("ph") == "M" and one.get("name") == "thread_name"


def _bar(one: dict[str, Any]) -> _Bar:
    args, seconds = one["args"], one["dur"] / 1e6
    what = args["what"]
    kind = what
    if what == "compile":
        kind = "failed" if args["outcome"] == "failed" else what
        if kind == what and args["function"].endswith(" (backward)"):
            kind = "backward"
    place = " on ".join(filter(None, (args["function"].rpartition("<locals>.")[2], args["device"])))
    holder = f"for {args['holder']}" if args.get("holder") else ""
    label = place if what == "compile" else holder or place
    where = f"{args['function']} ({args['file']}:{args['line']}) on {args['device'] or '?'}"
    extra = " ".join(filter(None, (holder, args.get("outcome", ""))))
    told = f"{what} {extra}, {seconds:.3f} s: {where}"
    return _Bar(one["tid"], one["ts"] / 1e6, seconds, _COLORS[kind], label, told)


def _head(bars: list[_Bar], threads: int, span: float, height: int) -> list[str]:
    counts = {color: sum(bar.color == color for bar in bars) for color in _COLORS.values()}
    compiles = counts[_COLORS["compile"]] + counts[_COLORS["backward"]] + counts[_COLORS["failed"]]
    waits = counts[_COLORS["wait"]] + counts[_COLORS["capture gated"]]
    title = f"{_count(threads, 'thread')}, {_count(compiles, 'compile')}, {_count(waits, 'wait')}, {span:.3g} s"
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {_FONT} font-size="11" role="img">',
        f"<title>{title}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="{GUTTER}" y="20" font-size="14" fill="#111">{title}</text>',
    ]
    x = float(GUTTER)
    parts.append(f'<circle cx="{WIDTH - RIGHT - 110}" cy="36" r="3.5" fill="#fff" stroke="#333"/>')
    parts.append(f'<text x="{WIDTH - RIGHT - 100}" y="40" fill="#333">end of a miss</text>')
    for kind, text in _LEGEND.items():
        if counts[_COLORS[kind]]:
            parts.append(f'<rect x="{x:.0f}" y="30" width="12" height="12" rx="2" fill="{_COLORS[kind]}"/>')
            parts.append(f'<text x="{x + 17:.0f}" y="40" fill="#333">{text}</text>')
            x += 17 + LETTER * len(text) + 20
    return parts


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _axis(span: float, x: Any, begin: float, height: int) -> list[str]:
    step = next(s for e in range(-6, 9) for s in (10.0**e, 2 * 10.0**e, 5 * 10.0**e) if span / s <= 8)
    parts, bottom = [], height - 36
    for index in range(int(span / step) + 1):
        at = x(begin + index * step)
        parts.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{TOP - 8}" y2="{bottom}" stroke="#e4e4e4"/>')
        parts.append(f'<text x="{at:.1f}" y="{bottom + 16}" text-anchor="middle" fill="#666">{index * step:g} s</text>')
    return parts


def _drawn(bar: _Bar, left: float, right: float, y: float) -> str:
    width = max(right - left, 1.5)
    label = _clipped(bar.label, width - 12, end=6 if bar.color == _COLORS["wait"] else 0)
    ink = "#5c4108" if bar.color == _COLORS["wait"] else "#fff"
    text = f'<text x="{left + 4:.1f}" y="{y + 12}" fill="{ink}">{_escaped(label)}</text>' if label else ""
    return (
        f'<g><title>{_escaped(bar.told)}</title><rect x="{left:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" rx="2" '
        f'fill="{bar.color}"/>{text}</g>'
    )


def _mark(one: dict[str, Any], x: float, y: float) -> str:
    return (
        f"<g><title>{_escaped(one['name'])}</title>"
        f'<circle cx="{x:.1f}" cy="{y + BAR / 2}" r="3.5" fill="#fff" stroke="#333"/></g>'
    )


def _clipped(text: str, width: float, end: int = 0) -> str:
    """Returns what fits, with the last letters of ``text``, ``end`` at most: by these the threads of a pool differ."""
    most = int(width / LETTER)
    if len(text) <= most:
        return text
    end = min(end, most // 2)
    return f"{text[: most - 1 - end]}…{text[len(text) - end :]}" if most > 3 else ""

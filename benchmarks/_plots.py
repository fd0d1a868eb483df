"""The pictures: bars with intervals, and timelines of who compiled and who waited. Needs matplotlib; draws SVG."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ._common import RESULTS, say

COLOURS = {"compiles": "#d1495b", "waits": "#edae49", "runs": "#66a182"}
BAR = "#30638e"


def draw_all(folder: Path = RESULTS) -> list[Path]:
    """Draws every picture that the results in ``folder`` allow; returns their files, none without matplotlib."""
    try:
        import matplotlib as mpl  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        say("no pictures: matplotlib is not installed")
        return []
    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "safecompile", "font.size": 9, "axes.spines.top": False})
    painters = {
        "call_overhead": _overhead,
        "cold_start": _cold_start,
        "drafters": _drafters,
        "contention": _contention,
        "serving": _serving,
    }
    drawn: list[Path] = []
    for file in sorted(folder.glob("*.json")):
        data = json.loads(file.read_text())
        if data.get("benchmark") in painters:
            drawn += painters[data["benchmark"]](data, file.with_suffix(""))
    return drawn


def _bars(
    file: Path,
    names: list[str],
    values: list[float],
    intervals: list[tuple[float, float]],
    label: str,
    *,
    line: float | None = None,
    log: bool = False,
) -> Path:
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 0.6 + 0.36 * len(names)))
    errors = [
        [max(0.0, value - low) for value, (low, _) in zip(values, intervals, strict=True)],
        [max(0.0, high - value) for value, (_, high) in zip(values, intervals, strict=True)],
    ]
    axes.barh(names, values, xerr=errors, color=BAR, height=0.6, error_kw={"ecolor": "#222222", "capsize": 3})
    axes.invert_yaxis()
    axes.set_xlabel(label)
    if log:
        axes.set_xscale("log")
    if line is not None:
        axes.axvline(line, color="#d1495b", linewidth=1)
    return _saved(figure, file)


def _saved(figure: Any, file: Path) -> Path:
    from matplotlib import pyplot as plt

    figure.tight_layout()
    figure.savefig(file, bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)
    return file


def _timelines(file: Path, panels: dict[str, dict[str, list[list[Any]]]]) -> Path:
    """Draws one panel for each run: a row for each thread, coloured by what it was doing."""
    from matplotlib import pyplot as plt
    from matplotlib.patches import Patch  # type: ignore[import-not-found, unused-ignore]

    heights = [max(1, len(threads)) for threads in panels.values()]
    figure, grid = plt.subplots(
        len(panels),
        1,
        figsize=(7, 1.2 + 0.24 * sum(heights) + 0.5 * len(panels)),
        sharex=True,
        squeeze=False,
        gridspec_kw={"height_ratios": heights},
    )
    for axes, (title, threads) in zip(grid[:, 0], panels.items(), strict=True):
        for row, spans in enumerate(threads.values()):
            for begin, end, state in spans:
                axes.barh(row, max(end - begin, 0.02), left=begin, color=COLOURS[state], height=0.8)
        labels = ["autograd worker" if name.startswith("autograd-") else name for name in threads]
        axes.set_yticks(range(len(threads)), labels)
        axes.invert_yaxis()
        axes.set_title(title, loc="left", fontsize=9)
    grid[-1, 0].set_xlabel("seconds from the start")
    figure.legend(handles=[Patch(color=c, label=n) for n, c in COLOURS.items()], loc="upper right", ncols=3)
    return _saved(figure, file)


def _overhead(data: dict[str, Any], stem: Path) -> list[Path]:
    drawn = []
    for function, measured in data.get("functions", {}).items():
        for threads, table in measured.get("threads", {}).items():
            names = [name for name in table if name != "plain"]
            file = stem.with_name(f"{stem.name}-{function}-{threads}.svg")
            ratios = [table[n]["wall"]["ratio"] for n in names]
            intervals = [tuple(table[n]["wall"]["ratio_95"]) for n in names]
            label = f"time of a warm call of the {function}, {threads} thread(s), plain torch = 1"
            drawn.append(_bars(file, names, ratios, intervals, label, line=1.0))
    return drawn


def _cold_start(data: dict[str, Any], stem: Path) -> list[Path]:
    drawn = []
    for key in dict.fromkeys((row["backend"], row["shapes"]) for row in data["table"]):
        rows = [row for row in data["table"] if (row["backend"], row["shapes"]) == key and "wall_s" in row]
        if len(rows) < 3:
            continue
        names = [f"{row['variant']}, {row['threads']} thread(s): {row['compiles']} compile(s)" for row in rows]
        file = stem.with_name(f"{stem.name}-{key[0]}-{key[1]}.svg")
        label = f"seconds until every thread has called {key[1]} shape(s), backend {key[0]}"
        label += (
            ": median, least and most" if "wall_s_range" in rows[0] else ", one run" if rows[0]["runs"] == 1 else ""
        )
        medians = [row["wall_s"] for row in rows]
        ranges = [tuple(row.get("wall_s_range", [row["wall_s"]] * 2)) for row in rows]
        drawn.append(_bars(file, names, medians, ranges, label))
    panels = {name: spans for name, spans in data.get("timelines", {}).items() if spans}
    if panels:
        some = dict(list(panels.items())[:2])
        drawn.append(_timelines(stem.with_name(f"{stem.name}-timeline.svg"), some))
    return drawn


def _drafters(data: dict[str, Any], stem: Path) -> list[Path]:
    rows = [row for row in data["summary"] if row["last_first_step_s"]]
    drawn = []
    if rows:
        names = [f"{row['config']}, {row['finished']} of {row['runs']} runs" for row in rows]
        medians = [row["last_first_step_s"]["median"] for row in rows]
        worst = [(value, row["last_first_step_s"]["worst"]) for value, row in zip(medians, rows, strict=True)]
        label = "seconds to the last drafter's first step, cold: median, and up to the worst run"
        drawn.append(_bars(stem.with_name(f"{stem.name}-first-step.svg"), names, medians, worst, label))
    panels = {run["config"]: run["timeline"] for run in data["runs"] if run.get("timeline")}
    if panels:
        drawn.append(_timelines(stem.with_name(f"{stem.name}-timeline.svg"), dict(list(panels.items())[:4])))
    return drawn


def _contention(data: dict[str, Any], stem: Path) -> list[Path]:
    rows = [row for row in data["table"] if "p99" in row]
    names = [
        f"{row['scene']}: {row['variant']}" + (f" ({row['failed_calls']} failed)" if row["failed_calls"] else "")
        for row in rows
    ]
    label = "latency of a warm call in microseconds, p99, and up to the longest"
    intervals = [(row["p99"], row["max"]) for row in rows]
    return [_bars(stem.with_name(f"{stem.name}.svg"), names, [row["p99"] for row in rows], intervals, label, log=True)]


def _serving(data: dict[str, Any], stem: Path) -> list[Path]:
    """Draws the latency of each answer over time, a panel for each way to serve."""
    from matplotlib import pyplot as plt

    rows = [row for row in data["table"] if row.get("points")]
    figure, grid = plt.subplots(
        len(rows), 1, figsize=(7, 1.3 * len(rows) + 0.5), sharex=True, sharey=True, squeeze=False
    )
    for axes, row in zip(grid[:, 0], rows, strict=True):
        at, took = zip(*row["points"], strict=True)
        axes.scatter(at, took, s=4, color=BAR, rasterized=True)
        axes.set_yscale("log")
        axes.set_title(
            f"{row['variant']}: longest {row['longest_ms'] / 1e3:.1f} s, {row['answers']} answers", loc="left"
        )
    grid[-1, 0].set_xlabel("seconds since the cold start, of the request")
    figure.supylabel("latency of the answer in ms")
    return [_saved(figure, stem.with_name(f"{stem.name}.svg"))]


if __name__ == "__main__":
    for path in draw_all():
        say(path.name)

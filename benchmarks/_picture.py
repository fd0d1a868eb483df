"""The pictures: a cold start in plain torch, under locks and with the library; and the answers of a cold server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ._common import RESULTS, say

LABELS = {
    "plain": "plain torch.compile",
    "rlock in first call": "a lock by hand, first call",
    "rlock in every call": "a lock by hand, every call",
    "safe": "safecompile",
}
LIBRARY, OTHERS = "#d1495b", "#b8bfc6"


def draw(file: Path) -> Path | None:
    """Draws the most threads with the most shapes of a result of ``cold_start``; None where it lacks a way."""
    data = json.loads(file.read_text())
    most = max((row["shapes"], row["threads"]) for row in data["table"])
    found = {
        row["variant"]: row
        for row in reversed(data["table"])
        if (row["shapes"], row["threads"]) == most and row["backend"] == data["table"][0]["backend"]
    }
    if not all("wall_s" in found.get(way, {}) for way in LABELS):
        return None
    return _drawn({LABELS[way]: found[way] for way in LABELS}, data, file.with_suffix(".svg"))


def _drawn(rows: dict[str, dict[str, Any]], data: dict[str, Any], file: Path) -> Path:
    import matplotlib as mpl  # type: ignore[import-not-found, unused-ignore]

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "safecompile", "font.size": 10, "savefig.facecolor": "white"})
    from matplotlib import pyplot as plt

    one = rows[LABELS["safe"]]
    shapes, threads = one["shapes"], one["threads"]
    panels = {
        "compiles": f"compiles\n({shapes} are needed)",
        "eager_calls": f"calls that silently ran eager\n(of {threads * shapes})",
        "last_first_result_s": "seconds until every thread\nhas its first answer",
    }
    figure, grid = plt.subplots(1, len(panels), figsize=(9.6, 2.5), sharey=True)
    colours = [LIBRARY if name == LABELS["safe"] else OTHERS for name in rows]
    for axes, (key, label) in zip(grid, panels.items(), strict=True):
        values = [row[key] for row in rows.values()]
        bars = axes.barh(list(rows), values, color=colours, height=0.62)
        axes.bar_label(bars, [f"{value:.0f}" for value in values], padding=3)
        axes.set_title(label, fontsize=10)
        axes.set_xlim(0, max(values) * 1.18)
        axes.spines[["top", "right", "bottom"]].set_visible(False)
        axes.tick_params(left=False, bottom=False, labelbottom=False)
    grid[0].invert_yaxis()
    grid[0].get_yticklabels()[-1].set(fontweight="bold", color=LIBRARY)
    sleeps = f"; each compile takes {data['staged_s']:g} seconds" if one["backend"] == "staged" else ""
    figure.supxlabel(f"{threads} threads start at once and call one function with {shapes} shapes{sleeps}", fontsize=10)
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)
    return file


def draw_server(file: Path) -> Path:
    """Draws each answer of a result of ``serving``: when it was asked for, and how long it took."""
    from matplotlib import pyplot as plt

    rows = [row for row in json.loads(file.read_text())["table"] if row.get("points")]
    figure, grid = plt.subplots(1, len(rows), figsize=(1.9 * len(rows), 2.6), sharey=True, squeeze=False)
    for axes, row in zip(grid[0], rows, strict=True):
        asked, took = zip(*row["points"], strict=True)
        axes.scatter(asked, took, s=3, rasterized=True, color=LIBRARY if "safe" in row["variant"] else OTHERS)
        axes.set_yscale("log")
        axes.set_title(row["variant"], fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
    grid[0][0].set_ylabel("milliseconds to the answer")
    figure.supxlabel("seconds since the start", fontsize=9)
    figure.tight_layout()
    figure.savefig(file.with_suffix(".svg"), metadata={"Date": None}, dpi=130)
    plt.close(figure)
    return file.with_suffix(".svg")


def draw_all(folder: Path = RESULTS) -> list[Path]:
    """Draws what the results in ``folder`` allow; nothing without matplotlib."""
    try:
        drawn = [picture for file in sorted(folder.glob("cold_start-*.json")) if (picture := draw(file))]
        return [*drawn, *map(draw_server, sorted(folder.glob("serving-*.json")))]
    except ImportError:
        say("no picture: matplotlib is not installed")
        return []


if __name__ == "__main__":
    for path in draw_all():
        say(f"picture: {path.name}")

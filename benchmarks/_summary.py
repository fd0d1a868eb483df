"""The table that the README of the benchmarks begins with: each number that must hold, and what the results say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

from . import hot

#: What is promised, the limit, what was measured, and whether it is kept; None where the measurement can't tell.
Row = tuple[str, str, str, bool | None]


def _overhead(data: dict[str, Any]) -> Iterator[Row]:
    counted = data.get("instructions", {}).get("safe")
    if counted:
        measured = f"{counted['ratio']:.4f}; the same process with the patches taken out = 1: "
        measured += f"{counted['ratio_to_taken_out']:.4f}"
        yield "instructions of a warm call, plain torch = 1", "at most 1.005", measured, counted["ratio"] <= 1.005
    for function, timed in data.get("functions", {}).items():
        if "threads" not in timed:
            yield f"time of a warm call of the {function}", "", _failure([timed]), False
        for threads, names in timed.get("threads", {}).items():
            row, noise = names["safe"]["wall"], names["plain again"]["wall"]
            measured = "{} [{:.3f}, {:.3f}]; plain again {:.3f} [{:.3f}, {:.3f}]".format(
                f"{row['ratio']:.3f}", *row["ratio_95"], noise["ratio"], *noise["ratio_95"]
            )
            what = f"time of a warm call of the {function}, {threads} thread(s), plain torch = 1"
            yield what, "95 % interval holds 1.01 or is below", measured, row["ratio_95"][0] <= 1.01


def _cold_start(data: dict[str, Any]) -> Iterator[Row]:
    for row in data["must_hold"]:
        what = f"{row['threads']} cold threads, {row['shapes']} shape(s), backend {row['backend']}"
        limit = f"{row['shapes']} compile(s), {row['limit_s']:.3g} s (1.1 x one thread + 0.3 s)"
        yield what, limit, f"{row['compiles']} compile(s), {row['wall_s']:.3g} s", row["kept"]


def _contention(data: dict[str, Any]) -> Iterator[Row]:
    failed = sum(row.get("failed_calls", 1) for row in data["table"] if row["variant"] == "safe")
    yield "warm calls that fail beside compiles, traces and resets", "0", str(failed), failed == 0


def _serving(data: dict[str, Any]) -> Iterator[Row]:
    ratios = data["beside"].get("ratios", {})
    for name, limit in (("p50_ms", 1.5), ("p99_ms", 3.0)):
        if name in ratios:
            what = f"{name[:3]} of calls with max_wait_s=0 beside their compile, eager beside the same compile = 1"
            yield what, f"at most {limit:g}", f"{ratios[name]:.2f}", ratios[name] <= limit


def _readers(data: dict[str, Any]) -> Iterator[Row]:
    table, version = data["table"], data["environment"]["torch"].partition("+")[0]

    def row(what: str, name: str, key: str, limit_ns: float) -> Row:
        added, (low, high) = table[name][key]["added_ns"], table[name][key]["added_ns_95"]
        again = table["plain again"][key]["added_ns_95"]
        measured = f"{added:+.0f} [{low:+.0f}, {high:+.0f}] ns; plain again [{again[0]:+.0f}, {again[1]:+.0f}]"
        kept = True if high <= limit_ns else False if low > limit_ns else None
        return f"{what}, torch {version}", f"at most +{limit_ns:g} ns", measured, kept

    for name in ("safe", "safe, beside a trace", "safe, beside a compile"):
        yield row(f"`is_compiling()`{name[4:]}", name, "is_compiling", 100)
    own = data["modules_code_is_torchs_own"]
    what, _, measured, kept = row("a module's call while nobody traces", "safe", "module", 0)
    # No interval of a noisy measure ends at 0: with torch's own code it is kept if it is not measurably slower.
    yield what, "torch's own code, +0 ns", measured, own and kept is not False
    yield row("a module's call beside a trace", "safe, beside a trace", "module", 400)


#: The limits of what is paid beside the warm call: what is compared, at most how much, and how that is said.
COSTS = {
    "torch.compile()": ("added", 20, "at most +20 us"),
    "with set_stance, large function": ("added", 5, "at most +5 us"),
    "import torch._dynamo": ("added", 0.1, "at most +0.1 CPU s"),
    "a miss, counted": ("ratio", 1.03, "at most 1.03, plain torch = 1"),
}


def _costs(data: dict[str, Any]) -> Iterator[Row]:
    for name, (key, limit, said) in COSTS.items():
        if row := data["table"].get(name):
            low, high = row[f"{key}_95"]
            kept = True if high <= limit else False if low > limit else None
            yield f"{name}: {key}", said, f"{row[key]:.4g} [{low:.4g}, {high:.4g}] {row['unit']}", kept


def _drafters(data: dict[str, Any]) -> Iterator[Row]:
    lone = next((row for row in data["summary"] if row["config"].startswith("single")), None)
    for row in data["summary"]:
        if not row["config"].startswith("safe"):
            continue
        settings = data["settings"][row["config"]]
        devices = len(set(settings["drafter_devices"]))
        limit = 1 + 0.3 * (devices - 1) if devices > 1 else 1.15
        shape = f"{settings['targets']} target(s), {settings['drafters']} drafter(s), {settings['objects']}"
        what = f"first step of the last drafter on {devices} {_kind(data)}(s): {shape}; a lone one = 1"
        graphs = " or ".join(map(str, row["graphs"]))
        measured = f"{row['finished']} of {row['runs']} runs end; {graphs} graph(s)"
        kept = row["finished"] == row["runs"] and row["graphs"] == [devices]
        if row["last_first_step_s"] and lone and lone["last_first_step_s"]:
            one = lone["last_first_step_s"]["median"]
            middle, worst = (row["last_first_step_s"][key] / one for key in ("median", "worst"))
            measured, kept = f"{middle:.2f}, worst {worst:.2f}; {measured}", kept and middle <= limit
        yield what, f"at most {limit:.3g}, a graph for each device", measured, kept
        yield from _hot_in_processes(data, row["config"], shape)


def _hot_in_processes(data: dict[str, Any], config: str, shape: str) -> Iterator[Row]:
    """Compares processes, which differ by more than the limit: it is told, and not judged."""
    mode = config.partition(":")[0]
    safe, warmed = (
        sorted(r["hot_tokens_per_s"] for r in data["runs"] if r["config"] == name and r.get("hot_tokens_per_s"))
        for name in (config, config.replace(mode, "warmup", 1))
    )
    if safe and warmed:
        ratio, worst, best = median(safe) / median(warmed), safe[0] / warmed[-1], safe[-1] / warmed[0]
        measured = f"{ratio:.3f}, extremes {worst:.3f} and {best:.3f}; {len(safe)} and {len(warmed)} processes"
        what = f"hot tokens/s, processes of their own, {shape}, sequential warm-up = 1"
        yield what, "at least 0.99", measured, None


def _hot(data: dict[str, Any]) -> Iterator[Row]:
    rows = {row["name"]: row for row in hot.summary(data["runs"])}
    drafters = data["settings"]["devices"]
    where = f"{len(drafters)} drafter(s) on {len(set(drafters))} {_kind(data)}(s)"
    what, limit = f"hot tokens/s, {where}, sequential warm-up = 1", "at least 0.99"
    if "safe" not in rows:
        yield what, limit, _failure(data["runs"]), False
        return
    row, noise = rows["safe"], rows["warmup again"]
    measured = "{:.3f} [{:.3f}, {:.3f}]; warm-up again {:.3f} [{:.3f}, {:.3f}]".format(
        row["ratio"], *row["ratio_95"], noise["ratio"], *noise["ratio_95"]
    )
    low, high = row["ratio_95"]
    kept = True if low >= 0.99 else False if high < 0.99 else None
    failure = _failure(data["runs"])
    yield what, limit, f"{measured}; {failure}" if failure else measured, False if failure else kept


def _failure(runs: list[dict[str, Any]]) -> str:
    return "; ".join(f"no result: {error}" for one in runs for error in one.get("errors", []))


def _kind(data: dict[str, Any]) -> str:
    return "GPU" if data["environment"]["gpus"] else "CPU"


VERDICTS = {True: "yes", False: "**no**", None: "open"}

WRITERS: dict[str, Callable[[dict[str, Any]], Iterator[Row]]] = {
    "call_overhead": _overhead,
    "cold_start": _cold_start,
    "contention": _contention,
    "drafters": _drafters,
    "hot": _hot,
    "readers": _readers,
    "serving": _serving,
    "costs": _costs,
}


def rows(results: dict[str, dict[str, Any]]) -> Iterator[tuple[str, str, str, str, str]]:
    """Yields a row of cells for each number that must hold, from the results by the name of their file."""
    for benchmark, writer in WRITERS.items():
        for name, data in results.items():
            if data.get("benchmark") == benchmark:
                for what, limit, measured, kept in writer(data):
                    yield what, limit, measured, VERDICTS[kept], f"`{name}`"

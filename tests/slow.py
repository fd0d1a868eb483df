"""Which tests are slow: those named in ``slow.txt``. They run with ``-m slow``, as CI does.

The list is made from a run of everything on a quiet machine: the slowest go, until the rest takes ``--budget`` seconds.

    python -m pytest -m "not stress and not programs and not census" --junitxml=all.xml
    python -m tests.slow all.xml --budget 200
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree as ET

LIST = Path(__file__).with_name("slow.txt")
#: The others are never so quick that a test below this is worth leaving out.
LEAST_S = 0.5


def names() -> frozenset[str]:
    """Returns the tests that are slow, as ``folder/file.py::function``, without parameters."""
    return frozenset(line for line in LIST.read_text().splitlines() if line)


def name_of(nodeid: str) -> str:
    """Returns the name in the list for a test: without ``tests/``, and without parameters."""
    return nodeid.removeprefix("tests/").partition("[")[0]


def slowest(seconds: dict[str, float], budget_s: float) -> list[str]:
    """Returns the slowest tests, as many as it takes for the others to stay within ``budget_s``, by name."""
    left, chosen = sum(seconds.values()), []
    for name, taken in sorted(seconds.items(), key=lambda one: -one[1]):
        if left <= budget_s or taken < LEAST_S:
            break
        left -= taken
        chosen.append(name)
    return sorted(chosen)


def measured(report: Path) -> dict[str, float]:
    """Returns the seconds of each test function in a JUnit report, all its parameters together."""
    seconds: Counter[str] = Counter()
    for case in ET.parse(report).iter("testcase"):
        folder, _, rest = case.get("classname", "").removeprefix("tests.").partition(".")
        file = rest.replace(".", "/")
        name = f"{folder}/{file}.py::{case.get('name', '').partition('[')[0]}"
        seconds[name] += float(case.get("time", 0))
    return dict(seconds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path)
    parser.add_argument("--budget", type=float, default=200.0, help="seconds for what is not slow")
    given = parser.parse_args()
    found = slowest(measured(given.report), given.budget)
    LIST.write_text("".join(f"{name}\n" for name in found))
    print(f"{len(found)} tests are slow: {LIST}")

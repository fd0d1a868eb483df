"""Threads that are the first to need Dynamo, Inductor or export, in cold processes: all pairs, and all sets of seven.

    python stress_cold_first_uses.py [seconds] [plain] [starts=20] [part of a name]

It goes round all sets until the seconds are over, or, with ``starts=``, until each set has had so many cold starts.
``plain`` runs it without the patches, and shows what torch does. Skips where there is no ``fork``.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections import Counter

from tests.helpers import first_uses

SKIP = 77


def main() -> int:
    words = sys.argv[2:]
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 5.0
    starts = next((int(word.partition("=")[2]) for word in words if word.startswith("starts=")), 0)
    part = next((word for word in words if word != "plain" and not word.startswith("starts=")), "")
    if not hasattr(os, "fork"):
        print("no fork here")
        return SKIP
    if "plain" not in words:
        import safecompile.patch_all  # noqa: F401 - its import is its use
    first_uses.prepare()
    if "torch._dynamo" in sys.modules:
        print("this torch imports Dynamo by itself")
        return SKIP
    sets = [*itertools.combinations(first_uses.USES, 2), *itertools.combinations(first_uses.USES, 7)]
    sets = [uses for uses in sets if part in "+".join(use.__name__ for use in uses)]
    began, done = time.monotonic(), 0
    wrong: Counter[str] = Counter()
    for _ in range(starts or sys.maxsize):
        for uses in sets:
            for line in first_uses.cold_start(uses):
                wrong[f"{'+'.join(use.__name__ for use in uses)}: {line}"] += 1
            done += 1
            if not starts and time.monotonic() - began > seconds:
                break
        else:
            continue
        break
    for line, count in wrong.most_common():
        print(count, line)
    print(f"{done} cold starts of {len(sets)} sets, {sum(wrong.values())} errors")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

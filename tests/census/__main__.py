"""Every scene on the installed torch, by one command: ``python -m tests.census``.

Writes what differs to ``tests/census/results/TORCH.json``. Fails if a scene fails, or a place is in no class.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .classified import class_of, every_place
from .runner import Runner, merged, scene_names, told_unclassified

RESULTS = Path(__file__).parent / "results"


def main() -> int:
    """Runs the scenes, or some of them; or tells which classified places no recorded run has found."""
    parser = argparse.ArgumentParser(prog="python -m tests.census", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="SCENE", choices=scene_names(), default=scene_names())
    parser.add_argument("--stops", type=int, default=300, help="how often each scene is parked, about (300)")
    parser.add_argument("--release-results", type=Path, metavar="FILE", help=f"instead of {RESULTS.name}/TORCH.json")
    parser.add_argument("--stale", action="store_true", help="run nothing: tell what is classified and never found")
    options = parser.parse_args()
    if options.stale:
        print("\n".join(stale()))
        return 0
    begun, results = time.monotonic(), []
    with Runner(options.stops) as runner:
        for scene in options.only:
            result = runner.look(scene)
            results.append((scene, result))
            print(f"{time.monotonic() - begun:5.0f} s  {scene}: {_summary(result)}", flush=True)
    found, release = merged(results), version("torch").partition("+")[0]
    on = f"Python {sys.version.split()[0]}, torch {release}"
    looks = {scene: result.get("looks") or result.get("absent") or "failed" for scene, result in results}
    path = options.release_results or RESULTS / f"{release}.json"
    path.write_text(_as_json({"on": on, "stops": options.stops, "looks": looks}, found))
    unclassified = told_unclassified(found)
    print(*unclassified, sep="\n")
    failed = [scene for scene, result in results if "failed" in result]
    print(f"{on}: {len(results)} scenes, failed {failed}; {len(found)} places, {len(unclassified)} in no class; {path}")
    return 1 if failed or unclassified else 0


def stale() -> list[str]:
    """Returns the classified places that no recorded run has found."""
    found = {place for path in RESULTS.glob("*.json") for place in json.loads(path.read_text())["found"]}
    return sorted(place for place in every_place() if place not in found)


def _summary(result: dict[str, Any]) -> str:
    if "found" not in result:
        return result.get("absent") or result["failed"]
    unclassified = sum(class_of(place) is None for place in result["found"])
    return (
        f"{result['looks']} looks in {result['calls']} calls of {result['functions']} functions, "
        f"{len(result['found'])} places differ, {unclassified} in no class"
    )


def _as_json(head: dict[str, Any], found: dict[str, dict[str, Any]]) -> str:
    lines = [f"{json.dumps(place)}: {json.dumps(_few(finding['scenes']))}" for place, finding in found.items()]
    return json.dumps(head, indent=1)[:-2] + ',\n "found": {\n  ' + ",\n  ".join(lines) + "\n }\n}\n"


def _few(scenes: list[str]) -> str:
    return " ".join(scenes) if len(scenes) < 4 else f"{' '.join(scenes[:2])} and {len(scenes) - 2} more"


if __name__ == "__main__":
    sys.exit(main())

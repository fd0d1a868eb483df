"""Runs scenes, each in a fork of one process that has imported torch and the library."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.helpers.nursery import Nursery
from tests.helpers.threads import Hung

from .child import MODULES
from .classified import ASKED, class_of

#: A compile that is found in a cache passes over most of Inductor. What g++ has made is found again.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
    "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
}
PARTS = ("compiling", "exporting", "transforming", "blocks")
SCENE = re.compile(r"^@scene\((.*)\)\ndef (\w+)", re.MULTILINE)
PREPARE = """
import gc, warnings
warnings.simplefilter("ignore")
from tests.census import looking, scenes
scenes.all_scenes()
looking.landscape()
gc.freeze()
"""


def scene_names(*, quick: bool = False) -> list[str]:
    """Returns the names of all scenes, or of those in the run for CI; imports nothing of torch."""
    texts = [(Path(__file__).parent / f"scenes_{part}.py").read_text() for part in PARTS]
    return [name for text in texts for options, name in SCENE.findall(text) if not quick or "quick=True" in options]


class Runner:
    """Runs scenes with the library.

    Args:
        stops: how often each scene is parked, about.
        plain: without the library.
    """

    def __init__(self, stops: int, *, plain: bool = False) -> None:
        self._stops = stops
        self._folder = tempfile.TemporaryDirectory(prefix="census-", ignore_cleanup_errors=True)
        library = "" if plain else "import safecompile.patch_all\n"
        imports = "".join(f"import {name}\n" for name in MODULES)
        self._nursery = Nursery(
            (),
            f"{library}{imports}{PREPARE}",
            ("-W", "ignore"),
            ENVIRONMENT | dict.fromkeys(("TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR"), self._folder.name),
        )

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self._nursery.close()
        self._folder.cleanup()

    def look(self, scene: str, first: str = "") -> dict[str, Any]:
        """Returns what was found: ``found``, or ``absent`` or ``failed`` with the reason.

        Args:
            scene: the name of a scene.
            first: a program that runs before it, in the same process.
        """
        path = Path(self._folder.name) / f"{scene}.json"
        path.unlink(missing_ok=True)
        code = f"{first}\nfrom tests.census.child import main\nmain({scene!r}, {self._stops}, {str(path)!r})"
        try:
            done = self._nursery.run(code, timeout_s=550)
        except Hung as error:
            return {"failed": str(error)[-6000:]}
        if not path.exists():
            return {"failed": f"ended with {done.returncode}: {done.stderr[-3000:]}"}
        result: dict[str, Any] = json.loads(path.read_text())
        for place in ASKED.get(scene, ()):
            result.get("found", {}).pop(place, None)
        return result


def merged(results: Iterable[tuple[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Returns each place once, with the scenes in which it differs."""
    found: dict[str, dict[str, Any]] = {}
    for scene, result in results:
        for name, finding in result.get("found", {}).items():
            known = found.setdefault(name, {**finding, "scenes": []})
            known["scenes"].append(scene)
            known["stays"] = known["stays"] and finding["stays"]
    return dict(sorted(found.items()))


def told_unclassified(found: dict[str, dict[str, Any]]) -> list[str]:
    """Returns what is in no class: what differs, where the scene was, in which scenes, and who reads it."""
    return [
        f"{place}: {finding['before']} -> {finding['now']}{'' if finding['stays'] else ', and back'}\n"
        f"    at {finding['at']}\n    in {' '.join(finding['scenes'])}\n"
        f"    read by {'; '.join(finding['readers']) or '?'}"
        for place, finding in found.items()
        if class_of(place) is None
    ]

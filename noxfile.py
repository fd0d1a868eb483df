"""The tests on every supported torch (``nox``), on the oldest and the newest (``nox -t ends``), style and types."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import nox

SUPPORTED: dict[str, list[str]] = nox.project.load_toml("pyproject.toml")["tool"]["safecompile"]
RELEASES = SUPPORTED["torch"]
FOLDERS = ("tests/unit", "tests/host", "tests/patching")
# These play torch's part themselves, or look at pages and tools: they say nothing of a release, and the default tests
# have them.
NOT_OF_TORCH = [
    f"--ignore-glob=tests/unit/test_{name}.py" for name in ("scheduler*", "fuzz", "chaos", "readme", "links")
]
#: The slow tests too, but where QUICK is set: CI has them on one release.
MARKS = () if os.environ.get("QUICK") else ("-m", "not stress and not programs and not census")

nox.needs_version = ">=2025.2.9"
nox.options.sessions = ["tests"]
nox.options.stop_on_first_error = False
nox.options.error_on_missing_interpreters = False


@nox.session
@nox.parametrize(
    "torch", [nox.param(v, id=v, tags=["ends"] if v in (RELEASES[0], RELEASES[-1]) else []) for v in RELEASES]
)
def tests(session: nox.Session, torch: str) -> None:
    """Runs the tests on one release of torch; arguments after ``--`` go to pytest."""
    _run_tests(session, torch)


@nox.session(tags=["pythons"])
@nox.parametrize(
    ("python", "torch"), [nox.param(*pair.split("/"), id=pair.replace("/", "-")) for pair in SUPPORTED["pythons"]]
)
def pythons(session: nox.Session, torch: str) -> None:
    """Runs the tests on another Python, where there is one (Python 3.14 with its GIL, for example)."""
    _run_tests(session, torch)


def _run_tests(session: nox.Session, torch: str) -> None:
    # A constraint in the machine's pip configuration must not choose the torch that is tested.
    session.env["PIP_CONFIG_FILE"] = os.devnull
    try:
        session.install("--no-cache-dir", f"torch=={torch}")
        session.install("--no-cache-dir", "-e", ".[test]")
        session.run("python", "-c", f"import torch; assert torch.__version__.startswith({torch!r}), torch.__version__")
        name = f"{session.python or ''}-{torch}.xml"
        report = [f"--junitxml={folder}/{name}"] if (folder := os.environ.get("JUNIT_FOLDER")) else []
        session.run(
            "python",
            "-m",
            "pytest",
            *report,
            *(session.posargs or (*NOT_OF_TORCH, *MARKS, *_folders_with_tests(session))),
        )
    finally:
        # Up to 5 GB each. ``nox -r`` keeps it for the next run.
        if not session.virtualenv.reuse_existing:
            shutil.rmtree(session.virtualenv.location, ignore_errors=True)


def _folders_with_tests(session: nox.Session) -> list[str]:
    found = [folder for folder in FOLDERS if any(Path(folder).rglob("test_*.py"))]
    for folder in FOLDERS:
        if folder not in found:
            session.warn(f"{folder} has no tests")
    return found or session.error("no folder has tests")


@nox.session
@nox.parametrize("torch", ["2.9.1", "2.13.0", "2.15.0"])
def fidelity(session: nox.Session, torch: str) -> None:
    """Programs with one working thread, plain and with the library, in every column: hours for each release."""
    session.env["PIP_CONFIG_FILE"] = os.devnull
    session.install("--no-cache-dir", f"torch=={torch}", "-e", ".[test]")
    session.run("python", "-m", "tests.fidelity", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Checks style and format."""
    session.install("ruff")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")


@nox.session
def types(session: nox.Session) -> None:
    """Checks types and the order of imports, against the torch that pip chooses."""
    session.install("-e", ".[test,dev]")
    session.run("lint-imports")
    for platform in ("linux", "win32", "darwin"):
        session.run("mypy", "--platform", platform)
    session.run("pyright")

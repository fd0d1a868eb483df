"""Builds the sdist, the wheel out of it, and tests the wheel where the sources are not.

    python tests/packaging/prove.py [arguments of pytest]

It needs ``build`` and ``twine``. torch and pytest are those of the interpreter that runs this.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ("tests/packaging", "tests/unit/test_api.py", "tests/unit/test_api_module.py", "tests/patching/test_import.py")


def run(*command: str, cwd: Path = ROOT) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHONPATH", "SAFECOMPILE_"))}
    print("$", " ".join(command), flush=True)
    done = subprocess.run(command, cwd=cwd, env=env, check=False, stdout=subprocess.PIPE, text=True)
    print(done.stdout[-3000:], flush=True)
    if done.returncode:
        sys.exit(f"failed with {done.returncode}: {' '.join(command)}")
    return done.stdout


def look_into(sdist: Path, wheel: Path) -> None:
    """The wheel has the package alone, the sdist what a packager needs, and neither has what a run left."""
    names = zipfile.ZipFile(wheel).namelist()
    strange = [name for name in names if not name.startswith("safecompile/") and ".dist-info/" not in name]
    missing = {"safecompile/py.typed", "safecompile/__init__.py", "safecompile/patch_all.py"} - set(names)
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    missing |= {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "tests/conftest.py"} - inside
    strange += [name for name in (*inside, *names) if "__pycache__" in name or name.endswith(".pyc")]
    print(f"{wheel.name}: {len(names)} files; {sdist.name}: {len(inside)}")
    if strange or missing:
        sys.exit(f"strange: {strange}, missing: {missing}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        dist, away, venv = (Path(folder, name) for name in ("dist", "away", "venv"))
        run(sys.executable, "-m", "build", "--outdir", str(dist), str(ROOT))
        (sdist,), (wheel,) = dist.glob("*.tar.gz"), dist.glob("*.whl")
        run(sys.executable, "-m", "twine", "check", "--strict", str(sdist), str(wheel))
        look_into(sdist, wheel)
        run(sys.executable, "-m", "venv", str(venv))
        python = venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        run(str(python), "-m", "pip", "install", "--quiet", "--no-deps", str(wheel))
        # The packages of this interpreter, but not what its own .pth files add: an editable install, for one.
        site = Path(run(str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
        Path(site, "torch_and_pytest.pth").write_text(sysconfig.get_path("purelib") + "\n")
        away.mkdir()
        shutil.copytree(ROOT / "tests", away / "tests", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "README.md", "CHANGELOG.md"):
            shutil.copy(ROOT / name, away)
        where = run(str(python), "-c", "import safecompile; print(safecompile.__file__)", cwd=away).strip()
        if not Path(where).is_relative_to(venv):
            sys.exit(f"the sources are tested, not the wheel: {where}")
        run(str(python), "-m", "pytest", "-q", *(sys.argv[1:] or TESTS), cwd=away)


if __name__ == "__main__":
    main()

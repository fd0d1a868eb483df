"""What users may rely on, as text: names and signatures, environment variables, commands.

    python -m tests.packaging.public_api > tests/packaging/public_api.txt

``test_public_api.py`` compares; a difference is a change of the interface, and belongs into CHANGELOG.md.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import safecompile
from safecompile.__main__ import _parser

PACKAGE = Path(safecompile.__file__).parent


def signature(function: Any) -> str:
    if function is safecompile.safe_compile:
        return "(the signature of torch.compile)"
    return str(inspect.signature(function)).replace("'", "")


def described(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, type):
        bases = ", ".join(base.__name__ for base in value.__bases__ if base is not object)
        yield f"class {name}({bases})"
        if "__init__" in vars(value):
            yield f"    {name}{signature(value)}"
        for inner, one in sorted(vars(value).items()):
            if not inner.startswith("_"):
                one = getattr(one, "__func__", one)
                yield f"    {inner}{signature(one) if inspect.isfunction(one) else ''}"
    elif isinstance(value, types.ModuleType):
        yield f"module {name}"
        for inner in sorted(getattr(value, "__all__", ())):
            yield from (f"    {line}" for line in described(inner, getattr(value, inner)))
    elif callable(value):
        yield f"{name}{signature(value)}"
    else:
        yield f"{name}: {type(value).__name__}"


def modules() -> Iterator[str]:
    for path in sorted(PACKAGE.glob("*.py")):
        if not path.stem.startswith("_"):
            yield f"import safecompile.{path.stem}"


def variables() -> set[str]:
    text = "".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    return set(re.findall(r"\bSAFECOMPILE_[A-Z_]+[A-Z]\b", text))


def commands() -> Iterator[str]:
    (choices,) = (a.choices for a in _parser()._actions if isinstance(a, argparse._SubParsersAction))
    for name, parser in sorted(dict(choices).items()):
        options = (one for action in parser._actions for one in action.option_strings or [action.dest])
        yield f"python -m safecompile {name}: {' '.join(sorted(options))}"


def text() -> str:
    names = [line for name in sorted(safecompile.__all__) for line in described(name, getattr(safecompile, name))]
    parts = (names, modules(), sorted(variables()), commands(), ["logger: safecompile"])
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())

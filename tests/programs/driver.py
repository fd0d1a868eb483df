"""Runs ``main`` of one example, as ``python examples/NAME.py`` does, and tells as one line of JSON what came of it.

``examples/`` stands on the path.
"""

from __future__ import annotations

import importlib
import json
import logging
import sys


class Heard(logging.Handler):
    """What the library and torch log at the default level."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []
        for name in ("safecompile", "torch._dynamo", "torch._inductor", "torch._functorch"):
            logging.getLogger(name).addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.name}: {record.getMessage()}")


def main() -> None:
    name, *arguments = sys.argv[1:]
    heard = Heard()
    seen = importlib.import_module(name).main(*arguments)
    from torch._dynamo.utils import counters

    seen.setdefault("graphs", counters["stats"]["unique_graphs"])
    print("\n" + json.dumps({**seen, "log": heard.lines}), flush=True)


if __name__ == "__main__":
    main()

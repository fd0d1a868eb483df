"""What the commands print."""

from __future__ import annotations

import os
import sys
from typing import Final

#: What a shell tells of a tool that SIGPIPE has ended.
_NOBODY_READS: Final = 141


def say(text: str) -> None:
    """Prints a text, with escapes for what the encoding of stdout does not have.

    Raises:
        SystemExit: nobody reads it any more, as in ``... | head``.
    """
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)
    except BrokenPipeError:
        # The interpreter writes at its end what is still there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(_NOBODY_READS)

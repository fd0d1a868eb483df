"""Files that are written once the work is done, and so should be looked at before it."""

from __future__ import annotations

import os
from pathlib import Path


def check_writable(path: str | os.PathLike[str] | None) -> None:
    """Raises OSError, with one sentence, if a file can't be written there; writes nothing. None is all right."""
    if path is None:
        return
    is_folder = Path(path).is_dir()
    place = Path(path) if Path(path).exists() else Path(path).parent
    if is_folder or not os.access(place, os.W_OK):
        what = "it is a folder" if is_folder else "there is no such folder, or this process may not write there"
        msg = f"{path} can't be written: {what}."
        raise OSError(msg)

"""The look for a compiled version that fits a call, which torch's own look-up has not found."""

from __future__ import annotations

from typing import Any

from .._torch import cache
from . import cache_entries, returned


def find(callback: Any, frame: Any, region: int) -> Any:
    """Returns a compiled version that fits ``frame`` in this region, published or about to be, or None.

    It compares what torch's own look-up compares: the backend, the region, the guards.
    """
    code, backend = frame.f_code, None
    about_to_be = [one for its_code, one in returned.about_to_be_published() if its_code is code]
    for entry in [*cache.cache_entries(code), *about_to_be]:
        made_for = cache_entries.what_for(entry.guard_manager)
        if made_for is None or made_for[1] != region or cache_entries.is_outdated(entry.guard_manager):
            continue
        if backend is None:
            backend = cache.backend_of(callback)
        if cache.is_same_backend(made_for[0], backend) and cache_entries.fits(entry.guard_manager, frame.f_locals):
            return entry
    return None

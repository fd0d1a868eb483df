"""What tells threads apart: an object for each, since Python uses a thread's ident again."""

from __future__ import annotations

import threading

_here = threading.local()


def of_this_thread() -> object:
    """Returns, for each thread, an object that is no other thread's, and that ends with it unless somebody keeps it."""
    # In one step: a signal handler in the middle of this may have made it.
    return vars(_here).setdefault("identity", object())

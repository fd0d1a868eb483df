"""``import safecompile.patch_all``, first in the program, makes every ``torch.compile`` in it safe for threads.

It calls :func:`safecompile.install`. It may come before ``import torch``: it imports neither torch nor any part of it,
and patches each part when the program imports it. :func:`safecompile.uninstall` takes everything out again.
"""

from __future__ import annotations

from ._installing.installer import install

install()

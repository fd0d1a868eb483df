"""One function with CUDA graphs for all threads, in each release.

Inductor wraps a compiled graph in a function that makes what replays at its first call. Up to torch 2.12 it makes one
for all threads, and two threads that call it first at once make two, of which one dies with its graphs. From 2.13 on
each thread makes one, which dies with the thread: its graphs are freed while somebody still reads their outputs (``an
illegal memory access was encountered``, 2.14.1, H200). Here one is made for all threads, and looks up its caller's
graphs: see :mod:`.cuda_graphs`. It lives as long as the compiled graph.
"""

from __future__ import annotations

import functools
from types import ModuleType, SimpleNamespace
from typing import Any, Final

from .._patching.families import Part
from .._patching.patches import AttributePatch, Patch
from .._torch import cuda_graphs as host


def patches_of_compile_fx(module: ModuleType) -> list[Patch]:
    """Returns the patch; changes nothing."""
    original = module.cudagraphify
    name = host.where_cudagraphify_keeps_its_function(original)

    @functools.wraps(original)
    def _patched_cudagraphify(*args: Any, **kwargs: Any) -> Any:
        run = original(*args, **kwargs)
        cells = dict(zip(run.__code__.co_freevars, run.__closure__, strict=True))
        if host.uses_graph_trees(cells["cudagraphify_fn"].cell_contents):
            first = _First(cells, name)
            cells[name].cell_contents = first if name == "compiled_fn" else SimpleNamespace(compiled_fn=first)
        return run

    return [AttributePatch(module, "cudagraphify", _patched_cudagraphify)]


class _First:
    """What is called until the function for all threads is made."""

    def __init__(self, cells: dict[str, Any], name: str) -> None:
        self.cells, self.name = cells, name

    def __call__(self, inputs: Any) -> Any:
        make, *arguments = (
            self.cells[name].cell_contents for name in ("cudagraphify_fn", "model", "static_input_idxs")
        )
        made = vars(self).setdefault("made", make(arguments[0], inputs, arguments[1]))  # making one changes nothing
        if self.name == "compiled_fn":
            self.cells[self.name].cell_contents = made
        else:
            self.cells[self.name].cell_contents.compiled_fn = made
        return made(inputs)


PARTS: Final = (Part("cuda graphs", host.COMPILE_FX, patches_of_compile_fx),)

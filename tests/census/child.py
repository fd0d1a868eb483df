"""Looks at one scene in this process, and writes down what differs."""

from __future__ import annotations

import json
import traceback
import warnings
from pathlib import Path
from typing import Any

#: What is there before a scene begins, so that a place has the same name in each.
MODULES = (
    "torch",
    "torch._dynamo",
    "torch._dynamo.backends.debugging",
    "torch._dynamo.compiled_autograd",
    "torch._inductor.compile_fx",
    "torch._inductor.fx_passes.joint_graph",
    "torch._export",
    "torch.export",
    "torch.export._trace",
    "torch.distributed.tensor",
    "torch.distributed.fsdp",
    "torch.profiler",
    "torch.onnx",
    "torch.utils.cpp_extension",
    "torch.utils.flop_counter",
    "torch.nn.attention.flex_attention",
    "functorch.compile",
)


def main(name: str, stops: int, path: str) -> None:
    """Looks at a scene of the table."""
    from .looking import landscape
    from .parking import Watch
    from .readers import readers
    from .scenes import Absent, all_scenes

    warnings.simplefilter("ignore")
    scene = all_scenes()[name]
    result: dict[str, Any] = {}
    try:
        watch = Watch(scene.prepare(), stops, scene.limit_s)
        watch.look(scene.warm)
        who = readers(landscape(), watch.found)
        for place, finding in watch.found.items():
            finding["readers"] = who.get(place, [])
        result = {"looks": watch.looked, "calls": watch.calls, "functions": watch.functions, "found": watch.found}
    except Absent as error:
        result = {"absent": str(error)}
    except BaseException:
        result = {"failed": traceback.format_exc()}
    Path(path).write_text(json.dumps(result))

"""The families of patches, in the order in which they go in. Each file declares its own ``PARTS``."""

from __future__ import annotations

from typing import Final

from .._patching.families import Family, by_name

#: Without these nothing is installed, and the first compile says so.
REQUIRED: Final = ("miss", "fx")


def all_families() -> list[Family]:
    """Returns the families anew, nothing of them applied. Imports every file of patches, and nothing of torch."""
    # Long, as each file is named twice: where it is imported, which must be in here, and in its order.
    from .._engine import backward, cache_entries, captures, convert_frame, resets, retry
    from .._isolation import (
        anomaly,
        compiled_autograd,
        cuda_graphs,
        data_parallel,
        default_device,
        exports,
        first_uses,
        flex,
        forward_ad,
        fx,
        graph_backwards,
        graph_functions,
        graph_inputs,
        graph_module,
        kernel_launches,
        operators,
        overridden_functions,
        random_state,
        recomputed_randomness,
        scoped_assignments,
        settings,
        shared_settings,
        stances,
        switches,
        triton_keys,
    )

    files = (
        first_uses,  # before what else changes the same functions: it takes its patches away where Dynamo is there
        *(retry, convert_frame, captures, cache_entries),
        *(fx, flex, graph_module, backward, switches, random_state, shared_settings, recomputed_randomness),
        compiled_autograd,
        *(
            anomaly,
            default_device,
            forward_ad,
            operators,
            exports,
            overridden_functions,
            data_parallel,
            cuda_graphs,
            graph_backwards,
            graph_functions,
            graph_inputs,
            kernel_launches,
            triton_keys,
        ),
        *(stances, resets, settings, scoped_assignments),
    )
    return by_name((part for file in files for part in file.PARTS), REQUIRED)

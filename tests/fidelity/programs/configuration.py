"""torch._dynamo.config: assigned, patched, in threads and contexts."""

from __future__ import annotations

import contextlib
import contextvars

import torch
import torch._dynamo.config

from tests.fidelity.table import program

from ._common import Counting, fresh, in_thread, ones


def _read():
    return torch._dynamo.config.recompile_limit, torch._dynamo.config.suppress_errors


def _limited(*, shapes=5):
    backend = Counting(lambda: seen.append(_read()))
    seen = []
    compiled = torch.compile(fresh(), backend=backend, dynamic=False)
    for i in range(shapes):
        compiled(ones(i + 1))
    return backend.calls, seen[:1]


@program()
def assigned():
    """A compile sees what is assigned."""
    torch._dynamo.config.recompile_limit = 2
    return _limited()


@program(quick=True)
def assigned_inside_patch():
    """An assignment of another name inside config.patch stays after it; of the patched name, it does not."""
    with torch._dynamo.config.patch(recompile_limit=2):
        torch._dynamo.config.suppress_errors = True
        torch._dynamo.config.recompile_limit = 3
        inside = _limited(), _read()
    return inside, _read(), _limited()


@program({"function": 0, "method": 1, "generator": 2})
def patch_as_a_decorator(kind):
    """config.patch as a decorator: in each call, and nowhere else."""
    patch = torch._dynamo.config.patch(recompile_limit=2)
    if kind == 0:
        result = patch(_limited)()
    elif kind == 1:
        result = type("C", (), {"m": patch(lambda self: _limited())})().m()
    else:
        generator = patch(lambda: (i for i in (_limited(), _read())))()
        result = next(generator), _read(), next(generator)
    return result, _read(), _limited()


@program()
def patch_nested():
    """Patches within patches, the outer left through an error."""
    seen = []
    with contextlib.suppress(KeyError), torch._dynamo.config.patch(recompile_limit=4):
        with torch._dynamo.config.patch({"recompile_limit": 2, "suppress_errors": True}):
            seen.append((_limited(), _read()))
        seen.append((_limited(), _read()))
        raise KeyError
    return seen, _read()


@program(quick=True)
def patch_left_in_another_thread():
    """A patch that another thread leaves than the one that entered it."""
    patch = torch._dynamo.config.patch(recompile_limit=2)
    patch.__enter__()
    inside = _read(), in_thread(_read)
    left = in_thread(lambda: patch.__exit__(None, None, None))
    return inside, left, _read(), in_thread(_read), _limited()


@program()
def patch_never_left():
    """A thread enters a patch and ends; threads after it, which may have its ident, and the main one."""

    def enter():
        torch._dynamo.config.patch(recompile_limit=2).__enter__()
        return _limited()

    return in_thread(enter), [in_thread(lambda: (_read(), _limited())) for _ in range(4)], _read(), _limited()


@program()
def assigned_in_a_thread():
    """A thread assigns and ends; threads after it, and the main one."""

    def assign():
        torch._dynamo.config.recompile_limit = 2
        return _limited()

    return in_thread(assign), [in_thread(lambda: (_read(), _limited())) for _ in range(4)], _read(), _limited()


@program(quick=True)
def assigned_in_a_copied_context():
    """What is assigned inside contextvars.copy_context().run is seen where plain torch sees it."""

    def assign():
        torch._dynamo.config.recompile_limit = 2
        return _limited()

    context = contextvars.copy_context()
    inside = context.run(assign)
    outside = _read(), _limited()
    return inside, outside, context.run(_limited), context.run(_read)


@program({"load": 0, "save": 1, "copy": 2, "changes": 3})
def as_a_whole(kind):
    """Saving and loading all settings."""
    config = torch._dynamo.config
    saved = config.save_config()
    with config.patch(recompile_limit=3):
        if kind == 0:
            config.load_config(saved)
            return _read(), _limited()
        if kind == 1:
            return config.save_config() == saved, _limited()
        if kind == 2:
            return config.get_config_copy()["recompile_limit"], _limited()
        return config.codegen_config(), _limited()

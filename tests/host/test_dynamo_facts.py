"""What the engine relies on in Dynamo: names, signatures, guard managers, and the order of publication."""

from __future__ import annotations

import inspect
import threading
from types import CodeType
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._functorch._aot_autograd.runtime_wrappers as runtime_wrappers
from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list
from torch._dynamo import convert_frame, eval_frame, guards, types

from safecompile import uninstall
from safecompile._patching import rewriting


@pytest.fixture(autouse=True)
def _plain():
    uninstall()
    torch._dynamo.reset()


def test_the_callback_of_a_miss():
    """CatchErrorsWrapper.__call__ has the same parameters in every release."""
    parameters = list(inspect.signature(convert_frame.CatchErrorsWrapper.__call__).parameters)
    assert parameters == ["self", "frame", "cache_entry", "frame_state"]


def test_the_lock():
    """compile_lock is a reentrant lock that tells whether this thread owns it, and its repr names the owner."""
    lock = convert_frame.compile_lock
    with lock, lock:
        assert lock._is_owned()
        assert f"owner={threading.get_ident()}" in repr(lock)
    assert not lock._is_owned()
    assert callable(lock._at_fork_reinit)


def test_the_lock_is_held_in_the_backend_and_free_in_the_run():
    """The trace, the backend and the guards are under the lock; compiled code is not."""
    seen = []

    def backend(module, inputs):
        seen.append(convert_frame.compile_lock._is_owned())

        def run(*args):
            seen.append(convert_frame.compile_lock._is_owned())
            return module.forward(*args)

        return run

    torch.compile(lambda x: x + 1, backend=backend)(torch.ones(1))
    assert seen == [True, False]


def test_the_wrapper():
    """One wrapper in _TorchDynamoContext.__call__ calls the function, and its source is what runs."""
    call = eval_frame._TorchDynamoContext.__call__
    inner = [one for one in call.__code__.co_consts if isinstance(one, CodeType)]
    assert len([one for one in inner if one.co_name in ("compile_wrapper", "_fn")]) == 1
    assert rewriting.recompiled(call, lambda tree: tree) == call.__code__
    assert torch.compile(lambda x: x, backend="eager").__code__ in inner


def test_the_cache_entries():
    """An entry shows its code and its guard manager, whose check() tells, and which takes attributes of ours."""

    def function(x):
        return x + 1

    torch.compile(function, backend="eager", dynamic=False)(torch.ones(3))
    (entry,) = _debug_get_cache_entry_list(function.__code__)
    manager = entry.guard_manager
    assert manager.check({"x": torch.ones(3)})
    assert not manager.check({"x": torch.ones(4)})
    manager.__dict__["_ours"] = 1
    assert _debug_get_cache_entry_list(function.__code__)[0].guard_manager._ours == 1
    assert isinstance(entry.code, CodeType)
    assert entry.compile_id is not None
    assert hasattr(entry, "trace_annotation")
    assert manager.extra_state is not None
    assert callable(manager.extra_state.invalidate)


def test_publication_comes_after_the_callback(monkeypatch):
    """C appends an entry when the callback has returned, with the lock free again; the newest comes first."""
    original = convert_frame.CatchErrorsWrapper.__call__
    seen: list[Any] = []

    def function(x):
        return x + 1

    def spy(self, frame, cache_entry, frame_state):
        result = original(self, frame, cache_entry, frame_state)
        if frame.f_code is function.__code__:
            published = [entry.code for entry in _debug_get_cache_entry_list(function.__code__)]
            seen.append((result.guarded_code.code, published, convert_frame.compile_lock._is_owned()))
        return result

    monkeypatch.setattr(convert_frame.CatchErrorsWrapper, "__call__", spy)
    compiled = torch.compile(function, backend="eager", dynamic=False)
    compiled(torch.ones(3))
    compiled(torch.ones(4))
    codes = [code for code, _, _ in seen]
    assert [published for _, published, _ in seen] == [[], codes[:1]]
    assert not any(owned for _, _, owned in seen)
    assert [entry.code for entry in _debug_get_cache_entry_list(function.__code__)] == codes[::-1]


def test_the_limit_is_counted_in_python():
    """compute_cache_size takes the frame and the entries; a replacement of it is what convert_frame calls."""
    parameters = list(inspect.signature(convert_frame.compute_cache_size).parameters)
    assert parameters[0] == "frame"
    assert 2 <= len(parameters) <= 3
    assert "compute_cache_size" in vars(convert_frame)


def test_what_else_is_named():
    """The remaining names are there."""
    assert callable(guards.CheckFunctionManager.invalidate)
    assert callable(types.wrap_guarded_code)
    assert callable(types.GuardedCode)
    assert callable(convert_frame.fx_forward_from_src_skip_result)
    assert callable(convert_frame.original_forward_from_src)
    assert hasattr(runtime_wrappers, "_AutogradBackwardCompiler") or callable(
        runtime_wrappers.AOTDispatchAutograd.post_compile
    )
    assert torch._C._current_graph_task_id() == -1
    assert torch._C._is_multithreading_enabled() is True

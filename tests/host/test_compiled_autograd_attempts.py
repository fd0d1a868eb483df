"""Why a compiled backward begins only while no other backward runs: two ways to do without that, and what came of them.

Both in plain torch, in a process of its own: one of them kills it.
"""

from __future__ import annotations

import pytest

from tests.helpers.nursery import in_forked_process

BEGIN = """
    import sys, threading, time
    import torch, torch._dynamo
    from torch._dynamo import compiled_autograd

    switch = torch._C._dynamo.compiled_autograd.set_autograd_compiler

    def instance():
        return compiled_autograd.AutogradCompilerInstance(lambda graph: graph)

    def gradient(hook=None):
        x = torch.ones(4, requires_grad=True)
        y = x * 2
        if hook is not None:
            y.register_hook(hook)
        y.sum().backward()
        return x.grad.tolist()

    def in_thread(function):
        errors = []

        def run():
            try:
                function()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread, errors
"""


def test_the_switch_on_for_the_moment_of_one_threads_call_alone():
    """A backward of another thread that is on its way into the engine sees the switch, and uses it when it is off.

    What it then calls is a null pointer. 2.7 looks whether a backward runs, and may raise instead.
    """
    program = (
        BEGIN
        + """
    engine, prepared = torch.autograd.Variable._execution_engine, threading.Event()

    def backward():
        x, one = torch.ones(4, requires_grad=True), torch.ones(())
        loss = (x * 2).sum()
        sys.setswitchinterval(20)  # this thread runs on until the engine gives the GIL up
        prepared.set()
        engine.run_backward((loss,), (one,), False, False, (), allow_unreachable=True, accumulate_grad=True)

    switch(instance, False)
    thread, errors = in_thread(backward)
    prepared.wait(30)
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        pass  # it has seen the switch by now, and waits for the GIL
    switch(None, False)
    thread.join()
    assert not errors, errors
    """
    )
    for _ in range(4):  # on a busy machine the thread may not get that far in time
        done = in_forked_process(program)
        if done.returncode < 0 or "RuntimeError" in done.stderr:
            return
    pytest.fail(f"it went well, or ended otherwise: {done.returncode} {done.stderr}")


@pytest.mark.parametrize("beside", ["another compiled backward", "a compile of its graph"])
def test_two_compiled_backwards_at_once(beside: str):
    """Torch's engine has one lock for all, which it does not wait for."""
    where = "inside.set(); leave.wait(30)"
    done = in_forked_process(
        BEGIN
        + f"""
    inside, leave = threading.Event(), threading.Event()

    def compiler(graph):
        def run(*given):
            {where if beside == "another compiled backward" else "pass"}
            return graph(*given)

        {where if beside == "a compile of its graph" else "pass"}
        return run

    switch(lambda: compiled_autograd.AutogradCompilerInstance(compiler), False)
    first, _ = in_thread(gradient)
    inside.wait(30)
    switch(instance, False)  # as the library does for the second thread
    second, errors = in_thread(gradient)
    second.join()
    leave.set()
    first.join()
    assert not errors, errors
    """
    )
    assert done.returncode != 0
    assert "compiled autograd" in done.stderr

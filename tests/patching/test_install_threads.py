"""install() and uninstall() beside other threads, and inside a trace."""

from __future__ import annotations

from .processes import passes, passes_without_torch

PROPS = """
    import threading, time
    import torch, torch.fx
    import safecompile, safecompile._installing.installer
    from tests.helpers.threads import ParkedBackend, run_threads
    from tests.patching.snapshots import differences, snapshot

    class Parked(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inside, self.go = threading.Event(), threading.Event()
            self.linear = torch.nn.Linear(2, 2)

        def forward(self, x):
            self.inside.set()
            assert self.go.wait(30)
            return self.linear(x)

    def refused(call, word):
        began = time.monotonic()
        try:
            call(timeout_s=0.3)
        except safecompile.InstallError as error:
            assert word in str(error) and "Nothing was changed" in str(error), error
        else:
            raise AssertionError("no InstallError")
        assert 0.25 < time.monotonic() - began < 5.0
"""


def test_eight_threads_install_once():
    """Eight threads that install at once patch once; eight that uninstall at once restore once."""
    passes(
        PROPS
        + """
    import torch._dynamo.convert_frame as convert_frame
    before = snapshot()
    for _ in range(3):
        run_threads([safecompile.install] * 8)
        patched = convert_frame.CatchErrorsWrapper.__call__
        assert not hasattr(patched.__wrapped__, "__wrapped__")
        run_threads([safecompile.safe_compile(lambda x: x + 1, backend="eager").__call__ and safecompile.install] * 2)
        run_threads([safecompile.uninstall] * 8)
        assert "safecompile" not in convert_frame.CatchErrorsWrapper.__call__.__code__.co_filename
    run_threads([safecompile.install, safecompile.uninstall] * 4)
    safecompile.uninstall()
    kept = [key for key in differences(before, snapshot()) if "'code'" in key or "safecompile" in key]
    assert not kept, kept
    """
    )


def test_eight_threads_call_safe_compile_first():
    """The first safe_compile of eight threads at once installs once, and each call works."""
    passes(
        PROPS
        + """
    x = torch.ones(2)
    results = run_threads([lambda: safecompile.safe_compile(lambda y: y.sin() + 1, backend="eager")(x)] * 8)
    assert all(torch.equal(one, x.sin() + 1) for one in results)
    import torch._dynamo.convert_frame as convert_frame
    assert "safecompile" not in convert_frame.CatchErrorsWrapper.__call__.__wrapped__.__code__.co_filename
    """
    )


def test_install_and_uninstall_beside_a_symbolic_trace():
    """While another thread traces, both wait for a bounded time and raise; nothing changes; then they work."""
    passes(
        PROPS
        + """
    import torch._dynamo.convert_frame
    for call, installed in ((safecompile.install, False), (safecompile.uninstall, True)):
        assert safecompile.is_installed() is installed
        model = Parked()
        graphs = []
        thread = threading.Thread(target=lambda: graphs.append(torch.fx.symbolic_trace(model)))
        thread.start()
        assert model.inside.wait(30)
        before = snapshot()
        refused(call, "tracing")
        assert not differences(before, snapshot()) and safecompile.is_installed() is installed
        threading.Timer(0.3, model.go.set).start()
        call()  # waits until the trace is over
        thread.join(30)
        assert safecompile.is_installed() is not installed
        assert [n.op for n in graphs[0].graph.nodes] == ["placeholder", "call_module", "output"]
    """
    )


def test_install_and_uninstall_beside_a_compile():
    """While another thread compiles, both wait for a bounded time and raise; nothing changes; then they work."""
    passes(
        PROPS
        + """
    x = torch.ones(2)
    for call, installed in ((safecompile.install, False), (safecompile.uninstall, True)):
        assert safecompile.is_installed() is installed
        backend = ParkedBackend()
        f = torch.compile(lambda y: y.sin() + installed, backend=backend)
        results = []
        thread = threading.Thread(target=lambda: results.append(f(x)))
        thread.start()
        backend.wait_parked()
        before = snapshot()
        refused(call, "compiling")
        assert not differences(before, snapshot()) and safecompile.is_installed() is installed
        threading.Timer(0.3, backend.release).start()
        call()
        thread.join(30)
        assert torch.equal(results[0], x.sin() + installed) and safecompile.is_installed() is not installed
    """
    )


def test_install_inside_an_own_trace():
    """In the middle of this thread's own trace or compile nothing is patched; safe_compile works there."""
    passes(
        PROPS
        + """
    import torch._dynamo.convert_frame
    seen = []

    class Outer(torch.nn.Module):
        def forward(self, x):
            seen.append(safecompile.is_installed())
            f = safecompile.safe_compile(lambda y: y + 1, backend="eager")
            seen.append(safecompile.is_installed())
            try:
                safecompile.install(timeout_s=0.2)
            except safecompile.InstallError as error:
                seen.append(error)
            return x + 1

    graph = torch.fx.symbolic_trace(Outer())
    assert seen[:2] == [False, False], seen
    assert isinstance(seen[2], safecompile.InstallError), seen
    assert torch.nn.Module.__call__ is torch.nn.Module._wrapped_call_impl
    assert torch.equal(graph(torch.ones(1)), torch.ones(1) + 1)

    def backend(module, inputs):
        try:
            safecompile.install(timeout_s=0.2)
        except safecompile.InstallError as error:
            seen.append(error)
        return module.forward

    assert torch.equal(torch.compile(lambda x: x + 1, backend=backend)(torch.ones(1)), torch.ones(1) + 1)
    assert isinstance(seen[3], safecompile.InstallError), seen
    safecompile.install()
    assert torch.equal(torch.compile(lambda x: x + 2, backend="eager")(torch.ones(1)), torch.ones(1) + 2)
    """
    )


def test_install_beside_an_import():
    """install() while another thread is in the middle of importing Dynamo neither hangs nor leaves a part out."""
    passes_without_torch(
        """
    import sys, threading, time
    import torch
    import safecompile, safecompile._installing.installer
    reached, go = threading.Event(), threading.Event()

    class Finder:
        def find_spec(self, name, path=None, target=None):
            if name == "torch._dynamo.eval_frame":
                assert "torch._dynamo.convert_frame" in sys.modules
                reached.set()
                assert go.wait(30)

    sys.meta_path.insert(0, Finder())
    importing = threading.Thread(target=lambda: __import__("torch._dynamo"), daemon=True)
    importing.start()
    assert reached.wait(60)
    installing = threading.Thread(target=lambda: safecompile.install(timeout_s=60), daemon=True)
    installing.start()
    time.sleep(1.0)  # it waits for the import now, if it waits at all
    go.set()
    for thread in (importing, installing):
        thread.join(60)
        assert not thread.is_alive(), "hung"
    assert safecompile._installing.installer.state()["miss"] == "on"
    """
    )

"""Hooks of modules, tensors, autograd and Dynamo."""

from __future__ import annotations

import torch

from tests.fidelity.table import program

from ._common import Counting, attempt, ones, plus, told

HOOKS = {
    "forward": lambda m, say: m.register_forward_hook(lambda m, a, r: say("after")),
    "changes": lambda m, say: m.register_forward_hook(lambda m, a, r: r + 1),
    "pre": lambda m, say: m.register_forward_pre_hook(lambda m, a: say("before")),
    "keywords": lambda m, say: m.register_forward_pre_hook(lambda m, a, k: say("before"), with_kwargs=True),
    "backward": lambda m, say: m.register_full_backward_hook(lambda m, i, o: say("backward")),
    "pre backward": lambda m, say: m.register_full_backward_pre_hook(lambda m, o: say("backward")),
    "always": lambda m, say: m.register_forward_hook(lambda m, a, r: say("after"), always_call=True),
    "parameter": lambda m, say: m.weight.register_hook(lambda g: say("gradient")),
    "accumulated": lambda m, say: m.weight.register_post_accumulate_grad_hook(lambda p: say("accumulated")),
    "all modules": lambda m, say: torch.nn.modules.module.register_module_forward_hook(lambda m, a, r: say("all")),
    "state": lambda m, say: m.register_state_dict_post_hook(lambda *_: say("state")),
}


@program(HOOKS)
def of_a_module(register):
    """Two steps with the hook, one after it is removed."""
    said, backend = [], Counting()
    module = torch.nn.Linear(2, 2)
    torch.nn.init.ones_(module.weight)
    compiled = torch.compile(module, backend=backend)
    handle = register(module, said.append)
    for _ in range(2):
        compiled(torch.ones(1, 2, requires_grad=True)).sum().backward()
        compiled.state_dict()
    handle.remove()
    compiled(ones(1, 2)).sum().backward()
    return said, backend.calls, told(module.weight.grad)


@program({name: HOOKS[name] for name in ("forward", "pre", "backward")})
def with_a_break(register):
    """The same, with a graph break in the module."""

    class Broken(torch.nn.Linear):
        def forward(self, x):
            y = super().forward(x)
            torch._dynamo.graph_break()
            return y + 1

    said, backend = [], Counting()
    module = Broken(2, 2)
    handle = register(module, said.append)
    compiled = torch.compile(torch.nn.Sequential(module), backend=backend)
    for _ in range(2):
        attempt(lambda: compiled(torch.ones(1, 2, requires_grad=True)).sum().backward())
    handle.remove()
    return said, backend.calls


@program()
def a_hook_that_raises():
    """Its error comes out as it is, and the next call is right."""
    module = torch.nn.Linear(2, 2)
    compiled = torch.compile(module, backend="eager")

    def fails(m, a, r):
        raise KeyError("of a hook")

    handle = module.register_forward_hook(fails)
    raised = attempt(compiled, ones(2, 2))
    handle.remove()
    return raised, list(compiled(ones(2, 2)).shape)


@program()
def a_hook_that_compiles():
    """A hook calls another compiled function, cold."""
    backend = Counting()
    module = torch.nn.Linear(2, 2)
    module.register_forward_hook(lambda m, a, r: torch.compile(plus, backend=backend)(r))
    compiled = torch.compile(module, backend=backend)
    return [list(compiled(ones(2, 2)).shape) for _ in range(2)], backend.calls


@program({"eager": "eager", "aot_eager": "aot_eager"})
def of_tensors(backend):
    """Tensor hooks in compiled code and on its result."""
    said = []

    @torch.compile(backend=backend)
    def f(x):
        y = x * 2
        y.register_hook(lambda g: g * 3)
        return y * 2

    x = torch.ones(2, requires_grad=True)
    y = f(x)
    y.register_hook(lambda g: said.append(told(g)))
    y.sum().backward()
    return said, told(x.grad)


@program()
def saved_tensors():
    """saved_tensors_hooks around a compiled forward."""
    said = []
    x = torch.ones(2, requires_grad=True)
    compiled = torch.compile(lambda x: (x * x).sin(), backend="aot_eager")
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (said.append("pack"), t)[1], lambda t: t):
        y = compiled(x)
    y.sum().backward()
    return said, told(x.grad)


@program(quick=True)
def of_compiles():
    """on_compile_start and on_compile_end are called as often as in plain torch."""
    said = []
    start = torch._dynamo.callback.on_compile_start(lambda *a: said.append("start"))
    end = torch._dynamo.callback.on_compile_end(lambda *a: said.append("end"))
    compiled = torch.compile(plus, backend="eager")
    for shape in ((2,), (2,), (2, 2)):
        compiled(ones(*shape))
    handler = torch._dynamo.callback.callback_handler
    handler.remove_start_callback(start)
    handler.remove_end_callback(end)
    compiled(ones(2, 2, 2))
    return said


@program()
def of_compiles_that_raise():
    """A callback that raises at the start of a compile."""

    def fails(*a):
        raise KeyError("of a callback")

    torch._dynamo.callback.on_compile_start(fails)
    compiled = torch.compile(plus, backend="eager")
    raised = attempt(compiled, ones())
    torch._dynamo.callback.callback_handler.remove_start_callback(fails)
    return raised, attempt(compiled, ones())


@program()
def of_bytecode():
    """Bytecode hooks see each code once."""
    said = []
    handle = torch._dynamo.convert_frame.register_bytecode_hook(lambda old, new: said.append(old.co_name))
    compiled = torch.compile(plus, backend="eager")
    compiled(ones())
    compiled(ones())
    handle.remove()
    return said


@program()
def of_guards():
    """guard_fail_fn and guard_export_fn are called as in plain torch."""
    said = []
    compiled = torch._dynamo.optimize("eager", guard_fail_fn=lambda f: said.append(type(f).__name__), dynamic=False)(
        plus
    )
    for i in (1, 2, 3):
        compiled(ones(i))
    return said

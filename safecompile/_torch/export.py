"""The private names of ``torch.export`` and of what it runs in. As :mod:`.dynamo`, it only names and tells."""

from __future__ import annotations

import sys
from types import FunctionType, ModuleType
from typing import Any

TRACE = "torch.export._trace"
SERIALIZE = "torch._export.serde.serialize"
NON_STRICT = "torch._export.non_strict_utils"
FAKE_IMPL = "torch._library.fake_impl"
AOT_UTILS = "torch._functorch._aot_autograd.utils"
EXPORTED_PROGRAM = "torch.export.exported_program"
MISC = "torch._dynamo.variables.misc"

#: What an export knows of the module that it traces, and how it does so: for the process (2.7-2.15). Of two exports
#: that overlap, the first to end takes it from the second ("_EXPORT_MODULE_HIERARCHY must not be None").
OF_AN_EXPORT = ("_EXPORT_FLAGS", "_EXPORT_MODULE_HIERARCHY")

#: The deserializer that ``torch.export.load`` runs: a second one raises ("_CURRENT_DESERIALIZER is already set").
DESERIALIZER = "_CURRENT_DESERIALIZER"

#: What ``torch.library.get_ctx()`` calls, set around each fake implementation of a custom operator.
CONTEXT_GETTER = "global_ctx_getter"


def initial_values() -> dict[str, Any]:
    """Returns what each of the variables above is where nobody exports or loads."""
    return dict.fromkeys((*OF_AN_EXPORT, DESERIALIZER))


def context_getter(module: ModuleType) -> Any:
    """Returns what :data:`CONTEXT_GETTER` is outside of every fake implementation."""
    return module.get_none


def backends_off(module: ModuleType) -> FunctionType:
    """Returns the body of what switches backends off around an export."""
    function: FunctionType = module._ignore_backend_decomps.__wrapped__
    return function


#: What a strict export calls to have Dynamo trace; before torch 2.9 it comes through a call that Dynamo intercepts.
CAPTURE = "dynamo_graph_capture"


def strict_export(module: ModuleType) -> FunctionType:
    """Returns what has Dynamo trace for a strict export."""
    function: FunctionType = module._export_to_torch_ir
    return function


def decomposing(module: ModuleType) -> list[FunctionType]:
    """Returns ``run_decompositions``, and the body of what changes operators while it and others trace."""
    found = [module.ExportedProgram.run_decompositions, module._override_composite_implicit_decomp]
    return [getattr(one, "__wrapped__", one) for one in found]


#: The end of the name of what registers a hook for the buffers that any module registers.
REGISTERING_A_HOOK = ".register_module_buffer_registration_hook"


def watching_buffers(aot_utils: ModuleType) -> FunctionType:
    """Returns what registers such a hook for as long as an export traces."""
    function: FunctionType = aot_utils.register_buffer_assignment_hook
    return function


def registering_of_buffers() -> tuple[type, str, str]:
    """Returns ``nn.Module``, its method that registers a buffer, and the variable with the hooks that it calls.

    Raises:
        LookupError: it does not use that variable.
    """
    module: Any = sys.modules["torch.nn.modules.module"]
    name, hooks = "register_buffer", "_global_buffer_registration_hooks"
    if hooks not in vars(module.Module)[name].__code__.co_names:
        msg = f"a use of {hooks} in Module.{name}"
        raise LookupError(msg)
    return module.Module, name, hooks


#: What an export replaces for as long as it traces, by module (2.9+).
OVERRIDDEN = {"builtins": ("max", "min"), "math": ("pow",)}

#: Dynamo's modules that compare with functions of ``builtins`` by identity (2.9-2.15).
COMPARING = ("torch._dynamo.variables.builtin", "torch._dynamo.variables.lazy")


def override_of_builtins(module: ModuleType) -> FunctionType | None:
    """Returns the body of what replaces these functions (2.9+)."""
    manager = vars(module).get("_override_builtin_ops")
    return None if manager is None else manager.__wrapped__


def lookup_of_builtins(symbolic_convert: ModuleType) -> FunctionType:
    """Returns the method by which Dynamo looks up a name in ``builtins``."""
    method = symbolic_convert.InstructionTranslatorBase.load_builtin_from_argval
    function: FunctionType = getattr(method, "__wrapped__", method)  # it is cached since torch 2.10
    return function


def lookup_in_modules(misc: ModuleType) -> FunctionType:
    """Returns the method by which Dynamo looks up an attribute of a module."""
    methods = vars(misc.PythonModuleVariable)
    function: FunctionType = methods.get("tp_getattro_impl") or methods["var_getattr"]  # 2.14+, before
    return function


def source_of_builtin(tx: Any, name: str) -> Any:
    """Returns where guards find a function of ``builtins``: as an attribute of the module, not in its dictionary."""
    source: Any = sys.modules["torch._dynamo.source"]
    return source.AttrSource(tx.import_source("builtins"), name)


def know_builtins() -> None:
    """Has Dynamo make its table of builtins, if it has not yet: it goes by what stands in ``builtins`` then."""
    rules: Any = sys.modules.get("torch._dynamo.trace_rules")
    if rules is not None:
        rules.is_builtin_callable(None)

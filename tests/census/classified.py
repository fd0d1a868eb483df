"""What differs in the middle of a scene, by its exact name: why that is all right, or what is known of it.

Each place has a reader: a function of torch's whose code names it, with its file. What is isolated by leaving its module is
not found, and so not here. See README.md beside this file.
"""

from __future__ import annotations

from collections.abc import Iterator

#: A class of places: why, or where to read on -> place -> reader.
Table = dict[str, dict[str, str]]

#: The name changes for every thread and acts for its own alone: the file of the library's that sees to it.
ISOLATED: Table = {
    "_isolation/switches.py": {
        "torch._dynamo.callback.callback_handler._CompilationCallbackHandler__pending_callbacks_counter": (
            "torch/_dynamo/__init__.py: reset"
        ),
        "torch._dynamo.utils._error_on_graph_break": "torch/_dynamo/utils.py: _get_error_on_graph_break",
        "torch._dynamo.trace_rules._force_inline_flag": "torch/_dynamo/trace_rules.py: check_verbose",
        "torch._dynamo.utils.__safecompile_error_on_graph_break_anywhere__": (
            "torch/_dynamo/utils.py: _get_error_on_graph_break"
        ),
        "torch.compiler._is_compiling_flag": "torch/compiler/__init__.py: is_compiling",
        "torch.compiler._is_exporting_flag": "torch/compiler/__init__.py: is_exporting",
        "torch.utils._python_dispatch._is_in_any_mode_without_ignore_compile_internals": (
            "torch/utils/_python_dispatch.py: TorchDispatchMode.__enter__"
        ),
        "torch.utils._python_dispatch._is_in_non_infra_torch_dispatch_mode": (
            "torch/utils/_python_dispatch.py: TorchDispatchMode.__enter__"
        ),
        "torch.utils._python_dispatch._is_in_torch_dispatch_mode": (
            "torch/utils/_python_dispatch.py: TorchDispatchMode.__enter__"
        ),
    },
    "_isolation/stances.py": {
        "torch._dynamo.eval_frame._stance": "torch/_dynamo/eval_frame.py: _callback_from_stance",
    },
    "_isolation/fx.py": {
        "torch.fx._symbolic_trace.__safecompile_is_fx_tracing_flag_anywhere__": (
            "torch/fx/_symbolic_trace.py: Tracer.trace"
        ),
        "torch.nn.modules.module.Module.__getattr__.__code__": "torch/nn/modules/module.py: Module.__getattr__",
        "torch.nn.modules.module.Module._wrapped_call_impl.__code__": (
            "torch/nn/modules/module.py: Module._wrapped_call_impl"
        ),
        "torch.nn.modules.module.__safecompile_call_stacks__[]": (
            "torch/nn/modules/module.py: Module._wrapped_call_impl"
        ),
        "torch.nn.modules.module.__safecompile_getattr_stacks__[]": (
            "torch/nn/modules/module.py: Module._wrapped_call_impl"
        ),
    },
    "_isolation/scoped_settings.py": {
        "torch.utils._config_module._ConfigEntry().user_override": (
            "torch/utils/_config_module.py: ConfigModule.__getattr__"
        ),
        "torch.utils._config_module._ConfigEntry.user_override": (
            "torch/utils/_config_module.py: ConfigModule.__getattr__"
        ),
    },
    "_isolation/exports.py": {
        "torch.nn.modules.module.Module.register_buffer.__code__": "torch/nn/modules/module.py: Module.__setattr__",
        "torch.nn.modules.module.__safecompile_register_buffer_stacks__[]": (
            "torch/nn/modules/module.py: Module.register_buffer"
        ),
    },
    "_isolation/overridden_functions.py": {
        "builtins.max": "torch/__init__.py: sym_max",
        "builtins.min": "torch/__init__.py: sym_min",
    },
    "_isolation/default_device.py": {
        "torch.utils._device.CURRENT_DEVICE": "torch/utils/_device.py: DeviceContext.__enter__",
    },
    "_isolation/anomaly.py": {
        "torch.autograd.variable.Variable._execution_engine": "torch/autograd/graph.py: _engine_run_backward",
    },
}

#: What a scene itself asks of torch for the whole process, while other scenes must not: left out of what it finds.
ASKED: dict[str, tuple[str, ...]] = {
    "anomaly_mode": ("torch.is_anomaly_enabled()", "torch.is_anomaly_check_nan_enabled()"),
    "compile_in_blocks": ("torch.is_anomaly_enabled()",),
}

#: Nobody is led astray by it: why.
HARMLESS: Table = {
    "The thread in which the scene runs, and what it has itself asked Python for.": {
        "copyreg.dispatch_table[]": "Python: pickle",
        "linecache.cache[]": "Python: traceback",
        "sys.modules[]": "Python: import",
        "threading._active[]": "Python: threading.enumerate, shutdown",
        "threading._dangling.data[]": "Python: threading.enumerate, shutdown",
        "weakref.finalize._registry[]": "Python: weakref.finalize._exitfunc",
    },
    "Guarded by a lock and a count of its own; for a while the collector runs less often.": {
        "gc.get_threshold()": "Python: the collector",
        "torch._dynamo.utils._gc_threshold_depth": "torch/_dynamo/utils.py: deferred_full_gc",
        "torch._dynamo.utils._gc_threshold_saved": "torch/_dynamo/utils.py: deferred_full_gc",
    },
    "What logs and dumps for debugging show.": {
        "torch.fx.experimental.proxy_tensor.ORIGINAL_ATEN": (
            "torch/fx/experimental/proxy_tensor.py: set_original_aten_op"
        ),
        "torch.fx.experimental.proxy_tensor._FAKE_TENSOR_ID_TO_PROXY_MAP_FOR_EXPORT[]": (
            "torch/fx/experimental/proxy_tensor.py: _ModuleStackTracer.trace"
        ),
        "logging.Logger().handlers[]": "Python: logging.Logger.isEnabledFor, callHandlers",
        "logging.Logger().isEnabledFor": "Python: logging.Logger.isEnabledFor, callHandlers",
        "logging.Logger().level": "Python: logging.Logger.isEnabledFor, callHandlers",
        "logging.Logger().propagate": "Python: logging.Logger.isEnabledFor, callHandlers",
        "logging._at_fork_reinit_lock_weakset.data[]": "Python: logging.shutdown",
        "logging._handlerList[]": "Python: logging.shutdown",
        "torch._dynamo.convert_frame.input_codes.seen[]": "torch/_dynamo/__init__.py: reset_code_caches",
        "torch._dynamo.convert_frame.input_codes.seen_ids[]": "torch/_dynamo/__init__.py: reset",
        "torch._dynamo.convert_frame.output_codes.seen[]": "torch/_dynamo/__init__.py: reset_code_caches",
        "torch._dynamo.convert_frame.output_codes.seen_ids[]": "torch/_dynamo/__init__.py: reset",
        "torch._dynamo.eval_frame.DynamoTLS.traced_frame_infos[]": "torch/_dynamo/eval_frame.py: _log_traced_frames",
        "torch._dynamo.eval_frame._in_optimized_module": "torch/_dynamo/eval_frame.py: _is_in_optimized_module",
        "torch._dynamo.symbolic_convert.explain": (
            "torch/_dynamo/symbolic_convert.py: InstructionTranslatorBase.log_graph_break"
        ),
        "torch._dynamo.utils._RUNTIME_METRICS_CONTEXT._metrics[]": (
            "torch/_dynamo/utils.py: get_runtime_metrics_context"
        ),
        "torch._dynamo.utils._RUNTIME_METRICS_CONTEXT._metrics": "torch/_dynamo/utils.py: get_runtime_metrics_context",
        "torch._dynamo.utils._RUNTIME_METRICS_CONTEXT._start_time_ns": (
            "torch/_dynamo/utils.py: get_runtime_metrics_context"
        ),
        "torch._dynamo.utils._compilation_metrics[]": "torch/_dynamo/utils.py: clear_compilation_metrics",
        "torch._dynamo.utils.compilation_time_metrics[]": "torch/_dynamo/utils.py: compile_times",
        "torch._dynamo.utils.compilation_time_metrics[][]": "torch/_dynamo/utils.py: compile_times",
        "torch._dynamo.utils.cumulative_time_spent_ns[]": "torch/_dynamo/utils.py: calculate_time_spent",
        "torch._dynamo.utils.graph_break_dup_warning_checker.set": (
            "torch/_dynamo/utils.py: ChromiumEventLogger.add_to_set"
        ),
        "torch._functorch._aot_autograd.logging_utils.callback_set": (
            "torch/_functorch/_aot_autograd/logging_utils.py: setup_stacktrace_preservation_hooks"
        ),
        "torch._functorch._aot_autograd.logging_utils.graph_being_compiled": (
            "torch/_functorch/_aot_autograd/logging_utils.py: get_aot_compilation_context"
        ),
        "torch._functorch._aot_autograd.logging_utils.nth_graph": (
            "torch/_functorch/_aot_autograd/logging_utils.py: get_aot_compilation_context"
        ),
        "torch._inductor.codecache.PyCodeCache.linemaps[]": (
            "torch/_inductor/codecache.py: PyCodeCache.load_by_key_path"
        ),
        "torch._inductor.debug._inductor_kernel_stack_trace": (
            "torch/_inductor/debug.py: create_kernel_information_json"
        ),
        "torch._inductor.debug._inductor_kernel_extern_info": (
            "torch/_inductor/debug.py: create_kernel_information_json"
        ),
        "torch._inductor.debug._inductor_post_to_pre_grad_nodes": (
            "torch/_inductor/debug.py: create_kernel_information_json"
        ),
        "torch._inductor.debug._inductor_pre_grad_node_stack_trace": (
            "torch/_inductor/debug.py: reset_provenance_globals"
        ),
        "torch._inductor.debug._inductor_triton_kernel_to_post_grad_node_info": (
            "torch/_inductor/debug.py: create_kernel_information_json"
        ),
        "torch._logging._internal.LOG_TRACE_HANDLER.formatter": "torch/_logging/_internal.py: _init_logs",
        "torch._logging._internal._StderrHandler()._closed": "torch/_logging/_internal.py: _init_logs",
        "torch._logging._internal.handlers.data[]": "torch/_logging/_internal.py: _clear_handlers",
        "torch._logging.structured.DUMPED_FILES[]": "torch/_logging/structured.py: dump_file",
        "torch._logging.structured.INTERN_TABLE[]": "torch/_logging/structured.py: intern_string",
        "torch._logging._internal.log_state.log_qname_to_level[]": "torch/_logging/_internal.py: LogState.clear",
        "torch._logging._internal.structured_logging_overhead[]": (
            "torch/_logging/_internal.py: add_structured_logging_overhead"
        ),
        "torch.fx.experimental.recording.NEST": "torch/fx/experimental/recording.py: record_shapeenv_event",
        "torch.fx.graph.CodeGen._sym_repr": "torch/fx/graph.py: CodeGen._gen_python_code",
        "torch.jit._script._TOPLEVEL": "torch/jit/_script.py: script",
    },
    "What the scene asks of torch for the whole process; torch documents it so.": {
        "torch.Storage": "torch/multiprocessing/reductions.py: StorageWeakRef.__init__",
        "torch._C._get_cublas_allow_tf32()": "torch/_dynamo/graph_region_tracker.py: get_global_state_key",
        "torch._C._get_cudnn_sdp_enabled()": "torch/nn/attention/__init__.py: _cur_sdpa_kernel_backends",
        "torch._C._get_deterministic_algorithms()": "torch/__init__.py: are_deterministic_algorithms_enabled",
        "torch._C._get_flash_sdp_enabled()": "torch/nn/attention/__init__.py: _cur_sdpa_kernel_backends",
        "torch._C._get_float32_matmul_precision()": "torch/__init__.py: get_float32_matmul_precision",
        "torch._C._get_mem_efficient_sdp_enabled()": "torch/nn/attention/__init__.py: _cur_sdpa_kernel_backends",
        "torch._C._get_overrideable_sdp_enabled()": "torch/nn/attention/__init__.py: _cur_sdpa_kernel_backends",
        "torch._C.get_default_dtype()": "torch/_dynamo/convert_frame.py: preserve_global_state",
        "torch.are_deterministic_algorithms_enabled()": "torch/_dynamo/convert_frame.py: preserve_global_state",
        "torch.autograd.profiler.KinetoStepTracker._step_dict[]": (
            "torch/autograd/profiler.py: KinetoStepTracker.erase_step_count"
        ),
        "torch.autograd.profiler._is_profiler_enabled": "torch/autograd/profiler.py: _set_is_profiler_enabled",
        "torch.get_deterministic_debug_mode()": "torch/overrides.py: get_ignored_functions",
        "torch.get_rng_state()": "torch/_dynamo/convert_frame.py: preserve_global_state",
        "torch.ones(1).dtype": "torch/_decomp/decompositions.py: _make_base_grid_4d",
    },
    "Made once, at its first use, or made anew and equal.": {
        "torch._decomp.decompositions_for_rng.PhiloxStateTracker.bwd_state": (
            "torch/_decomp/decompositions_for_rng.py: PhiloxStateTracker.__enter__"
        ),
        "torch._decomp.decompositions_for_rng.PhiloxStateTracker.fwd_state": (
            "torch/_decomp/decompositions_for_rng.py: PhiloxStateTracker.__enter__"
        ),
        "torch._decomp.decompositions_for_rng.PhiloxStateTracker.running_state": (
            "torch/_decomp/decompositions_for_rng.py: PhiloxStateTracker.__enter__"
        ),
        "torch._dynamo.variables.functions.FunctionSpec().kwdefaults": (
            "torch/_dynamo/variables/functions.py: FunctionSpec.update_defaults"
        ),
        "torch._dynamo.variables.functions.FunctionSpec().pos_default_map": (
            "torch/_dynamo/variables/functions.py: FunctionSpec.update_defaults"
        ),
        "torch._inductor.async_compile.CompiledTritonKernels._cache": (
            "torch/_inductor/async_compile.py: CompiledTritonKernels.cache_clear"
        ),
        "torch.fx.graph_module._forward_from_src": "torch/fx/graph_module.py: GraphModule.recompile",
    },
    "A stream of the CPU, which does nothing.": {
        "torch.cpu._current_stream": "torch/cpu/__init__.py: StreamContext.__enter__",
    },
    "Objects of the scene's own, in a table that is keyed by them.": {
        "torch._dynamo.code_context.code_context.code_context.refs[]": (
            "torch/_dynamo/code_context.py: CodeContextDict.get_context"
        ),
        "torch._dynamo.code_context.code_context.code_context.values[]": (
            "torch/_dynamo/code_context.py: CodeContextDict.get_context"
        ),
        "torch._dynamo.eval_frame.always_optimize_code_objects.refs[]": (
            "torch/_dynamo/convert_frame.py: ConvertFrameAssert.__call__"
        ),
        "torch._dynamo.eval_frame.always_optimize_code_objects.values[]": (
            "torch/_dynamo/convert_frame.py: ConvertFrameAssert.__call__"
        ),
        "torch._dynamo.eval_frame.cached_backends[]": "torch/_dynamo/eval_frame.py: _TorchDynamoContext.__init__",
        "torch._dynamo.mutation_guard.GenerationTracker.dynamic_classes": (
            "torch/_dynamo/mutation_guard.py: is_dynamic_nn_module"
        ),
        "torch._dynamo.mutation_guard.GenerationTracker.generation_values": (
            "torch/_dynamo/mutation_guard.py: is_dynamic_nn_module"
        ),
        "torch._dynamo.mutation_guard.GenerationTracker.generation_values.refs[]": (
            "torch/_dynamo/mutation_guard.py: is_dynamic_nn_module"
        ),
        "torch._dynamo.mutation_guard.GenerationTracker.generation_values.values[]": (
            "torch/_dynamo/mutation_guard.py: is_dynamic_nn_module"
        ),
        "torch._dynamo.pgo._CODE_STATE[]": "torch/_dynamo/pgo.py: get_code_state",
        "torch._dynamo.resume_execution.ContinueExecutionCache.generated_code_metadata.refs[]": (
            "torch/_dynamo/resume_execution.py: ContinueExecutionCache.lookup"
        ),
        "torch._dynamo.resume_execution.ContinueExecutionCache.generated_code_metadata.values[]": (
            "torch/_dynamo/resume_execution.py: ContinueExecutionCache.lookup"
        ),
        "torch._dynamo.utils.CleanupManager.instance.refs[]": "torch/_dynamo/utils.py: CleanupManager._remove_id",
        "torch._dynamo.utils.CleanupManager.instance.values[]": "torch/_dynamo/utils.py: CleanupManager._remove_id",
        "torch._dynamo.utils._cleanup_owners[]": "torch/_dynamo/utils.py: CleanupHook.__call__",
        "torch._dynamo.utils.graph_break_reasons[]": "torch/_dynamo/__init__.py: reset",
        "torch._dynamo.utils.guard_failures[]": "torch/_dynamo/utils.py: CompileProfiler.report",
        "torch._dynamo.utils.orig_code_map.refs[]": "torch/_dynamo/eval_frame.py: _debug_get_cache_entry_list",
        "torch._dynamo.utils.orig_code_map.values[]": "torch/_dynamo/eval_frame.py: _debug_get_cache_entry_list",
        "torch._inductor.codecache.PyCodeCache.modules[]": "torch/_inductor/codecache.py: PyCodeCache.cache_clear",
        "torch.distributed._composable_state._module_state_mapping.data[]": (
            "torch/distributed/_composable_state.py: _get_module_state"
        ),
        "torch.fx.graph_module._loader.eval_cache[]": "torch/fx/graph_module.py: _EvalCacheLoader.__init__",
    },
    "A count for statistics, logs and names: no result depends on it.": {
        "torch._dynamo.compiled_autograd.COMPILE_COUNTER": (
            "torch/_dynamo/compiled_autograd.py: AutogradCompilerInstance.begin_capture"
        ),
        "torch._dynamo.convert_frame.FRAME_COMPILE_COUNTER[]": "torch/_dynamo/__init__.py: reset",
        "torch._dynamo.convert_frame.FRAME_COUNTER": "torch/_dynamo/__init__.py: reset",
        "torch._dynamo.mutation_guard.GenerationTracker.generation": (
            "torch/_dynamo/mutation_guard.py: is_dynamic_nn_module"
        ),
        "torch._dynamo.utils.CleanupManager.count": "torch/_dynamo/utils.py: CleanupHook.__call__",
        "torch._dynamo.utils.counters[]": "torch/_dynamo/utils.py: CompileProfiler, statistics",
        "torch._dynamo.utils.counters[][]": "torch/_dynamo/utils.py: CompileProfiler, statistics",
        "torch._dynamo.utils.curr_frame": "torch/_dynamo/utils.py: increment_frame",
        "torch._dynamo.utils.op_count": "torch/_dynamo/utils.py: increment_op_count",
        "torch._inductor.compile_fx._FxCompileStat().codegen_and_compile": (
            "torch/_inductor/compile_fx.py: FxCompile._compile_stats"
        ),
        "torch._inductor.metrics.cpp_outer_loop_fused_inner_counts[]": "torch/_inductor/metrics.py: reset",
        "torch._inductor.metrics.generated_cpp_vec_kernel_count": "torch/_inductor/metrics.py: reset",
        "torch._inductor.metrics.generated_kernel_count": "torch/_inductor/metrics.py: reset",
        "torch._inductor.metrics.ir_nodes_pre_fusion": "torch/_inductor/metrics.py: reset",
        "torch._inductor.metrics.node_runtimes[]": "torch/_inductor/metrics.py: reset",
        "torch._inductor.metrics.nodes_num_elem[]": "torch/_inductor/metrics.py: reset",
        "torch._inductor.metrics.num_bytes_accessed": "torch/_inductor/metrics.py: reset",
        "torch._subclasses.fake_tensor.FakeTensorMode.cache_bypasses[]": (
            "torch/_subclasses/fake_tensor.py: FakeTensorMode._cached_dispatch_impl"
        ),
        "torch._subclasses.fake_tensor.FakeTensorMode.cache_hits": (
            "torch/_subclasses/fake_tensor.py: FakeTensorMode._cached_dispatch_impl"
        ),
        "torch._subclasses.fake_tensor.FakeTensorMode.cache_misses": (
            "torch/_subclasses/fake_tensor.py: FakeTensorMode._cached_dispatch_impl"
        ),
        "torch._subclasses.meta_utils.DESCRIBER_NEXT_ID": (
            "torch/_subclasses/meta_utils.py: MetaTensorDescriber.__init__"
        ),
        "torch.fx._symbolic_trace._wrapped_fns_to_patch[][]": "torch/fx/_symbolic_trace.py: wrap",
        "torch.fx.experimental.symbolic_shapes.lru_cache.<locals>.inner.<locals>.new_cache_clear.<prev_hits>": (
            "torch/fx/experimental/symbolic_shapes.py: lru_cache"
        ),
        "torch.fx.experimental.symbolic_shapes.lru_cache.<locals>.inner.<locals>.new_cache_clear.<prev_misses>": (
            "torch/fx/experimental/symbolic_shapes.py: lru_cache"
        ),
        "torch.fx.graph_module._loader.next_id": "torch/fx/graph_module.py: _EvalCacheLoader.__init__",
        "torch.utils._stats.simple_call_counter[]": "torch/utils/_stats.py: count",
        "torch.utils.hooks.RemovableHandle.next_id": "torch/utils/hooks.py: RemovableHandle.__init__",
    },
    "Used by whoever has torch's compile lock alone.": {
        "torch._dynamo.convert_frame.initial_global_state": (
            "torch/_dynamo/convert_frame.py: ConvertFrameAssert.__call__"
        ),
        "torch._dynamo.guards._CLOSURE_VARS[]": "torch/_dynamo/guards.py: _get_closure_vars",
        "torch._C._dynamo.autograd_compiler.is_cache_empty()": (
            "torch/_dynamo/compiled_autograd.py: the C++ that compiles a backward"
        ),
        "torch._dynamo.funcname_cache.cache[]": "torch/_dynamo/funcname_cache.py: _add_file",
        "torch._inductor.pattern_matcher._SpecificPatternCache().shape_env": (
            "torch/_inductor/pattern_matcher.py: _SpecificPatternCache.lookup"
        ),
        "torch._inductor.pattern_matcher._SpecificPatternCache().symbolic[]": (
            "torch/_inductor/pattern_matcher.py: _SpecificPatternCache.lookup"
        ),
        "torch._dynamo.variables.ctx_manager.DualLevelContextManager._guards_singleton.code_list": (
            "torch/_dynamo/variables/ctx_manager.py: DualLevelContextManager.create"
        ),
        "torch._dynamo.variables.ctx_manager.DualLevelContextManager._guards_singleton.guard_types": (
            "torch/_dynamo/variables/ctx_manager.py: DualLevelContextManager.create"
        ),
        "torch._dynamo.variables.ctx_manager.GradIncrementNestingCtxManagerVariable._guards_singleton.code_list": (
            "torch/_dynamo/variables/ctx_manager.py: DualLevelContextManager.enter"
        ),
        "torch._dynamo.variables.ctx_manager.GradIncrementNestingCtxManagerVariable._guards_singleton.guard_types": (
            "torch/_dynamo/variables/ctx_manager.py: DualLevelContextManager.enter"
        ),
        "torch._dynamo.variables.ctx_manager.JvpIncrementNestingCtxManagerVariable._guards_singleton.code_list": (
            "torch/_dynamo/variables/ctx_manager.py: DualLevelContextManager.enter"
        ),
        "torch._dynamo.variables.ctx_manager.JvpIncrementNestingCtxManagerVariable._guards_singleton.guard_types": (
            "torch/_dynamo/variables/ctx_manager.py: DualLevelContextManager.enter"
        ),
        "torch._dynamo.variables.ctx_manager.VmapIncrementNestingCtxManagerVariable._guards_singleton.code_list": (
            "torch/_dynamo/variables/ctx_manager.py: DualLevelContextManager.enter"
        ),
        "torch._dynamo.variables.ctx_manager.VmapIncrementNestingCtxManagerVariable._guards_singleton.guard_types": (
            "torch/_dynamo/variables/ctx_manager.py: DualLevelContextManager.enter"
        ),
        "torch._dynamo.variables.torch_function.torch_function_mode_stack_state_mgr.stack": (
            "torch/_dynamo/variables/torch_function.py: TorchFunctionModeStackStateManager.__enter__"
        ),
    },
    "Dynamo's own names, in the variables of the module whose code it compiles: each is new.": {
        "torch._dynamo.external_utils.__builtins_dict___N": (
            "torch/_dynamo/output_graph.py: OutputGraph.install_global_unsafe"
        ),
        "torch._dynamo.external_utils.__compiled_fn_N": (
            "torch/_dynamo/output_graph.py: OutputGraph.install_global_unsafe"
        ),
        "torch._dynamo.functional_export.___unnamed_scope_N_cN": (
            "torch/_dynamo/output_graph.py: OutputGraph.install_global_unsafe"
        ),
        "torch._dynamo.functional_export.__builtins_dict___N": (
            "torch/_dynamo/output_graph.py: OutputGraph.install_global_unsafe"
        ),
        "torch._dynamo.functional_export.__compiled_fn_N_N": (
            "torch/_dynamo/output_graph.py: OutputGraph.install_global_unsafe"
        ),
        "torch._dynamo.output_graph.OutputGraph.install_resume_function_global.<locals>._make_fn.<f_globals>[]": (
            "torch/_dynamo/comprehension_graph_break.py: _build_comprehension_fn"
        ),
        "torch._dynamo.utils.CleanupHook().scope[]": "torch/_dynamo/utils.py: CleanupHook.__call__",
        "torch.optim.adam._N_cN": "torch/_dynamo/output_graph.py: OutputGraph.install_global_unsafe",
        "torch.optim.adam.__builtins_dict___N": "torch/_dynamo/output_graph.py: OutputGraph.install_global_unsafe",
        "torch.optim.adam.__compiled_fn_N": "torch/_dynamo/output_graph.py: OutputGraph.install_global_unsafe",
        "torch.optim.adam.__compiled_fn_N_N": "torch/_dynamo/output_graph.py: OutputGraph.install_global_unsafe",
        "torch.optim.adam.__optimizer_N_N_cN": "torch/_dynamo/output_graph.py: OutputGraph.install_global_unsafe",
        "torch.optim.optimizer.__builtins_dict___N": "torch/_dynamo/output_graph.py: OutputGraph.install_global_unsafe",
        "torch.optim.optimizer.__resume_at_N_N": "torch/_dynamo/output_graph.py: OutputGraph.install_global_unsafe",
    },
    "Dynamo's lists of what it has compiled, made anew by a reset.": {
        "torch._dynamo.pgo._CODE_STATE": "torch/_dynamo/pgo.py: get_code_state",
        "torch._higher_order_ops.triton_kernel_wrap.kernel_side_table.constant_args": (
            "torch/_dynamo/aot_compile_types.py: BundledAOTAutogradSerializableCallable.deserialize_compile_artifacts"
        ),
        "torch._higher_order_ops.triton_kernel_wrap.kernel_side_table.id_to_kernel": (
            "torch/_dynamo/aot_compile_types.py: BundledAOTAutogradSerializableCallable.deserialize_compile_artifacts"
        ),
        "torch._higher_order_ops.triton_kernel_wrap.kernel_side_table.kernel_to_id": (
            "torch/_dynamo/aot_compile_types.py: BundledAOTAutogradSerializableCallable.deserialize_compile_artifacts"
        ),
        "torch._higher_order_ops.wrap.inductor_code_side_table.id_to_callable": (
            "torch/_higher_order_ops/wrap.py: InductorCodeSideTable.__getstate__"
        ),
    },
    "A cache: what is missing is made again, and an entry goes in or out by one assignment.": {
        "torch.fx.operator_schemas._type_eval_globals[][]": (
            "torch/fx/operator_schemas.py: _torchscript_type_to_python_type"
        ),
        "torch._dynamo.resume_execution.ContinueExecutionCache.cache.refs[]": (
            "torch/_dynamo/resume_execution.py: ContinueExecutionCache.lookup"
        ),
        "torch._dynamo.resume_execution.ContinueExecutionCache.cache.values[]": (
            "torch/_dynamo/resume_execution.py: ContinueExecutionCache.lookup"
        ),
        "torch._dynamo.variables.functions._spec_cache.data[]": "torch/_dynamo/variables/functions.py: _get_spec",
        "torch._ops.OpOverload()._dispatch_cache[]": "torch/_ops.py: HigherOrderOperator.dispatch",
        "torch._ops.TorchBindOpOverload()._dispatch_cache[]": "torch/_ops.py: OpOverload._get_dispatch",
        "torch._subclasses.fake_tensor.FakeTensorMode.cache[]": (
            "torch/_subclasses/fake_tensor.py: FakeTensorMode._cached_dispatch_impl"
        ),
        "torch.compiler._cache.CacheArtifactManager._cache_info": (
            "torch/compiler/_cache.py: CacheArtifactManager.clear"
        ),
        "torch.compiler._cache.CacheArtifactManager._new_cache_artifacts": (
            "torch/compiler/_cache.py: CacheArtifactManager.clear"
        ),
        "torch.compiler._cache.CacheArtifactManager._seen_artifacts": (
            "torch/compiler/_cache.py: CacheArtifactManager.clear"
        ),
        "torch.compiler._cache.CacheArtifactManager._serializer": (
            "torch/compiler/_cache.py: CacheArtifactManager.clear"
        ),
        "torch.fx.experimental.symbolic_shapes.ShapeEnv._find.<prior_version>": (
            "torch/fx/experimental/recording.py: ShapeEnv._constrain_is_bounded"
        ),
        "torch.fx.experimental.symbolic_shapes.ShapeEnv._maybe_evaluate_static.<prior_version>": (
            "torch/fx/experimental/recording.py: ShapeEnv._constrain_is_bounded"
        ),
        "torch.fx.experimental.symbolic_shapes.ShapeEnv.replace.<prior_version>": (
            "torch/__init__.py: _TorchCompileInductorWrapper.apply_options"
        ),
        "torch.fx.experimental.symbolic_shapes.ShapeEnv.simplify.<prior_version>": (
            "torch/fx/experimental/recording.py: ShapeEnv._constrain_is_bounded"
        ),
        "torch.nn.utils.parametrize._cache": "torch/nn/utils/parametrize.py: _inject_property",
        "torch.nn.utils.parametrize._cache[]": "torch/nn/utils/parametrize.py: _inject_property",
    },
    "A registration that the scene asks for, for the whole process.": {
        "torch._library.custom_ops.OPDEFS.data[]": "torch/_library/custom_ops.py: CustomOpDef.__init__",
        "torch._library.custom_ops.OPDEF_TO_LIB[]": "torch/_library/custom_ops.py: get_library_allowing_overwrite",
        "torch._library.simple_registry.singleton._data[]": (
            "torch/_library/simple_registry.py: GenericTorchDispatchRuleHolder.__init__"
        ),
        "torch.jit._builtins._builtin_table[]": "torch/jit/_builtins.py: _get_builtin_table",
        "torch.library._defs[]": "torch/library.py: Library.__init__",
        "torch.library._impls[]": "torch/library.py: Library.__init__",
        "torch.nn.modules.module._global_parameter_registration_hooks[]": (
            "torch/nn/modules/module.py: Module.register_parameter"
        ),
        "torch.ops.loaded_libraries[]": "torch/_classes.py: _Classes.loaded_libraries",
        "torch.utils.cpp_extension.JIT_EXTENSION_VERSIONER.entries[]": "torch/utils/cpp_extension.py: _jit_compile",
    },
}

#: A heading of docs/known-issues.md.
KNOWN_ISSUES: Table = {
    "A function that uses a wrapped name of a traced file may compile once more": {
        "torch._dynamo.utils.dict_keys_getitem": "torch/_dynamo/source.py: ConstDictKeySource.reconstruct",
        "torch.fx._symbolic_trace._assert_is_none": "torch/fx/_symbolic_trace.py: Tracer._proxy_placeholder",
    },
    "Inductor without `torch.compile`": {
        "torch._inductor.debug._pre_grad_graph_id": "torch/_inductor/debug.py: dump_inductor_provenance_info",
        "torch._inductor.ir.ConstantBuffer.override_device": "torch/_inductor/ir.py: BaseView.constant_to_device",
        "torch._inductor.ir.FlexibleLayout.allow_indexing": "torch/_inductor/ir.py: Layout.make_indexer",
        "torch._inductor.ir.IRNode._current_origins": "torch/_inductor/ir.py: IRNode.current_origins",
    },
    "Eager functions of torch that act on every thread": {
        "torch._weights_only_unpickler._marked_safe_globals_set": "torch/_weights_only_unpickler.py: _add_safe_globals",
        "torch.autograd.graph._allow_mutation_on_saved_tensors_enabled": (
            "torch/autograd/graph.py: _swap_with_cloned.__init__"
        ),
        "torch.nn.modules.module._global_forward_hooks[]": "torch/nn/modules/module.py: Module._call_impl",
        "torch.nn.modules.module._global_forward_pre_hooks[]": "torch/nn/modules/module.py: Module._call_impl",
        "torch.nn.utils.parametrize._cache_enabled": "torch/nn/utils/parametrize.py: _inject_property",
    },
    "Exporting beside other threads": {
        "torch._C._get_cudnn_enabled()": "aten/src/ATen/native/Convolution.cpp: use_cudnn",
        "torch._C._get_mkldnn_enabled()": "aten/src/ATen/native/Convolution.cpp: use_mkldnn",
        "torch._C._get_nnpack_enabled()": "aten/src/ATen/native/Convolution.cpp: use_nnpack",
        "torch._logging._internal.GET_DTRACE_STRUCTURED": "torch/_logging/_internal.py: _init_logs",
        "torch._logging._internal.trace_log.handlers[]": "torch/_logging/_internal.py: _clear_handlers",
        "torch._ops.OpOverload()._overloadpacket.center.py_kernels[]": "torch/_ops.py: OpOverload._get_dispatch",
        "torch._ops.OpOverload()._overloadpacket.vec.py_kernels[]": "torch/_ops.py: OpOverload._get_dispatch",
        "torch._ops.OpOverload().py_kernels[]": "torch/_ops.py: OpOverload._get_dispatch",
        "torch._ops.OpOverloadPacket().default.py_kernels[]": "torch/_ops.py: OpOverload._get_dispatch",
        "torch._ops.OpOverloadPacket().dim_DimnameList.py_kernels[]": "torch/_ops.py: OpOverload._get_dispatch",
        "torch._ops.OpOverloadPacket().dimname.py_kernels[]": "torch/_ops.py: OpOverload._get_dispatch",
        "torch._ops.TorchBindOpOverload().py_kernels[]": "torch/_ops.py: OpOverload._get_dispatch",
        "torch._subclasses.fake_impls.op_implementations_dict[]": (
            "torch/_subclasses/fake_impls.py: _deregister_op_impl"
        ),
    },
    "Anomaly mode beside compiles": {
        "torch._C.is_anomaly_check_nan_enabled()": "torch/csrc/autograd/engine.cpp: Engine::evaluate_function",
        "torch._C.is_anomaly_enabled()": "torch/csrc/autograd/engine.cpp: Engine::evaluate_function",
    },
    "Warnings and random states beside a compile": {
        "warnings.filters": "Python: warnings.warn",
        "warnings.showwarning": "Python: warnings.warn",
        "torch.cuda.set_rng_state": "torch/_dynamo/testing.py: reset_rng_state",
    },
}


_TABLES = (ISOLATED, HARMLESS, KNOWN_ISSUES)
_CLASSES = {place: reason for table in _TABLES for reason, places in table.items() for place in places}


def every_place() -> Iterator[str]:
    """Yields the places, one that stands in two classes twice."""
    for table in _TABLES:
        for places in table.values():
            yield from places


def class_of(place: str) -> str | None:
    """Returns why a place may differ, or None."""
    return _CLASSES.get(place)

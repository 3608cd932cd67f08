"""Compilation of a step and its certificate: trace, prove, rewrite, lower, compile, audit."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ir_passes.compile.compiled_step import CompiledStep
from ir_passes.compile.proving import Certify
from ir_passes.compile.stages import trace_step
from ir_passes.contract.contract import LaneContract
from ir_passes.jaxpr.tracing import FunctionSignature
from ir_passes.rewrites.graph import Pass
from ir_passes.rewrites.pipeline import DEFAULT_PASSES
from ir_passes.targets import Target


def compile_step(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    contract: LaneContract,
    *,
    kwargs: Mapping[str, Any] | None = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    passes: tuple[Pass, ...] = DEFAULT_PASSES,
    certify: Certify = "error",
    certificates: str | os.PathLike[str] | None = None,
    may_copy: Sequence[str] = (),
    temp_ratio: float = 1.5,
    axes: Sequence[str] = (),
    compiler_options: dict[str, Any] | None = None,
    target: Target | str | None = None,
) -> CompiledStep:
    """Compile a step with proved lane isolation and an audited memory layout.

    This is short for the stages `trace_step(...).prove(...).lower().compile(...)`.

    Args:
        fn: the step.
        args: example arguments, arrays or `jax.ShapeDtypeStruct`; nothing runs and nothing is donated.
        contract: the owner of each argument and result.
        kwargs: arguments that are passed by name.
        static_argnums: positions of arguments with values that are part of the program, as for `jax.jit`; they are
            among `args`, have no entry in the contract, and the compiled step is called without them.
        static_argnames: names of such arguments, among `args` or `kwargs`.
        passes: rewrites, each followed by a new proof.
        certify: "error" raises on a fault; "warn" warns of each fault and continues, without the rewrites if the proof
            fails; "off" neither proves, rewrites nor audits. If a backend of XLA does not expose its buffer assignment,
            a step is proved, not audited, and runs: `not_audited` of its certificate has the reason.
        certificates: a directory; a program with a stored certificate is not proved again. Files that another user
            could have written are not read (docs/trust.md). Proved steps are compiled without JAX's own cache.
        may_copy: paths of pools, * and ? as in fnmatch, that may be copied whole, as "*.conv": a shift of a row
            needs a second buffer. Copies are listed in the certificate.
        temp_ratio: scratch allowed, as a multiple of the bytes that are live at once.
        axes: the axes of the mesh (of the step's `shard_map`, or else of its arguments) along which XLA may add
            collectives, in a step that XLA partitions. Collectives of the program itself are always allowed.
        compiler_options: options for XLA.
        target: machine to compile for, as "nvidia-h100"; None for the devices of the arguments. Arguments without a
            mesh are placed on its first device. The step of an absent target has a certificate, a plan and its kernels,
            and cannot be called.

    Returns:
        The step; calling it consumes its pools that have successors, and nothing else.

    Raises:
        ContractError: the contract does not fit the function.
        IsolationError: the step is not proved; carries the user's source lines.
        AuditError: XLA's program violates the contract.
        HloError: this version of JAX or XLA does not expose the module, schedule or buffer assignment.
        PlacementError: arguments of a `shard_map` are not placed on its mesh.
        ValueError: `certify` is not one of the three.
        SettingError: `jax_disable_jit` is on; or `jax_debug_nans` or `jax_debug_infs`, unless `certify` is "off".
        TargetError: there is no such target, or its compiler is not installed.
    """
    parameters = FunctionSignature.of(fn, static_argnums, static_argnames)
    traced = trace_step(fn, args, contract, kwargs=kwargs, parameters=parameters, target=target)
    lowered = traced.prove(passes=passes, certify=certify, certificates=certificates).lower()
    call = "compile_step(..., {})"
    return lowered.compile(compiler_options, may_copy=may_copy, temp_ratio=temp_ratio, axes=axes, call=call)

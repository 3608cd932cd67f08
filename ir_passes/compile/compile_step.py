"""Compilation of a step with its certificate."""

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

    Args:
        args: examples, arrays or `jax.ShapeDtypeStruct`; nothing runs or is donated.
        contract: owner of each argument and result.
        static_argnums: positions in `args` of static values, as for `jax.jit`; absent from the contract and from calls.
        static_argnames: names of such arguments.
        passes: rewrites, each followed by a new proof.
        certify: "error" raises on a fault; "warn" warns and continues, without rewrites if the proof fails; "off"
            neither proves, rewrites nor audits. A step is not audited if XLA's backend hides its buffer assignment
            (`not_audited`).
        certificates: directory of certificates; a stored program is not proved again. Files that another user could
            have written are not read (docs/trust.md). Proved steps bypass JAX's cache.
        may_copy: paths (fnmatch) of pools that may be copied whole, as "*.conv".
        temp_ratio: allowed scratch over live bytes.
        axes: mesh axes along which XLA may add collectives.
        compiler_options: for XLA.
        target: machine to compile for, as "nvidia-h100"; None for the arguments' devices. A step of an absent
            target cannot be called.

    Returns:
        The step; calls consume pools with successors, and nothing else.

    Raises:
        ContractError: the contract does not fit the function.
        IsolationError: no proof; carries the user's source lines.
        AuditError: XLA's program violates the contract.
        HloError: this version of JAX or XLA does not expose the module, schedule or buffer assignment.
        PlacementError: `shard_map` arguments are not placed on its mesh.
        ValueError: unknown `certify`.
        SettingError: `jax_disable_jit` is on; or `jax_debug_nans` or `jax_debug_infs`, unless `certify` is "off".
        TargetError: unknown target, or its compiler is not installed.
    """
    parameters = FunctionSignature.of(fn, static_argnums, static_argnames)
    traced = trace_step(fn, args, contract, kwargs=kwargs, parameters=parameters, target=target)
    lowered = traced.prove(passes=passes, certify=certify, certificates=certificates).lower()
    call = "compile_step(..., {})"
    return lowered.compile(compiler_options, may_copy=may_copy, temp_ratio=temp_ratio, axes=axes, call=call)

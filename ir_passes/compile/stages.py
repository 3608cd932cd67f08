"""Stages of a compilation, as in `jax.stages`: trace, prove, lower, compile.

`trace_step` begins with a function, `prove` with a jaxpr.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

import jax

from ir_passes.compile.buffer_assignment import CompiledProgram, compile_with_assignment
from ir_passes.compile.calling import Calling
from ir_passes.compile.certificate_store import Key
from ir_passes.compile.certifying import audited, has_copies, make_certificate, require_audit, written_in_place
from ir_passes.compile.compiled_step import CompiledStep
from ir_passes.compile.proving import Certify, prove_graph, require_certify
from ir_passes.compile.stage import ProvedTrace, Stage
from ir_passes.compile.versions import UNKNOWN, current_versions, is_as_imported
from ir_passes.contract.contract import BoundContract, LaneContract
from ir_passes.contract.declared import declarations
from ir_passes.contract.guarded_writes import step_form
from ir_passes.contract.opaque_names import bodies
from ir_passes.contract.statements import Statement
from ir_passes.files.store import FileStore
from ir_passes.files.trust import UntrustedError
from ir_passes.files.user_warnings import warn_user
from ir_passes.jaxpr import ir
from ir_passes.jaxpr.collectives import Scheduled, schedule_of
from ir_passes.jaxpr.fingerprint import fingerprint
from ir_passes.jaxpr.jax_private import without_compilation_cache
from ir_passes.jaxpr.placement import check_donated, device_of, mesh_of
from ir_passes.jaxpr.refused import require_donation, require_programs, require_threads
from ir_passes.jaxpr.timing import Timings, new_seconds, timed
from ir_passes.jaxpr.tracing import FunctionSignature, Trace, trace_function, trace_of
from ir_passes.proof.lane_proof import Proof
from ir_passes.rewrites.graph import Graph, Pass
from ir_passes.rewrites.pipeline import DEFAULT_PASSES, PassReport
from ir_passes.targets import Target, as_target
from ir_passes.xla_audit.pool_copies import COMPILE_CALL


def trace_step(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    contract: LaneContract,
    *,
    kwargs: Mapping[str, Any] | None = None,
    parameters: FunctionSignature | None = None,
    target: Target | str | None = None,
) -> "TracedStep":
    """Trace a step and bind its contract; arguments and errors as for `compile_step`."""
    require_programs()
    seconds, machine = new_seconds(), None if target is None else as_target(target)
    if machine is not None:
        parameters = FunctionSignature.of(fn) if parameters is None else parameters
        args = tuple(arg if k in parameters.numbers else machine.place(arg) for k, arg in enumerate(args))
        kwargs = {name: arg if name in parameters.names else machine.place(arg) for name, arg in (kwargs or {}).items()}
    with nullcontext() if machine is None else machine.tracing():
        trace = timed(seconds, "trace", trace_function, fn, args, kwargs, parameters)
    absent_target = machine if machine is not None and not machine.is_local else None
    return TracedStep(trace, timed(seconds, "trace", contract.bind_trace, trace), seconds, absent_target)


def prove(
    program: "ir.ClosedJaxpr | jax.stages.Traced",
    contract: LaneContract,
    *,
    passes: tuple[Pass, ...] = DEFAULT_PASSES,
    certify: Certify = "error",
    certificates: str | os.PathLike[str] | None = None,
) -> "ProvedStep":
    """Prove a traced program; settings and errors as for `compile_step`.

    Args:
        program: `jax.make_jaxpr(fn)(*args)`, with flat tuples, or `jax.jit(fn).trace(*args)`, with trees.

    Raises:
        TypeError: neither form.
        ValueError: the program captures values of another trace.
    """
    trace = trace_of(program)
    traced = TracedStep(trace, contract.bind_trace(trace), new_seconds())
    return traced.prove(passes=passes, certify=certify, certificates=certificates)


class TracedStep(Stage):
    """A traced step with its bound contract."""

    def __init__(self, trace: Trace, bound: BoundContract, seconds: Timings, absent_target: Target | None = None):
        super().__init__(trace, bound)
        self.jaxpr, self._seconds, self._absent_target = trace.program, seconds, absent_target

    def prove(
        self,
        *,
        passes: tuple[Pass, ...] = DEFAULT_PASSES,
        certify: Certify = "error",
        certificates: str | os.PathLike[str] | None = None,
    ) -> "ProvedStep":
        """Prove that lanes cannot reach each other, rewrite the program, and prove it again.

        Settings and errors are as for `compile_step`.
        """
        require_certify(certify)
        seconds = dict(self._seconds)
        graph = Graph(timed(seconds, "trace", step_form, self.jaxpr, self.bound), self.bound)
        called = bodies(graph.program.jaxpr, {**self.bound.opaque, **self.bound.grids})
        prints = fingerprint(graph.program), fingerprint(self.bound)
        arguments = self._trace.args, self._trace.kwargs
        key = Key(*prints, fingerprint((passes, declarations(), called)), current_versions(device=device_of(arguments)))
        is_known = key.versions.compiler != UNKNOWN
        store = FileStore(Path(certificates)) if certificates is not None and is_known else None
        stored = None if store is None or certify == "off" else timed(seconds, "prove", key.find, store)
        proved = prove_graph(graph, passes, certify, stored, seconds)
        return ProvedStep(ProvedTrace(self._trace, proved, key, store, certify, self._absent_target), seconds)


class ProvedStep(Stage):
    """A proved and rewritten step.

    Attributes:
        jaxpr: rewritten program, to be compiled.
        proof: proof of `jaxpr`; None if it was stored or failed.
        passes: effects of rewrites.
        faults: reasons for a missing proof, with `certify="warn"`.
    """

    def __init__(self, step: ProvedTrace, seconds: Timings):
        super().__init__(step.trace, step.bound)
        self._step, self._seconds, self.proved = step, seconds, step.proved
        proved = step.proved
        self.jaxpr: ir.ClosedJaxpr = proved.graph.program
        self.proof: Proof | None = proved.proof
        self.passes: tuple[PassReport, ...] = proved.passes
        self.faults: tuple[Statement, ...] = proved.faults

    def lower(self) -> "LoweredStep":
        """Lower to StableHLO, with donated pools.

        Raises:
            PlacementError: certified `shard_map` pools are not on its mesh.
            SettingError: `jax_debug_nans` or `jax_debug_infs` is on for a certified step.
        """
        if self._step.certify != "off":
            require_donation()
        if self._step.certify == "error":
            trace = self._trace
            check_donated(trace.program, trace.args, trace.kwargs, trace.parameters.positional, self.bound.successors)
        seconds, calling = dict(self._seconds), Calling.of(self._trace, self.bound)
        lowered = timed(seconds, "lower", calling.lower, self.jaxpr, self._trace.args, self._trace.kwargs)
        return LoweredStep(self._step, calling, lowered, seconds)


class LoweredStep(Stage):
    """A step as StableHLO, with the attributes of `jax.stages.Lowered`."""

    def __init__(self, step: ProvedTrace, calling: Calling, lowered: jax.stages.Lowered, seconds: Timings):
        super().__init__(step.trace, step.bound)
        self._step, self._calling, self.lowered, self._seconds = step, calling, lowered, seconds

    def as_text(self, dialect: str | None = None, *, debug_info: bool = False) -> str:
        """Return the program as text, by default StableHLO."""
        return self.lowered.as_text(dialect, debug_info=debug_info)

    def compiler_ir(self, dialect: str | None = None) -> Any:
        """Return the program as a compiler object."""
        return self.lowered.compiler_ir(dialect)

    def cost_analysis(self) -> Any:
        """Cost before XLA's optimizations."""
        return self.lowered.cost_analysis()

    def compile(
        self,
        compiler_options: dict[str, Any] | None = None,
        *,
        may_copy: Sequence[str] = (),
        temp_ratio: float = 1.5,
        axes: Sequence[str] = (),
        call: str = COMPILE_CALL,
    ) -> CompiledStep:
        """Compile the step, audit XLA's program, and certify it; see `compile_step`.

        Args:
            call: the caller's call in remedies, with braces for an argument.
        """
        require_threads("compile")
        options = {"may_copy": may_copy, "temp_ratio": temp_ratio, "axes": axes, "call": call}
        lowered = LoweredStep(self._step, self._calling, self.lowered, dict(self._seconds))
        program = lowered._audited(compiler_options, options)
        ordered = written_in_place(self._step, lowered._seconds) if has_copies(program) else None
        if ordered is not None:
            in_place = ProvedStep(ordered, lowered._seconds).lower()
            rewritten = in_place._audited(compiler_options, options)
            if not rewritten.faults:
                lowered, program = in_place, rewritten
        require_audit(program, self._step.certify)
        return lowered._certified(program, compiler_options)

    @cached_property
    def _scheduled(self) -> tuple[Scheduled, ...]:
        return timed(self._seconds, "audit", schedule_of, self._step.proved.graph.program)

    def _audited(self, compiler_options: dict[str, Any] | None, options: Mapping[str, Any]) -> CompiledProgram:
        seconds, step, traced = self._seconds, self._step, self._step.proved.graph.program
        # A cached program does not show this step as its source, and JAX would load it for absent devices.
        is_certified = step.certify != "off"
        with without_compilation_cache() if is_certified or step.absent_target is not None else nullcontext():
            if not is_certified:
                compiled = timed(seconds, "compile", self.lowered.compile, compiler_options=compiler_options)
                program = CompiledProgram(compiled, not_audited="certify is 'off'")
            else:
                program = timed(seconds, "compile", compile_with_assignment, self.lowered, compiler_options)
        if program.not_audited is not None:
            return program
        mesh, bound = mesh_of(traced, (self._trace.args, self._trace.kwargs)), self._calling.compiled_bound(self.bound)
        arguments = {"mesh": mesh, "scheduled": self._scheduled, **options}
        return timed(seconds, "audit", audited, program, bound, step.certify, arguments)

    def _certified(self, program: CompiledProgram, compiler_options: dict[str, Any] | None) -> CompiledStep:
        seconds, step = self._seconds, self._step
        versions = current_versions(compiler_options, device_of((self._trace.args, self._trace.kwargs)))
        certificate = make_certificate(step, versions, self._scheduled, program, seconds)
        if step.store is not None and step.proved.reused is None and certificate.is_proof and is_as_imported():
            try:
                step.key.keep(step.store, certificate)
            except UntrustedError as error:
                step.store.warn(error)
            except OSError as error:
                warn_user(f"the certificate of {certificate.step} was not kept: {error}")
        return CompiledStep(step, self._calling, program, certificate)

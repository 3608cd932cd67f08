"""Compilation of a step to an executable with its certificate: trace, prove, rewrite, lower, compile, audit."""

import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

from ir_passes.compile.buffer_assignment import CompiledProgram, compile_with_assignment
from ir_passes.compile.calling import Calling
from ir_passes.compile.certificate import Certificate
from ir_passes.compile.certificate_store import CertificateStore, Key
from ir_passes.compile.certifying import make_certificate
from ir_passes.compile.exported import Exported, export
from ir_passes.compile.planned_step import plan_graph, trace
from ir_passes.compile.proving import Certify, Proved, prove, warn
from ir_passes.compile.running import Running
from ir_passes.compile.versions import current_versions
from ir_passes.contract.contract import BoundContract, LaneContract
from ir_passes.contract.declared import declarations
from ir_passes.contract.opaque_names import bodies
from ir_passes.contract.statements import Refusal, Statement
from ir_passes.jaxpr.collectives import schedule_of
from ir_passes.jaxpr.fingerprint import fingerprint
from ir_passes.jaxpr.jax_private import without_compilation_cache
from ir_passes.jaxpr.mesh import device_of, mesh_of
from ir_passes.jaxpr.timing import Clock, paused
from ir_passes.proof.ownership import ownership
from ir_passes.report.html import table
from ir_passes.report.svg import arena_map, key, live_ranges
from ir_passes.rewrites.graph import Graph, Pass
from ir_passes.rewrites.pipeline import DEFAULT_PASSES
from ir_passes.scratch.plan import Plan
from ir_passes.targets import Target, TargetError, as_target
from ir_passes.xla_audit.audit import AuditReport, audit
from ir_passes.xla_audit.first_run import successors_of
from ir_passes.xla_audit.hlo import HloError
from ir_passes.xla_audit.kernels import Kernels, kernels_of

CERTIFY: tuple[Certify, ...] = ("error", "warn", "off")
MAX_BARS = 60
"""Live ranges in a notebook's picture: those of the largest values."""


def compile_step(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    contract: LaneContract,
    *,
    passes: tuple[Pass, ...] = DEFAULT_PASSES,
    certify: Certify = "error",
    certificates: str | os.PathLike[str] | None = None,
    may_copy: Sequence[str] = (),
    temp_ratio: float = 1.5,
    axes: Sequence[str] = (),
    compiler_options: dict[str, Any] | None = None,
    target: Target | str | None = None,
) -> "CompiledStep":
    """Compile a step that is proved to keep its lanes apart and whose program XLA laid out as the contract says.

    Args:
        fn: the step: positional arguments in, a tuple out.
        args: example arguments, arrays or `jax.ShapeDtypeStruct`; nothing runs and nothing is donated.
        contract: the owner of each argument and result.
        passes: rewrites, each followed by a new proof.
        certify: "error" raises on a fault; "warn" warns of each one and goes on, without the rewrites if the proof
            fails; "off" neither proves, rewrites nor audits. Where a backend of XLA does not say where it places
            values, a step is proved and not audited, and runs: its certificate says so (`not_audited`).
        certificates: a directory; a proof that an earlier certificate in it holds is not made again. What the audit
            reads is kept there too, where a program that comes out of JAX's compilation cache does not have it.
        may_copy: patterns (as in fnmatch) of paths of pools that may be copied whole, as "*.conv": a shift of a row
            needs bytes beside its own. Copies are listed in the certificate.
        temp_ratio: scratch allowed, as a multiple of what is live at once.
        axes: the axes of the mesh (of the step's `shard_map`, or else of its arguments) along which XLA may add
            collectives of its own, to a step that leaves it to XLA who computes what. Those that the program says
            itself need no leave.
        compiler_options: for XLA.
        target: machine to compile for, as "nvidia-h100"; None for the devices that the arguments lie on. Arguments
            without a mesh are taken to lie on its first device. The step of a target that is not here has a
            certificate, a plan and its kernels, and cannot be called.

    Returns:
        The step; calling it consumes its pools that have successors, and nothing else.

    Raises:
        ContractError: the contract does not fit the function.
        IsolationError: the step is not proved; carries the user's source lines.
        AuditError: XLA's program does not do what the contract says.
        HloError: this version of JAX or XLA does not give out what the audit reads.
        ValueError: `certify` is none of the three.
        TargetError: there is no such target, or its compiler is not installed.
    """
    if certify not in CERTIFY:
        raise ValueError(f"certify: expected one of {', '.join(CERTIFY)}, got {certify!r}")
    machine = None if target is None else as_target(target)
    args, clock = args if machine is None else machine.place(args), Clock()
    away = machine is not None and not machine.is_local
    graph = trace(fn, args, contract, clock)
    bound = graph.bound
    calling = Calling.of(fn, args, bound)
    versions = current_versions(compiler_options, device_of(args))
    called = bodies(graph.program.jaxpr, bound.opaque)
    prints = fingerprint(graph.program), fingerprint(bound)
    key = Key(*prints, fingerprint((passes, declarations(), called)), versions)
    store = None if certificates is None else CertificateStore(Path(certificates))
    kept = None if store is None or certify == "off" else clock.time("prove", store.find, key)
    proved = prove(graph, passes, certify, kept, clock)
    scheduled = clock.time("audit", schedule_of, proved.graph.program)
    lowered = clock.time("lower", calling.lower, proved.graph.program, args)
    # JAX's cache would load a program of devices that are not here.
    with without_compilation_cache() if away else nullcontext():
        if certify == "off":
            compiled = clock.time("compile", lowered.compile, compiler_options=compiler_options)
            program = CompiledProgram(compiled, absent="certify is 'off'")
        else:
            program = clock.time("compile", compile_with_assignment, lowered, compiler_options, versions, store)
    report, audit_faults, not_audited = None, (), program.absent
    if not_audited is None:
        report, audit_faults, not_audited = clock.time(
            "audit",
            lambda: _audit(
                program,
                calling.compiled_bound(bound),
                certify,
                mesh=mesh_of(proved.graph.program, args),
                axes=axes,
                scheduled=scheduled,
                may_copy=may_copy,
                temp_ratio=temp_ratio,
            ),
        )
    certificate = make_certificate(
        calling.name,
        certify,
        key,
        proved,
        audit_faults,
        scheduled,
        program.compiled,
        report,
        not_audited,
        bound,
        clock.seconds,
    )
    if store is not None and kept is None and certificate.is_proof:
        _keep(store, key, certificate)
    return CompiledStep(proved, calling, program, bound, certificate, report, certify, machine if away else None)


def _refuse(target: Target, *args: Any) -> Any:
    raise TargetError(
        f"the step was compiled for {target.name} ({target.device_kind}), which this process does not have: it can be "
        "looked at and not called"
    )


def _keep(store: CertificateStore, key: Key, certificate: Certificate) -> None:
    try:
        store.keep(key, certificate)
    except OSError as error:
        warnings.warn(f"the certificate of {certificate.step} was not kept: {error}", stacklevel=3)


def _audit(
    program: CompiledProgram, bound: BoundContract, certify: Certify, **options: Any
) -> tuple[AuditReport | None, tuple[Statement, ...], str | None]:
    """Return the report, the faults where they only warn, and the reason where there is no report."""
    try:
        with paused():
            report = audit(program.compiled, bound, dump=program.dump, **options)
        if certify == "error":
            return report.require(), (), None
        faults, why = tuple(finding.statement for finding in report.findings), None
    except HloError as error:
        if certify == "error":
            raise
        report, faults, why = None, (Refusal.NOT_AUDITED.statement(why=error),), str(error)
    warn(faults)
    return report, faults, why


class CompiledStep(Running):
    """A compiled step; call it as the function it was made from. Its pools that have successors are consumed.

    Attributes:
        certificate: the statements about it.
        jaxpr: the program that was compiled, after the rewrites.
        compiled: XLA's.
        bound: the contract, leaf by leaf.
        audit: the report of the audit; None where there was none.
        passes: the effect of each rewrite.
        target: machine that it was compiled for, which is not here; None for a step that can be called.
        calling: its calling convention.
    """

    def __init__(
        self,
        proved: Proved,
        calling: Calling,
        program: CompiledProgram,
        bound: BoundContract,
        certificate: Certificate,
        report: AuditReport | None,
        certify: Certify,
        target: Target | None = None,
    ):
        entry = calling.entry(program.compiled) if target is None else partial(_refuse, target)
        super().__init__(entry, successors_of(bound), certify)
        self.certificate = certificate
        self.jaxpr = proved.graph.program
        self.compiled = program.compiled
        self._dump = program.dump
        self.bound = bound
        self.audit = report
        self.passes = proved.passes
        self.target = target
        self.calling = calling

    @cached_property
    def plan(self) -> Plan:
        """The arena of its scratch before XLA fuses anything: planned and verified when it is first asked for."""
        return plan_graph(Graph(self.jaxpr, self.bound))

    @cached_property
    def kernels(self) -> Kernels:
        """The operations of XLA's program with what each moves, computes and touches, read when first asked for.

        Raises:
            HloError: this version of JAX or XLA does not give out the program.
        """
        with paused():
            return kernels_of(self.compiled, self._dump, self.calling.compiled_bound(self.bound))

    def __repr__(self) -> str:
        return f"CompiledStep({self.certificate.step}, lanes={self.bound.lanes}, {self.certificate.state})"

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: the certificate, the pools, and the scratch in figures and pictures."""
        memory, owners = self.certificate.memory, ownership(self.jaxpr, self.bound)
        pools = [(one.path, one.successor or "only read", one.bytes, one.copies) for one in self.certificate.pools]
        scratch = [
            ("planned for the program", self.plan.size),
            ("of which live at once", self.plan.lower_bound),
            ("if nothing were shared", self.plan.naive),
            ("allocated by XLA", memory.temp),
        ]
        return (
            self.certificate._repr_html_()
            + table(("pool", "written in place as", "bytes", "copies of its type"), pools)
            + table(("scratch", "bytes"), scratch)
            + key(self.bound.lanes)
            + live_ranges(self.plan, owners, MAX_BARS)[0]
            + arena_map(self.plan, owners)
        )

    def report(self) -> str:
        """Return certificate and plan as text."""
        return f"{self.certificate.report()}\n{self.plan.report(10)}"

    def export(self, form: Literal["stablehlo", "executable"] = "stablehlo") -> Exported:
        """The step and its certificate in a form that outlives the process; see `Exported`.

        Of a step for a target, StableHLO is for the target's platform.
        """
        platform = None if self.target is None else self.target.platform
        return export(self.calling, self.jaxpr, self.compiled, self.bound, self.certificate, form, platform)

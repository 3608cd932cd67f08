"""Contracts, scratch plans and audits of multi-sequence steps. Knows JAX functions, not language models."""

from ir_passes.compile.certificate import Certificate
from ir_passes.compile.compile_step import CompiledStep, compile_step
from ir_passes.compile.entry_file import Entry, EntryError
from ir_passes.compile.executable_store import ExecutableStore
from ir_passes.compile.exported import Exported, ExportError, load_exported
from ir_passes.compile.planned_step import PlannedStep, plan_step
from ir_passes.compile.proving import CertificationWarning
from ir_passes.compile.result_structure import NotStorable
from ir_passes.compile.stored_step import StoredStep, describe, restore
from ir_passes.contract.contract import (
    Bound,
    BoundContract,
    ContractError,
    Lane,
    LaneContract,
    Opaque,
    Pool,
    Shared,
    SlotMap,
)
from ir_passes.contract.declared import declassify, rowwise
from ir_passes.host.row_ledger import Expected, Label, LedgerError, RowLedger, Turn
from ir_passes.host.slot_owner import Slot, SlotError, SlotOwner, SlotsExhausted
from ir_passes.jaxpr.collectives import Collective
from ir_passes.jaxpr.record import RecordError
from ir_passes.measure.dependence import Dependence, measured_dependence
from ir_passes.measure.unaccepted import Unaccepted, unaccepted_reach
from ir_passes.proof.agreement import devices_agree
from ir_passes.proof.dim_labels import name_dims
from ir_passes.proof.lane_proof import Proof, prove_isolation
from ir_passes.proof.violations import IsolationError, Violation, ViolationKind
from ir_passes.rewrites.pipeline import DEFAULT_PASSES, Graph, Pass, PassPipeline
from ir_passes.sanitizer.sanitize import SanitizedStep, UntrackedError, sanitize
from ir_passes.sanitizer.verdict import SanitizerError, Verdict
from ir_passes.scratch.liveness import Liveness, liveness
from ir_passes.scratch.plan import Plan, PlanError
from ir_passes.scratch.planner import plan, scratch_sizes
from ir_passes.scratch.verifier import verify
from ir_passes.xla_audit.audit import AuditReport, audit
from ir_passes.xla_audit.findings import AuditError, Finding, FindingKind
from ir_passes.xla_audit.hlo import HloError

DISTRIBUTION = "hybridlm"

__all__ = [
    "DEFAULT_PASSES",
    "DISTRIBUTION",
    "AuditError",
    "AuditReport",
    "Bound",
    "BoundContract",
    "Certificate",
    "CertificationWarning",
    "Collective",
    "CompiledStep",
    "ContractError",
    "Dependence",
    "Entry",
    "EntryError",
    "ExecutableStore",
    "Expected",
    "ExportError",
    "Exported",
    "Finding",
    "FindingKind",
    "Graph",
    "HloError",
    "IsolationError",
    "Label",
    "Lane",
    "LaneContract",
    "LedgerError",
    "Liveness",
    "NotStorable",
    "Opaque",
    "Pass",
    "PassPipeline",
    "Plan",
    "PlanError",
    "PlannedStep",
    "Pool",
    "Proof",
    "RecordError",
    "RowLedger",
    "SanitizedStep",
    "SanitizerError",
    "Shared",
    "Slot",
    "SlotError",
    "SlotMap",
    "SlotOwner",
    "SlotsExhausted",
    "StoredStep",
    "Turn",
    "Unaccepted",
    "UntrackedError",
    "Verdict",
    "Violation",
    "ViolationKind",
    "audit",
    "compile_step",
    "declassify",
    "describe",
    "devices_agree",
    "liveness",
    "load_exported",
    "measured_dependence",
    "name_dims",
    "plan",
    "plan_step",
    "prove_isolation",
    "restore",
    "rowwise",
    "sanitize",
    "scratch_sizes",
    "unaccepted_reach",
    "verify",
]

"""Contracts, scratch plans and audits of multi-sequence steps. Knows JAX functions, not language models."""

from ir_passes.agreement import devices_agree
from ir_passes.arena import plan, scratch_sizes
from ir_passes.arena_plan import Plan, PlanError
from ir_passes.arena_verifier import verify
from ir_passes.audit import AuditReport, audit
from ir_passes.certificate import Certificate
from ir_passes.collectives import Collective
from ir_passes.compile_step import CompiledStep, compile_step
from ir_passes.contract import Bound, BoundContract, ContractError, Lane, LaneContract, Opaque, Pool, Shared, SlotMap
from ir_passes.declared import declassify, rowwise
from ir_passes.exported import Exported, ExportError, load_exported
from ir_passes.findings import AuditError, Finding, FindingKind
from ir_passes.hlo import HloError
from ir_passes.labels import name_dims
from ir_passes.lane_proof import Proof, prove_isolation
from ir_passes.liveness import Liveness, liveness
from ir_passes.measured_dependence import Dependence, measured_dependence
from ir_passes.pass_pipeline import DEFAULT_PASSES, Graph, Pass, PassPipeline
from ir_passes.planned_step import PlannedStep, plan_step
from ir_passes.proving import CertificationWarning
from ir_passes.record import RecordError
from ir_passes.row_ledger import Expected, Label, LedgerError, RowLedger, Turn
from ir_passes.sanitizer import SanitizedStep, UntrackedError, sanitize
from ir_passes.sanitizer_verdict import SanitizerError, Verdict
from ir_passes.slot_owner import Slot, SlotError, SlotOwner, SlotsExhausted
from ir_passes.unaccepted import Unaccepted, unaccepted_reach
from ir_passes.violations import IsolationError, Violation, ViolationKind

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
    "Turn",
    "Unaccepted",
    "UntrackedError",
    "Verdict",
    "Violation",
    "ViolationKind",
    "audit",
    "compile_step",
    "declassify",
    "devices_agree",
    "liveness",
    "load_exported",
    "measured_dependence",
    "name_dims",
    "plan",
    "plan_step",
    "prove_isolation",
    "rowwise",
    "sanitize",
    "scratch_sizes",
    "unaccepted_reach",
    "verify",
]

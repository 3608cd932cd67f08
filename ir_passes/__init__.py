"""Contracts, scratch plans and audits of multi-sequence steps. Knows JAX functions, not language models."""

from ir_passes.arena import plan, scratch_sizes
from ir_passes.arena_executor import ArenaError, execute
from ir_passes.arena_plan import Plan, PlanError
from ir_passes.arena_verifier import verify
from ir_passes.audit import AuditReport, audit
from ir_passes.contract import Bound, BoundContract, ContractError, Lane, LaneContract, Opaque, Pool, Shared, SlotMap
from ir_passes.declared import declassify, rowwise
from ir_passes.findings import AuditError, Finding, FindingKind
from ir_passes.labels import name_dims
from ir_passes.lane_proof import Proof, prove_isolation
from ir_passes.liveness import Liveness, liveness
from ir_passes.slot_owner import Slot, SlotError, SlotOwner, SlotsExhausted
from ir_passes.violations import IsolationError, Violation, ViolationKind

DISTRIBUTION = "hybridlm"

__all__ = [
    "DISTRIBUTION",
    "ArenaError",
    "AuditError",
    "AuditReport",
    "Bound",
    "BoundContract",
    "ContractError",
    "Finding",
    "FindingKind",
    "IsolationError",
    "Lane",
    "LaneContract",
    "Liveness",
    "Opaque",
    "Plan",
    "PlanError",
    "Pool",
    "Proof",
    "Shared",
    "Slot",
    "SlotError",
    "SlotMap",
    "SlotOwner",
    "SlotsExhausted",
    "Violation",
    "ViolationKind",
    "audit",
    "declassify",
    "execute",
    "liveness",
    "name_dims",
    "plan",
    "prove_isolation",
    "rowwise",
    "scratch_sizes",
    "verify",
]

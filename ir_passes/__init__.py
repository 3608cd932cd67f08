"""Compiler passes for JAX functions that advance many sequences at once and keep a state for each.

A function and a `LaneContract` (what is shared, what belongs to one lane, which arrays are pools of rows) go in.
`prove_isolation` proves from the jaxpr that no lane reaches another's state; `compile_step` proves, rewrites, compiles
and audits; `plan` lays out scratch. Knows JAX functions, not language models. The names here are those of
`hybridlm.compiler`, what users import; everything else comes from the folders, whose `__init__.py` say where to begin.
"""

from ir_passes.compile.certificate import Certificate
from ir_passes.compile.compile_step import CompiledStep, compile_step
from ir_passes.compile.proving import CertificationWarning
from ir_passes.contract.contract import (
    ContractError,
    Lane,
    LaneContract,
    Opaque,
    Packed,
    PageTable,
    Pool,
    Shared,
    SlotMap,
)
from ir_passes.contract.declared import declassify, rowwise
from ir_passes.proof.dim_names import name_dims
from ir_passes.proof.lane_proof import Proof, prove_isolation
from ir_passes.proof.violations import IsolationError, Violation, ViolationKind
from ir_passes.scratch.liveness import liveness
from ir_passes.scratch.planner import plan
from ir_passes.xla_audit.findings import AuditError

DISTRIBUTION = "hybridlm"

__all__ = [
    "DISTRIBUTION",
    "AuditError",
    "Certificate",
    "CertificationWarning",
    "CompiledStep",
    "ContractError",
    "IsolationError",
    "Lane",
    "LaneContract",
    "Opaque",
    "Packed",
    "PageTable",
    "Pool",
    "Proof",
    "Shared",
    "SlotMap",
    "Violation",
    "ViolationKind",
    "compile_step",
    "declassify",
    "liveness",
    "name_dims",
    "plan",
    "prove_isolation",
    "rowwise",
]

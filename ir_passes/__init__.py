"""Compiler passes for JAX functions that advance many sequences, each with a state.

A `LaneContract` names a function's shared arrays, arrays of one lane, and pools of rows. `prove_isolation` proves from
the jaxpr that no lane reaches another lane's state. `isolated` and `compile_step` prove, rewrite, compile and audit.
`plan` lays out scratch. The passes do not know language models.

This package exports the names of `hybridlm.compiler`, and those for violations, liveness and the ids in certificates
and errors. Each folder's `__init__.py` names the module to begin with.
"""

# isort: off
import ir_passes.files.sources  # noqa: F401  # notes the sources of this package before the rest is imported

# isort: on

from ir_passes.compile.certificate import Certificate
from ir_passes.compile.compile_step import compile_step
from ir_passes.compile.compiled_step import CompiledStep
from ir_passes.compile.isolated import isolated
from ir_passes.compile.proving import CertificationWarning
from ir_passes.compile.stages import prove
from ir_passes.contract.contract import (
    ComputedGrid,
    ContractError,
    Lane,
    LaneContract,
    Opaque,
    Packed,
    PageTable,
    Pool,
    Shared,
    SlotMap,
    Unspecified,
)
from ir_passes.contract.declared import declassify, rowwise
from ir_passes.contract.faults import ContractFault
from ir_passes.contract.statements import (
    Assumption,
    AuditClaim,
    Claim,
    MeasuredClaim,
    MeasuredFault,
    NotCovered,
    Note,
    Statement,
)
from ir_passes.files.loaded_code import note_code
from ir_passes.host.slot_faults import SlotError, SlotFault
from ir_passes.proof.dims.names import name_dims
from ir_passes.proof.lane_proof import Proof, prove_isolation
from ir_passes.proof.violations import IsolationError, Violation, ViolationKind
from ir_passes.scratch.liveness import liveness
from ir_passes.scratch.planner import plan
from ir_passes.xla_audit.findings import AuditError, FindingKind

note_code("ir_passes")
DISTRIBUTION = "hybridlm"

__all__ = [
    "DISTRIBUTION",
    "Assumption",
    "AuditClaim",
    "AuditError",
    "Certificate",
    "CertificationWarning",
    "Claim",
    "CompiledStep",
    "ComputedGrid",
    "ContractError",
    "ContractFault",
    "FindingKind",
    "IsolationError",
    "Lane",
    "LaneContract",
    "MeasuredClaim",
    "MeasuredFault",
    "NotCovered",
    "Note",
    "Opaque",
    "Packed",
    "PageTable",
    "Pool",
    "Proof",
    "Shared",
    "SlotError",
    "SlotFault",
    "SlotMap",
    "Statement",
    "Unspecified",
    "Violation",
    "ViolationKind",
    "compile_step",
    "declassify",
    "isolated",
    "liveness",
    "name_dims",
    "plan",
    "prove",
    "prove_isolation",
    "rowwise",
]

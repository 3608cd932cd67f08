"""Compiler passes for JAX functions that advance many sequences at once and keep a state for each.

A function and a `LaneContract` (what is shared, what belongs to one lane, which arrays are pools of rows) go in.
`prove_isolation` proves from the jaxpr that no lane reaches another's state; `isolated` and `compile_step` prove,
rewrite, compile and audit; `plan` lays out scratch. Knows JAX functions, not language models. The names here are those
of `hybridlm.compiler`, what users import, violations and liveness; everything else comes from the folders, whose
`__init__.py` say where to begin.
"""

from ir_passes.compile.certificate import Certificate
from ir_passes.compile.compile_step import compile_step
from ir_passes.compile.compiled_step import CompiledStep
from ir_passes.compile.isolated import isolated
from ir_passes.compile.proving import CertificationWarning
from ir_passes.compile.stages import prove
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
    Unspecified,
)
from ir_passes.contract.declared import declassify, rowwise
from ir_passes.proof.dims.names import name_dims
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

"""Statements of certificates and violations of proofs: ids and sentences."""

from ir_passes.contract.statements import (
    Assumption,
    AuditClaim,
    Claim,
    MeasuredClaim,
    MeasuredFault,
    NotCovered,
    Note,
    StatedError,
    Statement,
)
from ir_passes.proof.violations import Violation, ViolationKind

__all__ = [
    "Assumption",
    "AuditClaim",
    "Claim",
    "MeasuredClaim",
    "MeasuredFault",
    "NotCovered",
    "Note",
    "StatedError",
    "Statement",
    "Violation",
    "ViolationKind",
]

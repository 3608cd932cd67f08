"""The statements of certificates: their ids, with a sentence for each."""

from ir_passes.contract.statements import Assumption, AuditClaim, Claim, NotCovered, Note, Statement

__all__ = [
    "Assumption",
    "AuditClaim",
    "Claim",
    "NotCovered",
    "Note",
    "Statement",
]

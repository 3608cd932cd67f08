"""Statement ids of a certificate, by field."""

from collections.abc import Iterable

from ir_passes.contract.statements import (
    Assumption,
    AuditClaim,
    Claim,
    MeasuredClaim,
    MeasuredFault,
    NotCovered,
    Note,
    Refusal,
    Statement,
    StatementId,
)
from ir_passes.proof.violations import ViolationKind
from ir_passes.xla_audit.findings import FindingKind

STATEMENTS: dict[str, tuple[type[StatementId], ...]] = {
    "proved": (Claim,),
    "audited": (AuditClaim,),
    "measured": (MeasuredClaim,),
    "assumed": (Assumption,),
    "not_covered": (NotCovered,),
    "faults": (ViolationKind, FindingKind, MeasuredFault, Refusal),
    "notes": (Note,),
}
"""Field of a certificate -> closed lists of statement ids."""


def unknown_ids(field: str, statements: Iterable[Statement]) -> list[str]:
    """Return the sorted ids that a field does not know."""
    ids = {statement_id.value for kind in STATEMENTS[field] for statement_id in kind}
    return sorted({statement.id for statement in statements} - ids)

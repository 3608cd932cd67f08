"""The audit of XLA's compiled program."""

from ir_passes.xla_audit.audit import AuditReport, audit
from ir_passes.xla_audit.findings import Finding, FindingKind
from ir_passes.xla_audit.hlo import HloError

__all__ = ["AuditReport", "Finding", "FindingKind", "HloError", "audit"]

"""Steps that carry a label beside each row and check it where the row is used."""

from ir_passes.sanitizer.sanitize import SanitizedStep, UntrackedError, sanitize
from ir_passes.sanitizer.verdict import SanitizerError, Verdict

__all__ = [
    "SanitizedStep",
    "SanitizerError",
    "UntrackedError",
    "Verdict",
    "sanitize",
]

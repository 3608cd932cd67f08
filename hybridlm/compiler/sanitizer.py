"""Steps that carry a label beside each row and check it where the row is used."""

from ir_passes.sanitizer.sanitize import SanitizedStep, UntrackedError, sanitize
from ir_passes.sanitizer.verdict import LabelFault, LaneFault, SanitizerError, UntrackedFault, Verdict

__all__ = [
    "LabelFault",
    "LaneFault",
    "SanitizedStep",
    "SanitizerError",
    "UntrackedError",
    "UntrackedFault",
    "Verdict",
    "sanitize",
]

"""Steps that carry a label with each row and check it at each use."""

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

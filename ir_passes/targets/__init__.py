"""Machines that steps are compiled for: local devices, or absent GPUs and TPUs by name.

Imports none of our folders. Begin with `target`; `gpus` describes GPUs and TPUs that have a name.
"""

from ir_passes.targets.target import Target, TargetError, as_target, local_target, named_targets, read_target

__all__ = ["Target", "TargetError", "as_target", "local_target", "named_targets", "read_target"]

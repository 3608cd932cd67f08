"""Machines that steps are compiled for: local devices, or absent GPUs and TPUs.

Begin with `target`.
"""

from ir_passes.targets.target import Target, TargetError, as_target, local_target, named_targets, read_target

__all__ = ["Target", "TargetError", "as_target", "local_target", "named_targets", "read_target"]

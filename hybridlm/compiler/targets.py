"""Machines to compile for, which need not be there: `compile_step(..., target="nvidia-h100")`."""

from ir_passes.targets import Target, TargetError, local_target, named_targets, read_target
from ir_passes.xla_audit.kernels import Kernel, Kernels

__all__ = ["Kernel", "Kernels", "Target", "TargetError", "local_target", "named_targets", "read_target"]

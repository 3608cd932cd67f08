"""Machines to compile for, present or not: `compile_step(..., target="nvidia-h100")`."""

from ir_passes.targets import Target, TargetError, local_target, named_targets, read_target
from ir_passes.targets.kernel_limits import KernelResources, kernel_programs, kernel_resources
from ir_passes.xla_audit.kernels import Kernels, ScheduledKernel

__all__ = [
    "KernelResources",
    "Kernels",
    "ScheduledKernel",
    "Target",
    "TargetError",
    "kernel_programs",
    "kernel_resources",
    "local_target",
    "named_targets",
    "read_target",
]

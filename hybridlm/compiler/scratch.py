"""Results of `plan` and `liveness`, the least scratch of a step, and the independent check of a plan."""

from ir_passes.scratch.liveness import Liveness
from ir_passes.scratch.plan import Plan, PlanError
from ir_passes.scratch.planner import scratch_sizes
from ir_passes.scratch.verifier import verify_plan

__all__ = [
    "Liveness",
    "Plan",
    "PlanError",
    "scratch_sizes",
    "verify_plan",
]

"""Results of `plan` and `liveness`, and the independent check of a plan."""

from ir_passes.scratch.liveness import Liveness
from ir_passes.scratch.plan import Plan, PlanError
from ir_passes.scratch.verifier import verify_plan

__all__ = [
    "Liveness",
    "Plan",
    "PlanError",
    "verify_plan",
]

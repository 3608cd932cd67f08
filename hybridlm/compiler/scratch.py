"""Liveness of values, scratch plans, and the independent check of a plan."""

from ir_passes.scratch.liveness import Liveness, liveness
from ir_passes.scratch.plan import Plan, PlanError
from ir_passes.scratch.verifier import verify_plan

__all__ = [
    "Liveness",
    "Plan",
    "PlanError",
    "liveness",
    "verify_plan",
]

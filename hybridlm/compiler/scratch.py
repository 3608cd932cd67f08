"""Liveness of values, scratch plans, and the check of a plan."""

from ir_passes.scratch.liveness import Liveness, liveness
from ir_passes.scratch.planner import Plan, PlanError, verify_plan

__all__ = ["Liveness", "Plan", "PlanError", "liveness", "verify_plan"]

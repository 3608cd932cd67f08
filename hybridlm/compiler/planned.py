"""A step that is proved and rewritten, its scratch planned and nothing compiled."""

from ir_passes.compile.planned_step import PlannedStep, plan_step

__all__ = ["PlannedStep", "plan_step"]

"""Costs of a model's steps on an absent machine, and whether it fits there.

Imports the engine and everything below it. Begin with `target_report`, which compiles every step for the target and
combines the parts: `step_report` (one step, and lower bounds for every program), `fit` (weights, rows and scratch
compared with the memory).
"""

from hybridlm.target_report.fit import Fit
from hybridlm.target_report.step_report import StepReport
from hybridlm.target_report.target_report import TargetReport, report_on, shapes_of, target_engine

__all__ = ["Fit", "StepReport", "TargetReport", "report_on", "shapes_of", "target_engine"]

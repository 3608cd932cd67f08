"""Costs of a model's steps on a machine that need not be there, and whether the model fits into its memory.

Imports the engine and what is below it. Begin with `target_report`, which compiles every step for the target and puts
the parts together: `step_report` (one step), `floor` (what no program of it can avoid), `fit` (weights, rows and
scratch beside the memory).
"""

from hybridlm.target_report.fit import Fit
from hybridlm.target_report.step_report import StepReport
from hybridlm.target_report.target_report import TargetReport, report_on, shapes_of, target_engine

__all__ = ["Fit", "StepReport", "TargetReport", "report_on", "shapes_of", "target_engine"]

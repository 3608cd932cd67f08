"""Costs of a model's steps on an absent machine, and its fit there.

Begin with `target_report`.
"""

from hybridlm.checkpoint.quantise import Recipe
from hybridlm.target_report.fit import Fit
from hybridlm.target_report.step_report import Floor, StepReport
from hybridlm.target_report.target_report import TargetReport, report_on, shapes_of, target_engine

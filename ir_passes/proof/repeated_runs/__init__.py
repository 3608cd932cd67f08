"""Runs of equations that occur again, as the layers of a model do: interpreted once, and renamed where they come again.

A part of `proof`, and imported by it. Imports its `site` and `prover`. Begin with `repeats`; `runs` finds them.
"""

from ir_passes.proof.repeated_runs.renaming import Renaming
from ir_passes.proof.repeated_runs.repeats import interpret_repeating
from ir_passes.proof.repeated_runs.runs import Run, runs_of

__all__ = ["Renaming", "Run", "interpret_repeating", "runs_of"]

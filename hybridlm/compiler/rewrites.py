"""Rewrites of a step's jaxpr: passes, and their runs with proofs."""

from ir_passes.rewrites import DEFAULT_PASSES, drop_dead, rebatch, write_in_place
from ir_passes.rewrites.graph import Graph, Pass
from ir_passes.rewrites.pipeline import PassReport, run_passes

__all__ = ["DEFAULT_PASSES", "Graph", "Pass", "PassReport", "drop_dead", "rebatch", "run_passes", "write_in_place"]

"""Rewrites of a step's jaxpr: the passes, the pipeline that proves after each, and the base of a pass of your own."""

from ir_passes.rewrites import DEFAULT_PASSES, DropDead, Rebatch
from ir_passes.rewrites.graph import Graph, Pass
from ir_passes.rewrites.pipeline import PassPipeline

__all__ = [
    "DEFAULT_PASSES",
    "DropDead",
    "Graph",
    "Pass",
    "PassPipeline",
    "Rebatch",
]

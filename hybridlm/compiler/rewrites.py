"""Rewrites of a step's jaxpr: passes, their base class, and the proving pipeline."""

from ir_passes.rewrites import DEFAULT_PASSES, DropDead, Rebatch, WriteInPlace
from ir_passes.rewrites.graph import Graph, Pass
from ir_passes.rewrites.pipeline import PassPipeline

__all__ = ["DEFAULT_PASSES", "DropDead", "Graph", "Pass", "PassPipeline", "Rebatch", "WriteInPlace"]

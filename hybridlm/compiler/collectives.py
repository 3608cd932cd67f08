"""Exchanges between devices of a mesh, and a check for equal operands."""

from ir_passes.jaxpr.collectives import Collective
from ir_passes.proof.agreement import devices_agree

__all__ = ["Collective", "devices_agree"]

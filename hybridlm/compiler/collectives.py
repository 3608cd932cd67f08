"""Exchanges between devices in a step over a mesh, and a check that the devices were given equal operands."""

from ir_passes.jaxpr.collectives import Collective
from ir_passes.proof.agreement import devices_agree

__all__ = [
    "Collective",
    "devices_agree",
]

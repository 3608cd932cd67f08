"""The scratch of a compiled program, as buffers for a planner: in the intervals that XLA's own schedule gives them."""

from ir_passes.scratch.packing import Buffer
from ir_passes.xla_audit.dataflow import live_values
from ir_passes.xla_audit.memory import scratch_intervals
from ir_passes.xla_audit.program import Executable


def temporaries(executable: Executable) -> tuple[list[Buffer], int]:
    """Values to be placed, and the bytes in which XLA has placed them."""
    intervals = scratch_intervals(executable, live_values(executable))
    scratch = (one.size for one in executable.buffers.allocations.values() if one.is_temp)
    return [Buffer(place.size, start, stop) for place, start, stop in intervals], sum(scratch)

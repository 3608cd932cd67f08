"""The scratch of a compiled program, as buffers for a planner: in the intervals that XLA's own schedule gives them."""

from ir_passes.live_values import live_values
from ir_passes.packing import Buffer
from ir_passes.program import Executable, Slice


def temporaries(executable: Executable) -> tuple[list[Buffer], int]:
    """What has to be placed, and in how many bytes XLA has placed it.

    Values in the very same bytes that end where the next begins are one buffer: XLA writes the second over the first.
    """
    scratch = {one.index: one.size for one in executable.buffers.allocations.values() if one.is_temp}
    spans: dict[Slice, list[tuple[int, int]]] = {}
    for value in live_values(executable).values:
        if value.slice is not None and value.slice.allocation in scratch:
            spans.setdefault(value.slice, []).append((value.start, value.stop))
    buffers: list[Buffer] = []
    for place, times in spans.items():
        times.sort()
        start, stop = times[0]
        for begin, end in times[1:]:
            if begin > stop:
                buffers.append(Buffer(place.size, start, stop))
                start = begin
            stop = max(stop, end)
        buffers.append(Buffer(place.size, start, stop))
    return buffers, sum(scratch.values())

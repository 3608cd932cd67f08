"""Checks of live values: disjoint bytes, scratch bound, neighbours of custom calls.

Writes of custom calls are unknown; their neighbours show possible harm.
"""

from collections.abc import Iterable, Iterator

from ir_passes.xla_audit.dataflow import LiveValue, LiveValues
from ir_passes.xla_audit.findings import Finding, FindingKind, where
from ir_passes.xla_audit.program import TPU, Executable, Slice

REMEDY = "Report it to openxla/xla with this program; do not run the step. Another XLA version may place it rightly."


def overlaps(executable: Executable, live: LiveValues) -> Iterator[Finding]:
    """Yield pairs of live values that share a byte.

    A result may take exactly the bytes of a value that its operation reads last (see `in_place`), a branch the bytes of
    a value that only another branch needs.
    """
    module = executable.module
    by_allocation: dict[int, list[tuple[LiveValue, Slice]]] = {}
    for value in live.values:
        if value.slice is not None and value.slice.size:
            by_allocation.setdefault(value.slice.allocation, []).append((value, value.slice))
    for placed in by_allocation.values():
        placed.sort(key=lambda pair: pair[0].start)
        active: list[tuple[LiveValue, Slice]] = []
        for value, place in placed:
            active = [pair for pair in active if pair[0].stop >= value.start]
            for other, other_place in active:
                if not place.overlaps(other_place):
                    continue
                if place == other_place and other.start < value.start == other.stop:
                    continue
                if (other.instruction.id, other.index) in value.parts and other.stop == value.start:
                    continue
                # With equal bytes, a gap may begin one tick earlier: that operation reads the other value last.
                if any(
                    start - (place == other_place) <= value.start and value.stop <= stop for start, stop in other.gaps
                ):
                    continue
                yield Finding(
                    FindingKind.OVERLAP,
                    where(value.instruction, module),
                    f"{value} in {place} is written while {other} in {other_place} is still to be read: "
                    f"live at ticks {value.start} to {_until(value)} and {other.start} to {_until(other)}",
                    REMEDY,
                )
            active.append((value, place))


def misplaced(executable: Executable, live: LiveValues) -> Iterator[Finding]:
    """Yield misplaced or too small values, and moved carries."""
    module = executable.module
    for value in live.values:
        place = value.slice
        if place is None:
            if value.array.bytes and value.array.dtype != "tuple":
                yield Finding(
                    FindingKind.UNPLACED,
                    where(value.instruction, module),
                    f"{value} has no place in the buffer assignment, so nothing can be said about its bytes",
                    "The audit does not know this operation; report the program to this project.",
                )
            continue
        size, needed = executable.buffers.allocations[place.allocation].size, value.array.padded_bytes
        if value.array.dtype == "tuple" and executable.platform == TPU:
            needed //= 2  # TPU pointers have 32 bits
        if place.offset < 0 or place.offset + place.size > size or place.size < needed:
            yield Finding(
                FindingKind.MISPLACED,
                where(value.instruction, module),
                f"{value} needs {needed} bytes within the {size} of its allocation, got {place}",
                REMEDY,
            )
    for instruction, index, named in live.carries:
        places = {place for _, place in named if place is not None}
        if len(places) > 1:
            yield Finding(
                FindingKind.CARRY_MOVED,
                where(instruction, module),
                f"entry {list(index)} has to be in one place, got "
                + ", ".join(f"{name}: {place}" for name, place in named if place is not None),
                REMEDY,
            )


def scratch_intervals(executable: Executable, live: LiveValues) -> Iterator[tuple[Slice, int, int]]:
    """Yield scratch slices with first and last tick; values in equal bytes are merged."""
    intervals: dict[Slice, list[tuple[int, int]]] = {}
    for value in live.values:
        if value.slice is None or executable.on_chip(value.slice):
            continue
        if executable.buffers.allocations[value.slice.allocation].is_temp:
            intervals.setdefault(value.slice, []).append((value.start, value.stop))
    for place, spans in intervals.items():
        spans.sort()
        start, stop = spans[0]
        for begin, end in spans[1:]:
            if begin > stop:
                yield place, start, stop
                start = begin
            stop = max(stop, end)
        yield place, start, stop


def scratch_lower_bound(executable: Executable, live: LiveValues) -> int:
    """Return the peak of live scratch in bytes."""
    events: list[tuple[int, int]] = []
    for place, start, stop in scratch_intervals(executable, live):
        events += [(start, place.size), (stop + 1, -place.size)]
    peak = live_bytes = 0
    # Ends sort before beginnings: an end is the tick after the last reader.
    for _, size in sorted(events):
        live_bytes += size
        peak = max(peak, live_bytes)
    return peak


def _until(value: LiveValue) -> str:
    return "the end" if value.stop > 1 << 61 else str(value.stop)


def neighbours(executable: Executable, live: LiveValues) -> tuple[str, ...]:
    """Describe the nearest live values around results of custom calls, with distances in bytes."""
    results = []
    for instruction in live.executed:
        if instruction.opcode != "custom-call":
            continue
        for _, position in live.made_by(instruction):
            value = live.values[position]
            if value.slice is not None and value.array.dtype != "tuple":
                concurrent = [other for other in live.values if other.start <= value.start <= other.stop]
                results.append(_described(value, value.slice, concurrent, instruction.target))
    return tuple(results)


def _described(value: LiveValue, place: Slice, live: Iterable[LiveValue], target: str) -> str:
    lower: list[tuple[int, str]] = []
    higher: list[tuple[int, str]] = []
    for other in live:
        other_place = other.slice
        if (
            other_place is None
            or other_place.allocation != place.allocation
            or not other_place.size
            or other_place.overlaps(place)
        ):
            continue
        if other_place.offset < place.offset:
            lower.append((place.offset - other_place.offset - other_place.size, str(other)))
        else:
            higher.append((other_place.offset - place.offset - place.size, str(other)))
    sides = (
        f"{side} it {_apart(*min(values))}" if values else f"nothing {side} it"
        for side, values in (("before", lower), ("behind", higher))
    )
    return f"{target} writes {value} in {place}: {', '.join(sides)}"


def _apart(gap: int, name: str) -> str:
    return f"{name}, {gap} bytes away" if gap else name

"""Packings of buffers as tables: name, size, and # at live times."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arena_programs import PROGRAMS
from hypothesis import given, settings
from hypothesis import strategies as st

from ir_passes import Lane, LaneContract, Pool
from ir_passes.scratch.planner import ALIGNMENT, Buffer, pack, plan


def drawn(text: str) -> list[Buffer]:
    """The buffers of a table."""
    buffers: list[Buffer] = []
    for line in text.strip().splitlines():
        _, size, live = line.split()
        buffers.append((int(size), live.index("#"), live.rindex("#")))
    return buffers


def packed(buffers: list[Buffer]) -> int:
    """Return a packing's height; check pairs of simultaneously live buffers."""
    offsets = pack(buffers)
    assert len(offsets) == len(buffers)
    for i, ((size, start, end), low) in enumerate(zip(buffers, offsets, strict=True)):
        assert low >= 0 and low % ALIGNMENT == 0, f"buffer {i} at {low}"
        for j in range(i):
            other_size, other_start, other_end = buffers[j]
            joint = set(range(start, end + 1)) & set(range(other_start, other_end + 1))
            shared = min(low + size, offsets[j] + other_size) - max(low, offsets[j])
            assert not joint or shared <= 0 or not size or not other_size, f"buffers {j} and {i} at {joint}"
    return max((low + size for (size, _, _), low in zip(buffers, offsets, strict=True)), default=0)


TABLES = {
    "nothing": ("", 0),
    "one": ("a 100 ###", 100),
    "apart in time": ("a 128 ##..\nb 128 ..##", 128),
    "touching at one time": ("a 128 ##.\nb 128 .##", 256),
    "a large one after two small": ("a 64 ##..\nb 64 ##..\nc 128 ..##", 128),
    "a hole between": ("a 64 ######\nb 128 ###...\nc 64 ######\nd 128 ....##", 256),
    "padded to 64": ("a 1 ##\nb 1 ##", 65),
    "empty buffers": ("a 0 ##\nb 64 ##\nc 0 .#", 64),
    "staircase": ("a 64 ##....\nb 64 .##...\nc 64 ..##..\nd 64 ...##.\ne 64 ....##", 128),
}


@pytest.mark.parametrize("case", TABLES)
def test_packs(case: str) -> None:
    text, expected = TABLES[case]
    assert packed(drawn(text)) == expected


BUFFERS = st.lists(
    st.tuples(st.integers(0, 500), st.integers(0, 12), st.integers(0, 6)).map(lambda t: (t[0], t[1], t[1] + t[2])),
    max_size=14,
)


@settings(max_examples=60)
@given(BUFFERS)
def test_any_buffers(buffers: list[Buffer]) -> None:
    packed(buffers)


CONTRACT = LaneContract(
    inputs=(Pool("state"), Lane(), Lane(), Lane(), Lane()),
    outputs=(Lane(), Pool("state")),
)


@pytest.mark.parametrize("name", PROGRAMS)
def test_plans_are_between_the_lower_bound_and_no_sharing(name: str) -> None:
    program = PROGRAMS[name]
    result = plan(program.fn, program.args(4))  # verified there
    total = sum(-(-placement.bytes // ALIGNMENT) * ALIGNMENT for placement in result.placements)
    assert result.lower_bound <= result.size <= total + sum(block.bytes for block in result.blocks.values())


def test_scratch_grows_with_the_lanes() -> None:
    program = PROGRAMS["delta"]
    sizes = {lanes: plan(program.fn, program.args(lanes), CONTRACT) for lanes in (1, 2, 8, 64)}
    assert sizes[64].size >= 8 * sizes[8].lower_bound


def test_the_report_lists_the_largest_values_with_source_lines_and_bodies() -> None:
    program = PROGRAMS["layers"]
    report = plan(program.fn, program.args(4)).report()
    assert "bodies of scan.0" in report and "arena_programs.py:" in report
    long = plan(lambda x: jnp.sin(jnp.cos(jnp.tan(x)) + 1) * 2 - 1, (jax.ShapeDtypeStruct((4,), np.float32),))
    assert "and 4 smaller values" in long.report(rows=1)

"""Packings of buffers drawn as tables: name, size, and # at the times at which the buffer is live."""

import math
import random
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arena_programs import PROGRAMS
from hypothesis import given, settings
from hypothesis import strategies as st

from ir_passes import Lane, LaneContract, Pool, packing_search
from ir_passes.arena import plan, plan_liveness, scratch_sizes
from ir_passes.liveness import liveness
from ir_passes.packing import PLANNERS, Buffer, lower_bound, planner_of, register
from ir_passes.packing_search import exact, search

CAPACITY = 1 << 14  # in units of 64 bytes


def drawn(text: str, alignment: int = 64) -> list[Buffer]:
    """The buffers of a table."""
    buffers: list[Buffer] = []
    for line in text.strip().splitlines():
        _, size, live = line.split()
        buffers.append(Buffer(int(size), live.index("#"), live.rindex("#"), alignment))
    return buffers


def check(buffers, packing) -> None:
    """Recomputes who is live when, time by time and byte range by byte range."""
    assert len(packing.offsets) == len(buffers)
    for i, (a, low) in enumerate(zip(buffers, packing.offsets, strict=True)):
        assert low >= 0 and low % a.alignment == 0, f"buffer {i} at {low}"
        assert low + a.size <= packing.height, f"buffer {i} at {low} of {a.size} above {packing.height}"
        for j in range(i):
            b, other = buffers[j], packing.offsets[j]
            together = set(range(a.start, a.end + 1)) & set(range(b.start, b.end + 1))
            shared = min(low + a.size, other + b.size) - max(low, other)
            assert not together or shared <= 0 or not a.size or not b.size, (
                f"buffers {j} [{other}, {other + b.size}) and {i} [{low}, {low + a.size}) at {together}"
            )
    alignment = min((b.alignment for b in buffers), default=1)
    for time in range(max((b.end for b in buffers), default=0) + 1):
        assert packing.height >= sum(b.size for b in buffers if b.start <= time <= b.end)
        assert -(-packing.height // alignment) * alignment >= lower_bound(buffers)


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
    "best fit alone needs more": ("a 192 #....\nb 128 .##..\nc 128 ##...\nd 192 ..###\ne 64 #####", 384),
}


@pytest.mark.parametrize("name", sorted(PLANNERS))
@pytest.mark.parametrize("case", TABLES)
def test_packs(name: str, case: str) -> None:
    text, height = TABLES[case]
    buffers = drawn(text)
    packing = planner_of(name)(buffers)
    check(buffers, packing)
    if name in ("exact", "search"):
        assert packing.height == height
    assert not packing.optimal or packing.height == height


LAYERS = {
    "the earliest fullest time first": ("a 256 ######\nb 256 ..######\nc 64 ....#########\nd 320 ......###", 640),
    "the latest fullest time first": ("a 128 ###\nb 128 ####\nc 256 .####\nd 192 ..####\ne 128 ...######", 704),
}


@pytest.mark.parametrize("case", LAYERS)
def test_layers_are_packed_as_low_as_what_is_live_at_once(case: str) -> None:
    """Sixty times the same, every eighth time, as in a model: one of the two orders by load packs them."""
    text, height = LAYERS[case]
    buffers = [
        Buffer(buffer.size, buffer.start + time, buffer.end + time)
        for time in range(0, 480, 8)
        for buffer in drawn(text)
    ]
    assert planner_of("best-fit")(buffers).height > 1.15 * height
    packing = search(buffers)
    check(buffers, packing)
    assert packing.optimal and packing.height == height


def test_every_buffer_keeps_its_own_alignment() -> None:
    buffers = [Buffer(100, 0, 3, 64), Buffer(10, 0, 3, 16), Buffer(1000, 1, 2, 256), Buffer(3, 3, 3, 1)]
    for name in PLANNERS:
        check(buffers, planner_of(name)(buffers))


BUFFERS = st.lists(
    st.tuples(st.integers(0, 500), st.integers(0, 12), st.integers(0, 6), st.sampled_from((1, 16, 64))).map(
        lambda t: Buffer(t[0], t[1], t[1] + t[2], t[3])
    ),
    max_size=14,
)


@settings(max_examples=60)
@given(BUFFERS)
def test_any_buffers(buffers: list[Buffer]) -> None:
    fit, searched, best = planner_of("best-fit")(buffers), search(buffers, work=200), exact(buffers, work=1_000)
    for packing in (planner_of("naive")(buffers), fit, searched, best):
        check(buffers, packing)
    assert searched.height <= fit.height
    assert best.height <= searched.height or not best.optimal


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4), st.integers(0, 3)), max_size=5))
def test_exact_is_exact(rows) -> None:
    """Against every packing on a grid, for buffers whose sizes are whole cells; it begins with the naive packing."""
    buffers = [Buffer(size, start, start + more, 1) for size, start, more in rows]
    with mock.patch.object(packing_search, "search", lambda buffers, work: PLANNERS["naive"](buffers)):
        packing = exact(buffers, work=20_000)
    check(buffers, packing)
    assert packing.optimal
    assert not fits(buffers, packing.height - 1, ())


def fits(buffers: list[Buffer], height: int, placed: tuple[int, ...]) -> bool:
    """Whether any offsets at all keep the rest below `height`."""
    i = len(placed)
    if i == len(buffers):
        return height >= 0
    for offset in range(height - buffers[i].size + 1):
        clear = all(
            buffers[j].end < buffers[i].start
            or buffers[i].end < buffers[j].start
            or other + buffers[j].size <= offset
            or offset + buffers[i].size <= other
            for j, other in enumerate(placed)
        )
        if clear and fits(buffers, height, (*placed, offset)):
            return True
    return False


def test_exact_says_when_it_gave_up() -> None:
    buffers = rectangle(60, 3)
    packing = exact(buffers, work=200)
    check(buffers, packing)
    assert packing.optimal == (packing.height == CAPACITY * 64)
    assert not packing.optimal


def rectangle(count: int, seed: int) -> list[Buffer]:
    """Buffers that fill a rectangle of CAPACITY x time without a gap: the optimum is its height."""
    random_ = random.Random(seed)
    parts = [(0, CAPACITY, 0, 4 * count)]
    while len(parts) < count:
        candidates = random_.sample(range(len(parts)), min(3, len(parts)))
        i = max(candidates, key=lambda i: (parts[i][1] - parts[i][0]) * (parts[i][3] - parts[i][2]))
        low, high, start, end = parts[i]
        if random_.random() < 0.5 and high - low > 1:
            cut = random_.randrange(low + 1, high)
            parts[i : i + 1] = [(low, cut, start, end), (cut, high, start, end)]
        elif end - start > 1:
            cut = random_.randrange(start + 1, end)
            parts[i : i + 1] = [(low, high, start, cut), (low, high, cut, end)]
    random_.shuffle(parts)
    return [Buffer((high - low) * 64, start, end - 1) for low, high, start, end in parts]


def ratios(counts: range, **budget) -> float:
    """Geometric mean of height over optimum."""
    logs = []
    for seed, count in enumerate(counts):
        buffers = rectangle(count, seed)
        assert lower_bound(buffers) == CAPACITY * 64
        packing = search(buffers, **budget)
        check(buffers, packing)
        logs.append(math.log(packing.height / (CAPACITY * 64)))
    return math.exp(sum(logs) / len(logs))


@pytest.mark.slow
def test_rectangles_are_filled_well_within_a_budget_of_work() -> None:
    assert ratios(range(150, 451, 150), work=4_000) <= 1.25


@pytest.mark.long
def test_rectangles_are_filled_to_a_fifth_in_one_second_each() -> None:
    assert ratios(range(150, 451, 25), seconds=1.0) <= 1.2


def test_search_is_deterministic_and_more_work_is_never_worse() -> None:
    buffers = rectangle(80, 1)
    few, many = search(buffers, work=1_000), search(buffers, work=4_000)
    assert search(buffers, work=1_000) == few
    assert many.height <= few.height <= PLANNERS["best-fit"](buffers).height


def test_names_are_taken_once() -> None:
    with pytest.raises(ValueError, match="'naive' is registered already"):
        register("naive")(lambda buffers: PLANNERS["naive"](buffers))
    with pytest.raises(ValueError, match="no planner is named 'worst-fit'; registered: best-fit, exact, naive, search"):
        planner_of("worst-fit")


def test_a_buffer_is_checked() -> None:
    for arguments in ((-1, 0, 0), (1, 2, 1), (1, 0, 0, 0)):
        with pytest.raises(ValueError, match="expected size >= 0"):
            Buffer(*arguments)


CONTRACT = LaneContract(
    inputs=(Pool("state"), Lane(), Lane(), Lane(), Lane()),
    outputs=(Lane(), Pool("state")),
)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("planner", ["best-fit", "search", "exact"])
def test_plans_are_between_the_lower_bound_and_no_sharing(name: str, planner: str) -> None:
    program = PROGRAMS[name]
    made = plan(program.fn, program.args(4), planner=planner)  # verified there
    assert made.lower_bound <= made.size <= plan(program.fn, program.args(4), planner="naive").size
    assert made.planner == planner


def test_scratch_grows_with_the_lanes() -> None:
    program = PROGRAMS["delta"]
    sizes = scratch_sizes(program.fn, program.args, (1, 2, 8, 64), CONTRACT)
    assert [size.lanes for size in sizes] == [1, 2, 8, 64]
    assert all(size.lower_bound <= size.bytes <= size.naive + 64 * 20 for size in sizes)
    assert sizes[3].bytes >= 8 * sizes[2].lower_bound
    with pytest.raises(ValueError, match=r"args_for\(2\) made arguments for 3 lanes"):
        scratch_sizes(program.fn, lambda n: program.args(n + 1), (2,), CONTRACT)


def test_lane_slices_are_an_equal_share_of_the_bytes() -> None:
    program = PROGRAMS["delta"]
    live = liveness(program.fn, program.args(4))
    axes = {value.variable: 0 for value in live.scratch if value.shape[:1] == (4,)}
    made = plan_liveness(live, lanes=4, lane_axis=axes)
    assert {p.lane_bytes * 4 == p.bytes for p in made.placements if p.lane_bytes is not None} == {True}
    assert len(axes) == sum(p.lane_axis == 0 for p in made.placements)
    assert "B for each lane along axis 0" in made.report()
    with pytest.raises(ValueError, match="has no axis 2 of a multiple of 4 lanes"):
        plan_liveness(live, lanes=4, lane_axis=dict.fromkeys(axes, 2))
    with pytest.raises(ValueError, match="without a number of lanes"):
        plan_liveness(live, lane_axis=axes)


def test_a_redzone_is_reserved_behind_every_value() -> None:
    program = PROGRAMS["layers"]
    made = plan(program.fn, program.args(4), redzone=64)
    (block,) = made.blocks.values()
    everything = (*made.placements, *block.bodies[0][1].placements)
    assert {p.reserved - p.bytes for p in everything} == {64}


def test_the_report_lists_offsets_lines_and_bodies() -> None:
    program = PROGRAMS["layers"]
    report = plan(program.fn, program.args(4)).report()
    assert report.startswith("arena of ")
    assert "bodies of scan.0" in report and "arena_programs.py:" in report
    long = plan(lambda x: jnp.sin(jnp.cos(jnp.tan(x)) + 1) * 2 - 1, (jax.ShapeDtypeStruct((4,), np.float32),))
    assert "and 4 values further up" in long.report(rows=1)

"""Array sizes in memory: packed elements, tiles, and scratch alignment."""

import dataclasses

import jax.numpy as jnp
import pytest
from audited_steps import LANES, Step, right_steps

from ir_passes import Lane, LaneContract, Pool
from ir_passes.xla_audit.audit import audit_executable
from ir_passes.xla_audit.dataflow import live_values
from ir_passes.xla_audit.findings import FindingKind
from ir_passes.xla_audit.memory import scratch_lower_bound
from ir_passes.xla_audit.program import Array

TILE = (8, 128)


@pytest.mark.parametrize(
    ("array", "padded"),
    [
        (Array("f32", (), (), 32, ((128,),)), 4 * 128),
        (Array("f32", (5,), (0,), 32), 4 * 5),
        (Array("f32", (300,), (0,), 32, ((128,),)), 4 * 384),
        (Array("f32", (64, 16), (1, 0), 32, (TILE,)), 4 * 64 * 128),
        (Array("f32", (64, 16), (0, 1), 32, (TILE,)), 4 * 16 * 128),
        (Array("f32", (3, 64, 130), (2, 1, 0), 32, (TILE,)), 4 * 3 * 64 * 256),
        (Array("f32", (16,), (0,), 32, (TILE,)), 4 * 8 * 128),
        (Array("bf16", (9, 100), (1, 0), 16, (TILE, (2, 1))), 2 * 16 * 128),
        (Array("s8", (9, 4, 100), (2, 1, 0), 8, ((-1, 8, 128),)), 5 * 8 * 128),
        (Array("s4", (9, 3), (1, 0), 4), 14),
    ],
    ids=["scalar", "plain", "vector", "rows", "columns", "matrices", "one dimension", "pairs", "joined", "half bytes"],
)  # fmt: skip
def test_bytes_with_whole_tiles(array: Array, padded: int) -> None:
    assert array.padded_bytes == padded


def test_pools_of_int4_have_half_a_byte_for_each_element() -> None:
    contract = LaneContract((Pool("p"), Lane()), (Pool("p"), Lane()))
    step = Step(lambda pool, x: (pool + x, x * x), contract, (jnp.zeros((LANES, 16), jnp.int4),) * 2)
    executable = step.executable()
    pool = executable.module.main.parameters[0]
    assert pool.array.bits == 4 and executable.buffers.slices[pool.id, ()].size == LANES * 16 // 2
    assert step.audit().findings == ()


@pytest.mark.parametrize(("platform", "alignment"), [("cpu", 64), ("gpu", 256), ("tpu", 1 << 14)])
def test_scratch_may_have_a_gap_before_each_value(platform: str, alignment: int) -> None:
    step = right_steps()["gather, compute, scatter"]
    read = dataclasses.replace(step.executable(), platform=platform)
    live = live_values(read)
    largest = int(1.5 * scratch_lower_bound(read, live)) + alignment * len(live.values)
    for size, kinds in ((largest, set[FindingKind]()), (largest + 1, {FindingKind.SCRATCH})):
        report = audit_executable(dataclasses.replace(read, temp_bytes=size), step.bound())
        assert {finding.kind for finding in report.findings} & {FindingKind.SCRATCH} == kinds

"""Every value with a whole pool outside its bytes is found; no other is."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from audited_steps import LANES, Step
from jax import lax
from pool_mutations import COMPUTATIONS, MOVES, ROWS, bound_of, executable_of, kinds_of, mutations

from ir_passes import Lane, LaneContract, PageTable, Pool, Shared, SlotMap
from ir_passes.xla_audit.audit import audit_executable
from ir_passes.xla_audit.findings import Finding, FindingKind

COPY, SECOND = {FindingKind.POOL_COPY}, {FindingKind.SECOND_POOL}
SLOTS = 65


@pytest.mark.parametrize("operation", MOVES)
def test_moved_pools_are_copies_in_every_dtype_and_shape(operation: str) -> None:
    programs = list(mutations(operation))
    assert len(programs) >= 30
    assert [program for program in programs if kinds_of(*program) != COPY] == []
    of_lanes = {program: kinds_of(*program, by_lane=True) for program in programs}
    assert [
        program for program, kinds in of_lanes.items() if kinds != (COPY if program[1] != "numbers" else set())
    ] == []


@pytest.mark.parametrize("operation", COMPUTATIONS)
def test_computed_pools_are_second_pools_unless_every_row_is_a_lanes(operation: str) -> None:
    programs = list(mutations(operation))
    expected = COPY if operation == "select" else SECOND
    assert [program for program in programs if kinds_of(*program) != expected] == []
    assert [program for program in programs if kinds_of(*program, by_lane=True)] == []


@pytest.mark.parametrize("operation", [*MOVES, *COMPUTATIONS])
def test_pools_with_few_rows_are_found_too(operation: str) -> None:
    """A pool may have as many rows as lanes; its copies are no lane rows."""
    expected = SECOND if operation in COMPUTATIONS and operation != "select" else COPY
    for lanes in (ROWS - 1, ROWS):
        for program in mutations(operation):
            number_per_lane = program[1] == "numbers" and lanes == ROWS
            assert kinds_of(*program, lanes=lanes) == (set() if number_per_lane else expected), (program, lanes)


def slotted(*shape: int, dtype: Any = jnp.float32) -> tuple[LaneContract, tuple[Any, ...]]:
    """A contract and arguments of a slotted pool, and one float32 row per lane."""
    contract = LaneContract((Pool("p"), SlotMap("p", shape[0]), Lane()), (Pool("p"), Lane()))
    return contract, (jnp.zeros(shape, dtype), jnp.arange(1, LANES + 1, dtype=jnp.int32), jnp.ones((LANES, *shape[1:])))


def cast_and_set(pool, slots, x):
    return pool.at[slots].set(x.astype(pool.dtype)), x


def sorted_whole(pool, slots, x):
    return pool.at[slots].set(x), x + jnp.sort(pool, axis=0)[slots]


def row_after_row(pool, slots, x):
    def write(i, pool):
        return lax.dynamic_update_slice(pool, x[i].astype(pool.dtype)[None], (slots[i], *[0] * (pool.ndim - 1)))

    return lax.fori_loop(0, LANES, write, pool), x


def findings(fn: Callable[..., Any], contract: LaneContract, args: tuple[Any, ...]) -> tuple[Finding, ...]:
    return Step(fn, contract, args).audit().findings


in_place = pytest.mark.skipif(jax.__version_info__ >= (0, 11), reason="XLA:CPU of jax 0.11 writes bfloat16 in place")
NARROW = [pytest.param(jnp.bfloat16, marks=in_place), jnp.float8_e4m3fn, jnp.int4]


@pytest.mark.parametrize("dtype", NARROW, ids=["bfloat16", "float8", "int4"])
def test_a_scatter_for_which_the_whole_pool_is_converted_is_a_copy(dtype: Any) -> None:
    contract, args = slotted(SLOTS, 16, dtype=dtype)
    result = findings(cast_and_set, contract, args)
    assert [finding.kind for finding in result] == [FindingKind.POOL_COPY]
    assert "float32" in result[0].remedy
    assert findings(row_after_row, contract, args) == ()


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.int8, jnp.bool_, jnp.complex64], ids=lambda dtype: dtype.__name__)
def test_scatters_in_place_are_right(dtype: Any) -> None:
    assert findings(cast_and_set, *slotted(SLOTS, 16, dtype=dtype)) == ()


def test_caches_that_a_product_reads_transposed_are_copies() -> None:
    def step(keys, values, x):
        keys, values = (cache.at[jnp.arange(LANES), 3].set(x) for cache in (keys, values))
        return keys, values, jnp.einsum("nht,nthd->nhd", jnp.einsum("nhd,nthd->nht", x, keys), values)

    contract = LaneContract((Pool("k"), Pool("v"), Lane()), (Pool("k"), Pool("v"), Lane()))
    caches = (jnp.zeros((LANES, 32, 2, 8)),) * 2
    findings = Step(step, contract, (*caches, jnp.ones((LANES, 2, 8))), (0, 1)).audit().findings
    assert [(finding.kind, finding.pools) for finding in findings] == [(FindingKind.POOL_COPY, ("args[0]", "args[1]"))]


def test_a_converted_pool_with_one_number_per_row_is_a_copy() -> None:
    contract, args = slotted(SLOTS, dtype=jnp.float8_e4m3fn)
    assert {finding.kind for finding in findings(cast_and_set, contract, args)} == COPY


def turned_and_read(pool, slots, x):
    turned = lax.optimization_barrier(pool[::-1])
    return pool.at[slots].set(x), x + turned[slots]


def rolled(pool, slots, x):
    moved = lax.optimization_barrier(jnp.concatenate([pool[5:], pool[:5]]))
    return pool.at[slots].set(x), x + moved[slots]


def padded(pool, slots, x):
    wide = lax.optimization_barrier(jnp.pad(pool, [(0, 0), (0, 4)]))
    return pool.at[slots].set(x), x + wide[slots, : x.shape[1]]


def all_but_the_null_row(pool, slots, x):
    real = lax.optimization_barrier(pool[1:])
    return pool.at[slots].set(x), x + real[slots - 1]


def chosen_whole(pool, slots, x):
    masked = lax.optimization_barrier(jnp.where(x[0, 0] > 0, pool, 0.0))
    return pool.at[slots].set(x), x + masked[slots]


def copied_in_a_loop(pool, slots, x):
    def body(i, carry):
        pool, total = carry
        half = lax.optimization_barrier(pool.astype(jnp.bfloat16))
        return pool.at[slots].set(x), total + half[slots + i % 2].astype(jnp.float32)

    return lax.fori_loop(0, 3, body, (pool, x))


def copied_in_a_branch(pool, slots, x):
    read = lambda pool: lax.optimization_barrier(pool.T)[:, slots].T
    rows = lax.cond(x[0, 0] > 0, read, lambda pool: pool[slots], pool)
    return pool.at[slots].set(x), rows


@pytest.mark.parametrize("step", [
    sorted_whole, turned_and_read, rolled, padded, all_but_the_null_row, chosen_whole, copied_in_a_loop,
    copied_in_a_branch,
], ids=lambda step: step.__name__)  # fmt: skip
def test_compiled_steps_that_move_a_whole_pool(step: Callable[..., Any]) -> None:
    result = findings(step, *slotted(SLOTS, 16))
    assert FindingKind.POOL_COPY in {finding.kind for finding in result}
    assert {finding.pools for finding in result} == {("args[0]",)}


def rotary_table(pool, slots, x):
    """16 tokens of 4 lanes have as many angles as 64 rows have numbers."""
    angles = (x[:, :1] + jnp.arange(16.0)[None]).reshape(64, 1) * jnp.arange(1.0, 17.0)[None]
    table = lax.optimization_barrier(jnp.sin(angles))
    return pool.at[slots].add(x), table.reshape(LANES, 16, 16).sum(1)


def as_many_tokens(pool, slots, x):
    wide = jnp.tanh(jnp.tile(pool[slots], (1, 17)).reshape(68, 16) + jnp.arange(16.0)[None])
    new = (wide @ jnp.ones((16, 16))).reshape(LANES, 17, 16).sum(1) + x
    return pool.at[slots].set(new), new


def all_rows_of_the_lanes(pool, slots, x):
    rows = lax.optimization_barrier(pool[slots] * 0.5 + x)
    return pool.at[slots].set(rows), rows


@pytest.mark.parametrize(
    ("step", "slots"),
    [
        (rotary_table, 64), (as_many_tokens, 68), (all_rows_of_the_lanes, LANES + 1), (all_rows_of_the_lanes, LANES),
        (all_rows_of_the_lanes, 3),
    ],
    ids=[
        "rotary table", "as many tokens", "a row for each lane and the null row", "as many lanes as rows", "fewer rows",
    ],
)  # fmt: skip
def test_arrays_of_a_pools_size_that_hold_none_of_it(step: Callable[..., Any], slots: int) -> None:
    assert findings(step, *slotted(slots, 16)) == ()


def test_a_table_that_rows_look_up_is_no_copy_of_the_pool_of_their_numbers() -> None:
    step = lambda token, table, x: (token + 1, x + lax.optimization_barrier(table[token]))
    contract = LaneContract((Pool("token"), Shared(), Lane()), (Pool("token"), Lane()))
    assert findings(step, contract, (jnp.zeros(LANES, jnp.int32), jnp.ones((8, 16)), jnp.ones((LANES, 16)))) == ()


def test_pages_that_a_table_names_are_read() -> None:
    """The pages of all lanes are as many as the pool has."""

    def step(pages, table, x):
        actual = pages[table]
        weights = jax.nn.softmax(jnp.einsum("nd,npsd->nps", x, actual), axis=(1, 2))
        read = jnp.einsum("nps,npsd->nd", weights, actual)
        return pages.at[table[:, 0], 0].set(x + read), read

    contract = LaneContract((Pool("kv"), PageTable("kv", 8), Lane()), (Pool("kv"), Lane()))
    args = (jnp.zeros((8, 4, 16)), jnp.arange(8, dtype=jnp.int32).reshape(LANES, 2), jnp.ones((LANES, 16)))
    assert findings(step, contract, args) == ()


def test_an_allowed_pool_may_be_copied_in_another_dtype() -> None:
    step = Step(cast_and_set, *slotted(SLOTS, 16, dtype=jnp.float8_e4m3fn))
    report = step.audit(may_copy=["args[0]"])
    assert report.findings == () and len(report.copies) == 2
    assert {copy.pools for copy in report.copies} == {("args[0]",)}


def test_a_successor_elsewhere_than_its_alias_is_found() -> None:
    """The program's aliases name the pool's bytes, the buffer assignment names others."""
    text = """
ENTRY main {
  pool = f32[9,8]{1,0} parameter(0)
  slots = s32[9] parameter(1)
  x = f32[9] parameter(2)
  NAME = f32[9,8]{1,0} negate(pool)
  ROOT pool_out = (f32[9,8]{1,0}, f32[9]) tuple(NAME, x)
}"""
    kinds = [
        {finding.kind for finding in audit_executable(executable_of(text.replace("NAME", name)), bound).findings}
        for name in ("pool_new", "new")
        for bound in [bound_of("f32", "vectors", True, LANES)]
    ]
    assert kinds == [set(), {FindingKind.CARRY_MOVED}]

"""Facts of rules' results hold in XLA, for every primitive and dtype."""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from facts.dtype_values import DTYPES, FLOATS
from facts.fact_forms import OFTEN, Form, forms
from facts.fact_operands import Dtype, Named
from facts.fact_world import World, sorted_rows
from jax import lax
from jax.sharding import PartitionSpec as P
from zoo.meshes.sharded import mesh

from ir_passes import IsolationError, Lane, LaneContract, PageTable, Pool, SlotMap, prove_isolation
from ir_passes.jaxpr import ir
from ir_passes.proof.site import interpret
from ir_passes.proof.values import Constant, Permuted, TokenPairs, Value

NARROWEST = "int2", "uint2"
"""Dtypes with gathers and slices that end the process in XLA's CPU compiler."""
SEEN_IN_INTEGERS = """
BroadcastVector Columns Counts Iota OneHot PageEntry Permuted PlusConstant SegmentIds SlotEntry
""".split()
SEEN_IN_FLOATS = "BroadcastVector Columns MaskedOut OneHot".split()
"""Facts of some result, without those that no dtype of few bits can show."""


def drawn(operands: list[list[Named]], rng: np.random.Generator) -> Iterator[list[Named]]:
    """Yield operands: each array with a fact in each place, and arbitrary others."""
    for place, arrays in enumerate(operands):
        for array in [array for array in arrays if array[1].fact is not None] or arrays[:1]:
            chosen = [candidates[int(rng.integers(len(candidates)))] for candidates in operands]
            chosen[place] = array
            yield chosen


def faults(world: World, dtypes: Mapping[str, Dtype], form: Form, names: set[str]) -> Iterator[tuple[Any, ...]]:
    """Yield the facts, bounds and value numbers of a result contradicted by an execution."""
    shapes = [jax.ShapeDtypeStruct(shape, jax.numpy.dtype(dtype)) for dtype, shape in form.operands]
    program, rng, run = ir.trace(form.run, *shapes), np.random.default_rng(len(form.name)), jax.jit(form.run)
    for operands in drawn([dtypes[dtype].operands(shape) for dtype, shape in form.operands], rng):
        prover, values = world.prover(), [value for _, value, _ in operands]
        try:
            results = interpret(prover, program, values)
        except IsolationError:
            continue
        if not any(informative(world, value) for value in results):
            continue
        try:
            executed = jax.tree.leaves(jax.device_get(run(*[array for _, _, array in operands])))
        except Exception:  # XLA's CPU compiler lacks operations in some dtypes
            return
        facts = [value.fact for value in results]
        orders = {fact.order.number for fact in facts if isinstance(fact, Permuted)} - world.orders.keys()
        world.orders |= {number: sorted_rows(operands[0][2]) for number in orders}
        for value, result in zip(results, executed, strict=True):
            names.add(type(value.fact).__name__)
            for fault in world.faults(value, np.asarray(result)):
                yield form.name, form.operands, operands, value, fault
        for number in orders:
            del world.orders[number]


def informative(world: World, value: Value) -> bool:
    """True if an execution can contradict the value."""
    fact = None if isinstance(value.fact, Constant | TokenPairs) else value.fact
    return fact is not None or value.range is not None or value.number in world.arrays


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
@pytest.mark.parametrize(
    "dtype",
    [pytest.param(name, marks=[] if name in OFTEN else pytest.mark.long) for name in DTYPES if name not in NARROWEST],
)
def test_facts_of_results(dtype: str, seed: int) -> None:
    """Also bounds and value numbers of results."""
    facts, primitives = set[str](), set[str]()
    with jax.enable_x64(True):
        world = World(dtype, seed)
        dtypes = {name: Dtype(world, name) for name in {dtype, "bool", "int32"}}
        for form in forms(dtype, OFTEN if dtype in OFTEN else tuple(DTYPES)):
            primitives.add(form.name)
            assert list(faults(world, dtypes, form, facts)) == []
    assert len(primitives) >= 50
    if dtype in ("int32", "float32"):
        assert facts >= {*(SEEN_IN_FLOATS if dtype in FLOATS else SEEN_IN_INTEGERS)}


def test_a_page_plus_a_constant_may_wrap_into_another_lanes_page() -> None:
    def step(pool, table, active, x):
        page = table[:, 0].astype(jnp.uint8)
        beyond_end = (page + jnp.full(page.shape, 200, jnp.uint8)).astype(jnp.int32)
        rows = jnp.where(active > 0, page.astype(jnp.int32), beyond_end)
        return pool.at[rows].set(x, mode="drop", wrap_negative_indices=False)

    contract = LaneContract((Pool("kv"), PageTable("kv", 200), Lane(), Lane()), Pool("kv"))
    args = jnp.zeros((200, 3)), jnp.array([[44, 1], [100, 2]], jnp.int32), jnp.array([1, 0]), jnp.ones((2, 3))
    other = step(*args[:3], args[3].at[1].set(5.0))
    assert (other[44] == 5.0).all(), "the idle lane 1 writes to the page of lane 0"
    with pytest.raises(IsolationError):
        prove_isolation(step, args, contract)


def test_row_0_of_a_device_is_the_null_row_of_the_first_device_alone() -> None:
    def local(pool, slots, active, x):
        rows = slots - lax.axis_index("data") * pool.shape[0]
        return pool.at[jnp.where(active > 0, rows, 0)].set(x, mode="drop", wrap_negative_indices=False)

    def step(*args):
        specs = P("data"), P(), P(), P()
        return jax.shard_map(local, mesh=mesh(2, 1), in_specs=specs, out_specs=specs[0], check_vma=False)(*args)

    contract = LaneContract((Pool("s"), SlotMap("s", 6), Lane(), Lane()), Pool("s"))
    args = jnp.zeros((6, 2)), jnp.array([3, 1], jnp.int32), jnp.array([1, 0]), jnp.ones((2, 2))
    other = jax.jit(step)(*args[:3], args[3].at[1].set(5.0))
    assert (other[3] == 5.0).all(), "the idle lane 1 writes to the row of lane 0"
    with pytest.raises(IsolationError):
        prove_isolation(step, args, contract)

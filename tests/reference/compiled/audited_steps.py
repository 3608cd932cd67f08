"""Small audited steps: right ones, and ones that XLA compiles against their contract."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from as_for_users import compiled
from jax import lax

from ir_passes import Lane, LaneContract, Pool, SlotMap
from ir_passes.contract.contract import BoundContract
from ir_passes.xla_audit.audit import AuditReport, audit_executable
from ir_passes.xla_audit.hlo import read
from ir_passes.xla_audit.program import Executable

SLOTS, LANES, LAYERS, ROW = 9, 4, 3, (4, 16)


@dataclass(frozen=True)
class Step:
    """A step with its contract, example arguments and donated arguments."""

    fn: Callable[..., Any]
    contract: LaneContract
    args: tuple[Any, ...]
    donate: tuple[int, ...] = (0,)

    def compile(self) -> jax.stages.Compiled:
        return compiled(jax.jit(self.fn, donate_argnums=self.donate).lower(*self.args))

    def bound(self) -> BoundContract:
        return self.contract.bind(self.fn, self.args)

    def executable(self) -> Executable:
        return read(self.compile())

    def audit(self, **options: Any) -> AuditReport:
        return audit_executable(self.executable(), self.bound(), **options)


ONE = LaneContract(inputs=(Pool("p"), SlotMap("p", SLOTS), Lane()), outputs=(Pool("p"), Lane()))
STACKED = LaneContract(inputs=(Pool("p", axis=1), SlotMap("p", SLOTS), Lane()), outputs=(Pool("p", axis=1), Lane()))
ROWS = LaneContract(inputs=(Pool("p"), Lane(), Lane()), outputs=(Pool("p"), Lane()))
TWO = LaneContract(
    inputs=(Pool("a"), Pool("b"), SlotMap(("a", "b"), SLOTS), Lane()), outputs=(Pool("a"), Pool("b"), Lane())
)
TWO_SWAPPED = LaneContract(inputs=TWO.inputs, outputs=(Pool("b"), Pool("a"), Lane()))


pool = lambda: jnp.zeros((SLOTS, *ROW))
stacked = lambda: jnp.zeros((LAYERS, SLOTS, *ROW))
slots = lambda: jnp.arange(1, LANES + 1, dtype=jnp.int32)
x = lambda: jnp.ones((LANES, *ROW))
two_pools = lambda a, b, slots, x: (a.at[slots].add(x), b.at[slots].set(x * 2.0), x.sum((1, 2)))


def gather_compute_scatter(pool, slots, x):
    rows = pool[slots] * 0.5 + x
    return pool.at[slots].set(rows), jnp.tanh(rows).sum((1, 2))


def per_sequence_loop(pool, slots, x):
    sums = []
    for i in range(LANES):
        row = lax.dynamic_slice(pool, (slots[i], 0, 0), (1, *ROW)) * 0.5 + x[i : i + 1]
        pool = lax.dynamic_update_slice(pool, row, (slots[i], 0, 0))
        sums.append(row.sum())
    return pool, jnp.stack(sums)


def fori_loop(pool, slots, x):
    def body(i, pool):
        row = lax.dynamic_slice(pool, (slots[i], 0, 0), (1, *ROW)) * 0.5 + x[i][None]
        return lax.dynamic_update_slice(pool, row, (slots[i], 0, 0))

    return lax.fori_loop(0, LANES, body, pool), x.sum((1, 2))


def pool_as_carry(pools, slots, x):
    def body(carry, layer):
        pools, x = carry
        rows = pools[layer, slots] * 0.5 + x
        return (pools.at[layer, slots].set(rows), jnp.tanh(rows)), None

    (pools, x), _ = lax.scan(body, (pools, x), jnp.arange(LAYERS, dtype=jnp.int32))
    return pools, x


def pool_as_xs(pools, slots, x):
    def body(x, pool):
        rows = pool[slots] * 0.5 + x
        return jnp.tanh(rows), pool.at[slots].set(rows)

    x, pools = lax.scan(body, x, pools)
    return pools, x


def row_pool(pool, alive, x):
    read = jnp.einsum("nhk,nhk->nh", pool, x)
    rows = jnp.where(alive[:, None, None], pool * 0.5 + read[:, :, None] * x, pool)
    return rows, rows @ jnp.ones((16, 2))


def row_pool_twice(pool, alive, x):
    """XLA recomputes new rows for the sum, so it also reads the old pool."""
    rows = pool * 0.5 + x
    return jnp.where(alive[:, None, None], rows, pool), rows.sum((1, 2))


def branches(pool, slots, x):
    rows = lax.cond(
        slots[0] > 2, lambda r: jnp.sin(r) @ jnp.ones((16, 16)), lambda r: r[:, ::-1] * 2.0, pool[slots] + x
    )
    return pool.at[slots].set(rows), rows.sum((1, 2))


def two_pools_swapped(a, b, slots, x):
    a, b, sums = two_pools(a, b, slots, x)
    return b, a, sums


def copied_whole(pool, slots, x):
    """The old pool is still read when the new one is written."""
    new = pool.at[slots].set(x)
    return new, (pool[::-1].sum() + new.sum()) * x.sum((1, 2))


def masked_whole(pool, slots, x):
    """Compute every slot, also those without lane."""
    chosen = (jnp.arange(SLOTS, dtype=jnp.int32)[None] == slots[:, None]).astype(jnp.float32)
    spread = jnp.einsum("ns,nhk->shk", chosen, x)
    return jnp.where(chosen.sum(0)[:, None, None] > 0, spread, pool), x.sum((1, 2))


def right_steps() -> dict[str, Step]:
    item = (pool(), slots(), x())
    return {
        "gather, compute, scatter": Step(gather_compute_scatter, ONE, item),
        "loop over lanes": Step(fori_loop, ONE, item),
        "pool as carry": Step(pool_as_carry, STACKED, (stacked(), slots(), x())),
        "row pool": Step(row_pool, ROWS, (jnp.zeros((LANES, *ROW)), jnp.ones(LANES, bool), x())),
        "branches": Step(branches, ONE, item),
        "two pools": Step(two_pools, TWO, (pool(), pool() + 1.0, slots(), x()), (0, 1)),
    }

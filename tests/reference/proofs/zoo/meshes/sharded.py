"""Steps over a mesh: lanes along `data`, heads along `model`, a sum over `model` alone."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from zoo.program import HEADS, HIDDEN, KEY, LANES, SLOTS, VALUE, Program, normal, slot_map, weight

from ir_passes import Lane, LaneContract, Pool, Shared, SlotMap

STATE = Pool("seq", dims=("row", "head", "key", "value"))
ROWS = LaneContract(inputs=(Shared(), STATE, Lane(), Lane(role="length")), outputs=(Lane(), STATE))
SLOTTED = LaneContract(inputs=(Shared(), STATE, SlotMap("seq", SLOTS), Lane()), outputs=(Lane(), STATE))
PARAMS = {"qkv": P("model"), "out": P(None, "model")}
ROW_SPECS = (PARAMS, P("data", "model"), P("data"), P("data"))
ROW_RESULTS = (P("data"), P("data", "model"))


def weights(rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {"qkv": weight(rng, HEADS, 2 * KEY + VALUE, HIDDEN), "out": weight(rng, HIDDEN, HEADS, VALUE)}


def draw(rng: np.random.Generator) -> tuple[Any, ...]:
    lengths = rng.integers(0, 2, LANES).astype(np.int32)
    return weights(rng), normal(rng, LANES, HEADS, KEY, VALUE), normal(rng, LANES, HIDDEN), lengths


def draw_slots(rng: np.random.Generator) -> tuple[Any, ...]:
    return weights(rng), normal(rng, SLOTS, HEADS, KEY, VALUE), slot_map(rng), normal(rng, LANES, HIDDEN)


@functools.cache
def mesh(*shape: int) -> Mesh:
    names = ("data", "model")[-len(shape) :]
    return Mesh(np.array(jax.devices()[: int(np.prod(shape))]).reshape(shape), names)


def recur(w, state, x):
    """The heads that are here: state [n, h, K, V]; their part of the output."""
    q, k, v = jnp.split(jnp.einsum("hcd,nd->nhc", w["qkv"], x), [KEY, 2 * KEY], axis=-1)
    state = 0.9 * state + k[..., None] * v[:, :, None]
    return state, jnp.einsum("dhv,nhkv,nhk->nd", w["out"], state, q)


def local_rows(w, state, x, lengths):
    new, part = recur(w, state, x)
    return lax.psum(part, "model"), jnp.where((lengths > 0)[:, None, None, None], new, state)


def local_slots(w, state, slots, x):
    rows, part = recur(w, state[slots], x)
    return lax.psum(part, "model"), state.at[slots].set(rows)


def scattered_rows(w, state, x, lengths):
    """The sum over heads as reduce-scatter and all-gather along the hidden dimension."""
    new, part = recur(w, state, x)
    part = jnp.pad(part, ((0, 0), (0, 1)))
    part = lax.psum_scatter(part, "model", scatter_dimension=1, tiled=True)
    y = lax.all_gather(part, "model", axis=1, tiled=True)[:, :HIDDEN]
    return y, jnp.where((lengths > 0)[:, None, None, None], new, state)


def next_device(count: int) -> list[tuple[int, int]]:
    return [(device, (device + 1) % count) for device in range(count)]


def over_rows(local: Callable[..., Any], check_vma: bool = True, data: int = 2) -> Callable[..., Any]:
    """`local` on `data` by two devices."""

    def step(w, state, x, lengths):
        run = jax.shard_map(local, mesh=mesh(data, 2), in_specs=ROW_SPECS, out_specs=ROW_RESULTS, check_vma=check_vma)
        return run(w, state, x, lengths)

    return step


def slots_step(w, state, slots, x):
    """Both devices have the same lanes and slots, and a head each."""
    heads = P(None, "model")
    run = jax.shard_map(local_slots, mesh=mesh(2), in_specs=(PARAMS, heads, P(), P()), out_specs=(P(), heads))
    return run(w, state, slots, x)


PROGRAMS = (
    Program("sharded rows and heads", over_rows(local_rows), ROWS, draw),
    Program("sharded rows and heads, a lane on each", over_rows(local_rows, data=LANES), ROWS, draw),
    Program("sharded rows, scattered sum", over_rows(scattered_rows, check_vma=False), ROWS, draw),
    Program("sharded heads behind a slot map", slots_step, SLOTTED, draw_slots),
)

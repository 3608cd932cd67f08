"""Faults at the border of `shard_map`: misread inputs and outputs."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P
from mutants.mutant import Evidence, Kind, wrong
from zoo.meshes.sharded import local_rows, mesh, next_device, over_rows
from zoo.program import HIDDEN, LANES, SLOTS, VALUE, normal, slot_map, weight

from ir_passes import Lane, LaneContract, Pool, Shared, SlotMap

SHARDED, SIZE = "sharded rows and heads", 4
ROWS = LaneContract(inputs=(Shared(), Pool("seq"), Lane(), Lane(role="length")), outputs=(Lane(), Pool("seq")))
SLOTTED = LaneContract(inputs=(Shared(), Pool("seq"), SlotMap("seq", SLOTS), Lane()), outputs=(Lane(), Pool("seq")))


def draw(rng):
    """State with two equal axes, splittable over either mesh axis."""
    state = normal(rng, LANES, SIZE, SIZE)
    return weight(rng, SIZE, HIDDEN), state, normal(rng, LANES, HIDDEN), rng.integers(0, 2, LANES).astype("int32")


def draw_slots(rng):
    return weight(rng, VALUE, HIDDEN), normal(rng, SLOTS, VALUE), slot_map(rng), normal(rng, LANES, HIDDEN)


def chosen_inside(w, state, x, lengths):
    """Values decide a row's move; both alternatives come from outside."""
    new = 0.5 * state + (x @ w.T)[:, :, None]
    run = jax.shard_map(
        lambda old, new: jnp.where(new > 0, new, old), mesh=mesh(2), in_specs=(P("model"), P("model")),
        out_specs=P("model"),
    )  # fmt: skip
    return x, run(state, new)


def blocks_exchanged(w, state, x, lengths):
    """State enters split on its first axis and leaves split on its second."""

    local = lambda state, new, lengths: jnp.where((lengths > 0)[:, None, None], new, state)
    new = 0.5 * state + (x @ w.T)[:, :, None]
    target, result = P(None, "data", "model"), P(None, "model", "data")
    run = jax.shard_map(local, mesh=mesh(2, 2), in_specs=(target, target, P()), out_specs=result, check_vma=False)
    return x, run(state, new, lengths)


def every_device_its_own(w, pool, slots, x):
    """Devices write their lanes' rows in full copies; one copy survives."""

    def local(w, pool, slots, x):
        rows = 0.5 * pool[slots] + x @ w.T
        return rows, pool.at[slots].set(rows)

    lanes = P("model")
    run = jax.shard_map(local, mesh=mesh(2), in_specs=(P(), P(), lanes, lanes), out_specs=(lanes, P()), check_vma=False)
    return run(w, pool, slots, x)


def draw_many(rng):
    """Four lanes for each of two devices."""
    x = normal(rng, 2 * LANES, HIDDEN)
    return weight(rng, SIZE, HIDDEN), normal(rng, 2 * LANES, SIZE), x, rng.integers(0, 2, 2 * LANES).astype("int32")


def first_lanes_of_each(w, state, x, lengths):
    """Three lanes of each device return as the first six."""
    run = jax.shard_map(lambda x: x[:3], mesh=mesh(2), in_specs=P("model"), out_specs=P("model"))
    return jnp.concatenate([x[:6] + run(x), x[6:]]), state


def six_lanes_split(w, state, x, lengths):
    """Six split lanes meet lanes that are four on each device."""
    run = jax.shard_map(
        lambda some, x: some + x[:3], mesh=mesh(2), in_specs=(P("model"), P("model")), out_specs=P("model")
    )
    return jnp.concatenate([run(x[:6], x), x[6:]]), state


def passed_on_twice(w, state, x, lengths):
    """Rows sent to the next device are sent on, not back."""
    x = lax.ppermute(jnp.tanh(lax.ppermute(x, "data", next_device(4))), "data", next_device(4))
    return local_rows(w, state, x, lengths)


def met_while_away(w, state, x, lengths):
    """Lanes that are away meet the ones that are at home there."""
    target = lax.ppermute(x, "data", next_device(2)) + x
    return local_rows(w, state, lax.ppermute(target, "data", next_device(2)), lengths)


def half_sent_back(w, state, x, lengths):
    """Every other exchanged piece is reversed before its return."""
    target = lax.all_to_all(x, "data", 0, 0, tiled=True)
    return local_rows(w, state, lax.all_to_all(target[::-1], "data", 0, 0, tiled=True), lengths)


def exchanged_by_counts(w, state, x, lengths):
    """Rows stay at their expert's device; counts are known at run time."""
    counts = jnp.array([1, 1], jnp.int32)
    target = lax.ragged_all_to_all(x, jnp.zeros_like(x), counts - 1, counts, counts - 1, counts, axis_name="model")
    return local_rows(w, state, target, lengths)


def reversed_by_devices(w, state, x, lengths):
    """Each device reverses its lanes; outside all lanes are reversed."""
    run = jax.shard_map(lambda x: x[::-1], mesh=mesh(2), in_specs=P("model"), out_specs=P("model"))
    return run(x)[::-1], state


MUTANTS = (
    wrong(SHARDED, "exchanged-by-counts", "JAX",
        "rows are sent to other devices by run-time counts, and taken for the lanes' own",
        over_rows(exchanged_by_counts, check_vma=False), Kind.UNKNOWN, evidence=Evidence.TRACED),
    wrong(SHARDED, "passed-on-twice", "JAX", "what was sent to the next device goes on instead of back",
        over_rows(passed_on_twice, data=4), Kind.COLLECTIVE, Kind.CROSS_LANE),
    wrong(SHARDED, "met-while-away", "JAX", "lanes that were sent to another device meet those of that device",
        over_rows(met_while_away), Kind.COLLECTIVE, Kind.CROSS_LANE),
    wrong(SHARDED, "turned-while-away", "JAX", "lanes that were exchanged piece by piece come back in another order",
        over_rows(half_sent_back), Kind.COLLECTIVE, Kind.CROSS_LANE),
    wrong(SHARDED, "reversed-by-devices", "JAX",
        "lanes are reversed on each device, and those of all devices are reversed back", reversed_by_devices,
        Kind.COLLECTIVE, Kind.CROSS_LANE, contract=ROWS, draw=draw_many),
    wrong(SHARDED, "first-lanes-of-each", "JAX",
        "some lanes of each device are put together as if they were the first ones", first_lanes_of_each,
        Kind.COLLECTIVE, Kind.CROSS_LANE, contract=ROWS, draw=draw_many),
    wrong(SHARDED, "six-lanes-split", "JAX", "a part of the lanes is split over devices and meets all of them",
        six_lanes_split, Kind.CROSS_LANE, contract=ROWS, draw=draw_many),
    wrong(SHARDED, "chosen-inside", "ROCm/ATOM#1436",
        "idle lanes move on by a choice between two arrays that enter a shard_map", chosen_inside, Kind.IDLE,
        contract=ROWS, draw=draw),
    wrong(SHARDED, "blocks-exchanged", "JAX", "blocks of idle lanes' rows come back from devices at other places",
        blocks_exchanged, Kind.IDLE, contract=ROWS, draw=draw),
    wrong("sharded heads behind a slot map", "every-device-its-own", "JAX",
        "every device writes its lanes' rows to its own copy of the pool", every_device_its_own, Kind.COLLECTIVE,
        contract=SLOTTED, draw=draw_slots, evidence=Evidence.FAULT),
)  # fmt: skip

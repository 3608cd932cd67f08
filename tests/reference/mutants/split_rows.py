"""Faults over a mesh: rows of pools that are split over devices, and collectives that not all devices reach."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import PartitionSpec as P
from mutants.mutant import Evidence, Kind, Mutant, wrong
from zoo.experts import TOP, route
from zoo.program import slot_map
from zoo.sharded_experts import SPECS as EXPERT_SPECS
from zoo.sharded_experts import mixed
from zoo.sharded_rows import COPY_SPECS, SOURCE, SPLIT, TARGET, WHOLE, draw, gathered, here, local_copy, over, put

from ir_passes import LaneContract, Pool, SlotMap

COPIED, ADVANCED = "sharded rows copied", "sharded rows advanced"
LEAK, FAULT = Evidence.LEAK, Evidence.FAULT
MIXES = (Kind.COLLECTIVE,)
ROW = (Kind.WRONG_ROW,)
LARGER = LaneContract(
    inputs=(
        Pool("target"),
        Pool("source"),
        SlotMap("source", SOURCE, role="read"),
        SlotMap("target", SOURCE, role="write"),
    ),
    outputs=(Pool("target"),),
)


def draw_larger(rng: np.random.Generator) -> tuple[Any, ...]:
    target, source, read, _ = draw(rng)
    return target, source, read, slot_map(rng, slots=SOURCE)


def _nothing(pool: Array) -> int:
    return 0


def copy(
    read_less: Callable[[Array, Array], Array] = here,
    write_less: Callable[[Array, Array], Array] = here,
    total: Callable[[Array], Array] = lambda row: lax.psum(row, "data"),
    read: dict | None = None,
    write: dict | None = None,
) -> Callable[..., tuple[Array]]:
    """The copy of rows with some of its parts replaced."""
    fill = {"mode": "fill", "fill_value": 0, "wrap_negative_indices": False} | (read or {})
    drop = {"mode": "drop", "wrap_negative_indices": False} | (write or {})

    def local(target, source, reads, writes):
        row = total(source.at[read_less(reads, source)].get(**fill))
        return (target.at[write_less(writes, target)].set(row, **drop),)

    return local


def less(times: Callable[[Array], Array | int], axis: str = "data") -> Callable[[Array, Array], Array]:
    """Row numbers less this many rows for each device before."""
    return lambda rows, pool: rows - lax.axis_index(axis) * times(pool)


def summed_pool(target, source, read, write):
    """The rows of both devices are added up, to be found on each of them."""
    both = lax.psum(source, "data")
    return (put(target, write, both.at[read % both.shape[0]].get(mode="fill", fill_value=0)),)


def first_device_first(pool, slots, x, lengths):
    """The first device sums before it does anything else, the others after; collectives pair up by their order."""
    there = lax.pcast(x, "data", to="varying")

    def after():
        return lax.psum(jnp.tanh(there), "data") * 0.5 + gathered(pool, slots)

    def before():
        rows = gathered(pool, slots)
        return lax.psum(jnp.tanh(there), "data") * 0.5 + rows

    rows = lax.cond(lax.axis_index("data") == 0, before, after)
    return x, put(pool, slots, rows)


def idle_device_skips(pool, slots, x, lengths):
    """A device without an active lane of its own leaves the sum of the weights' parts to the others."""
    part = lax.pcast(jnp.ones(x.shape[1]), "data", to="varying")
    bias = lax.cond(jnp.any(lengths > 0), lambda: lax.psum(part, "data"), lambda: jnp.ones(x.shape[1]))
    return x + bias[None], pool


def replay_by_device(pool, slots, x, lengths):
    """Each device replays as many tokens as it has kept itself, with a sum over all devices for each."""
    count = lax.axis_index("data") + 1
    rows = lax.pcast(gathered(pool, slots), "data", to="varying")

    def once(carry):
        return carry[0] + 1, lax.pcast(lax.psum(carry[1], "data") * 0.5, "data", to="varying")

    rows = lax.while_loop(lambda carry: carry[0] < count, once, (lax.pcast(jnp.int32(0), "data", to="varying"), rows))
    return x, put(pool, slots, rows[1])


def orders_of_their_own(w, state, x):
    """Each device sorts rows by what its own columns say, and rows are added up in those orders."""
    state = 0.9 * state + x
    chosen, _ = route(w, jnp.tanh(state))
    mine = jnp.argmax(jnp.tanh(state) @ w["up"][:, :, 0].T, axis=-1).astype(jnp.int32)
    return x + jnp.einsum("nkd,nk->nd", mixed(w, jnp.tanh(state), jnp.repeat(mine, TOP)), chosen), state


def ties_of_their_own(w, state, x):
    """Each device may put rows of one expert in another order."""
    state = 0.9 * state + x
    chosen, expert = route(w, jnp.tanh(state))
    return x + jnp.einsum("nkd,nk->nd", mixed(w, jnp.tanh(state), expert.reshape(-1), stable=False), chosen), state


def _copy(id: str, why: str, *kinds: Kind, leaks: bool = True, after: str = "JAX", **parts: Any) -> Mutant:
    step = over(copy(**parts), *COPY_SPECS, check_vma=False)
    return wrong(COPIED, id, after, why, step, *kinds, evidence=LEAK if leaks else FAULT)


def _apart(id: str, after: str, why: str, local: Callable[..., tuple], lanes: P = WHOLE) -> Mutant:
    """Devices that meet at other collectives, or do not meet: such a step never ends."""
    of_lane = P(*lanes[:1])
    step = over(local, SPLIT, P(), lanes, of_lane, (lanes, SPLIT))
    return wrong(ADVANCED, id, after, why, step, Kind.COLLECTIVE, evidence=Evidence.TRACED)


MUTANTS = (
    _copy("row-of-each-device", "row s is read on every device, whosever it is there", *ROW, read_less=less(_nothing)),
    _copy("written-on-each-device", "row s is written on every device", *ROW, write_less=less(_nothing)),
    _copy(
        "other-pools-rows",
        "the rows of the target's devices are subtracted from the source's",
        *ROW,
        read_less=less(lambda pool: TARGET // 2),
    ),
    _copy(
        "other-pools-rows-written",
        "the rows of the source's devices are subtracted from the target's",
        *ROW,
        write_less=less(lambda pool: SOURCE // 2),
    ),
    _copy(
        "place-along-another-axis",
        "a device takes its place among heads for that among rows",
        *ROW,
        read_less=less(lambda pool: pool.shape[0], "model"),
    ),
    _copy(
        "row-beyond-clamped",
        "a row of another device is read as the nearest of this one",
        Kind.BOUNDS,
        *ROW,
        read={"mode": "clip", "fill_value": None},
    ),
    _copy(
        "write-beyond-clamped",
        "a row of another device is written to the nearest of this one",
        Kind.BOUNDS,
        *ROW,
        write={"mode": "clip"},
    ),
    _copy(
        "row-before-wraps",
        "a row of the device before is read from the end",
        *ROW,
        read={"wrap_negative_indices": True},
    ),
    _copy(
        "write-before-wraps",
        "a row of the device before is written to the end",
        *ROW,
        write={"wrap_negative_indices": True},
    ),
    _copy("filled-with-one", "devices without a row give ones for it", *MIXES, leaks=False, read={"fill_value": 1}),
    _copy("filled-with-nan", "devices without a row give nan for it", *MIXES, leaks=False, read={"fill_value": None}),
    _copy(
        "sum-left-out",
        "what a device has of a row is taken for the row",
        *MIXES,
        leaks=False,
        total=lambda row: row,
        after="SGLang#14811",
    ),
    _copy(
        "greatest-for-sum",
        "the greatest of a row and zeros is taken for it",
        *MIXES,
        leaks=False,
        total=lambda row: lax.pmax(row, "data"),
    ),
    _copy(
        "mean-for-sum",
        "the mean of a row and zeros is taken for it",
        *MIXES,
        leaks=False,
        total=lambda row: lax.psum(row / 2, "data"),
    ),
    _copy(
        "summed-over-heads",
        "a row is summed over the devices that have its heads",
        *MIXES,
        leaks=False,
        total=lambda row: lax.psum(row, "model"),
    ),
    wrong(
        COPIED,
        "lanes-split-too",
        "JAX",
        "lanes are split over the devices that split rows, and their rows added up",
        over(local_copy, SPLIT, SPLIT, P("data"), P("data"), (SPLIT,), check_vma=False),
        *MIXES,
    ),
    wrong(
        COPIED,
        "pools-added-up",
        "JAX",
        "all rows of a pool are added to those of the other device",
        over(summed_pool, *COPY_SPECS),
        *MIXES,
        *ROW,
    ),
    wrong(
        COPIED,
        "rows-leave-as-heads",
        "SGLang#22060",
        "rows come back where heads should, and heads as rows",
        over(local_copy, *COPY_SPECS[:-1], (P("model", "data"),), check_vma=False),
        *MIXES,
    ),
    wrong(
        COPIED,
        "devices-have-fewer-rows",
        "tpu-inference#3565",
        "the host hands out more rows than devices have",
        over(local_copy, *COPY_SPECS),
        Kind.BOUNDS,
        contract=LARGER,
        draw=draw_larger,
        evidence=FAULT,
    ),
    wrong(
        "sharded experts, summed in their order",
        "orders-of-their-own",
        "JAX",
        "rows are summed over devices each of which has sorted them by keys of its own",
        over(orders_of_their_own, *EXPERT_SPECS),
        *MIXES,
    ),
    wrong(
        "sharded experts, summed in their order",
        "ties-of-their-own",
        "JAX",
        "rows are summed over devices each of which may order equal keys otherwise",
        over(ties_of_their_own, *EXPERT_SPECS),
        *MIXES,
        evidence=FAULT,
    ),
    _apart(
        "order-by-device",
        "Atlas#101",
        "the first device calls its collectives in another order than the others",
        first_device_first,
    ),
    _apart(
        "idle-device-skips",
        "vLLM#41862",
        "a device without active lanes skips a collective",
        idle_device_skips,
        P("data"),
    ),
    _apart(
        "replay-by-device",
        "Atlas#969",
        "devices replay different numbers of tokens, with a collective for each",
        replay_by_device,
    ),
)

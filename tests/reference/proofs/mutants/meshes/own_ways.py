"""Devices diverge around a collective, or number other rows."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P
from mutants.mutant import Evidence, Kind, Mutant, wrong
from zoo.experts import TOP, route
from zoo.meshes.sharded_experts import SPECS as EXPERT_SPECS
from zoo.meshes.sharded_experts import mixed
from zoo.meshes.sharded_rows import SOURCE, SPLIT, WHOLE, draw_advanced, gathered, here, over, put

from ir_passes import Lane, LaneContract, Pool, Shared, SlotMap, declassify

ADVANCED = "sharded rows advanced"


def first_device_first(pool, slots, x, lengths):
    """The first device sums first; collectives pair by order."""
    value = lax.pcast(x, "data", to="varying")
    later_sum = lambda: lax.psum(jnp.tanh(value), "data") * 0.5 + gathered(pool, slots)

    def before():
        rows = gathered(pool, slots)
        return lax.psum(jnp.tanh(value), "data") * 0.5 + rows

    rows = lax.cond(lax.axis_index("data") == 0, before, later_sum)
    return x, put(pool, slots, rows)


def idle_device_skips(pool, slots, x, lengths):
    """A device without active lanes skips the weights' sum."""
    part = lax.pcast(jnp.ones(x.shape[1]), "data", to="varying")
    bias = lax.cond(jnp.any(lengths > 0), lambda: lax.psum(part, "data"), lambda: jnp.ones(x.shape[1]))
    return x + bias[None], pool


def replay_by_device(pool, slots, x, lengths):
    """Each device replays its own token count, summing over devices each time."""
    count = lax.axis_index("data") + 1
    rows = lax.pcast(gathered(pool, slots), "data", to="varying")
    single = lambda carry: (carry[0] + 1, lax.pcast(lax.psum(carry[1], "data") * 0.5, "data", to="varying"))
    rows = lax.while_loop(lambda carry: carry[0] < count, single, (lax.pcast(jnp.int32(0), "data", to="varying"), rows))
    return x, put(pool, slots, rows[1])


def orders_of_their_own(w, state, x):
    """Each device sorts rows by own columns, then adds them."""
    state = 0.9 * state + x
    chosen, _ = route(w, jnp.tanh(state))
    array = jnp.argmax(jnp.tanh(state) @ w["up"][:, :, 0].T, axis=-1).astype(jnp.int32)
    return x + jnp.einsum("nkd,nk->nd", mixed(w, jnp.tanh(state), jnp.repeat(array, TOP)), chosen), state


def ties_of_their_own(w, state, x):
    """Each device may put rows of one expert in another order."""
    state = 0.9 * state + x
    chosen, expert = route(w, jnp.tanh(state))
    return x + jnp.einsum("nkd,nk->nd", mixed(w, jnp.tanh(state), expert.reshape(-1), stable=False), chosen), state


def another_devices_choice(pool, slots, x):
    """Each device's first lane decides whether lane 0's row is written."""
    row = here(slots[:1], pool)
    begun = lax.cond(x[0, 0] > 0, lambda: pool.at[row].set(1.0, mode="drop", wrap_negative_indices=False), lambda: pool)
    return x, begun


def by_scatter(x):
    return lax.psum_scatter(jnp.arange(2), "data", tiled=True)[0] // 2


def by_exchange(x):
    return lax.all_to_all(jnp.arange(2), "data", 0, 0, tiled=True)[0]


def by_permutation(x):
    return lax.ppermute(jnp.int32(1), "data", [(0, 1)])


def by_declassified(x):
    """Each device declassifies the greatest element of its own channels."""
    return declassify(jnp.argmax(lax.psum_scatter(x[0, :2], "data", tiled=True) < x[0, :2]), "a test")


def _summed_at(row: Any, x: Any) -> Any:
    """Sum the rows that devices select, and put the sum to each device's row."""
    return lax.psum(jnp.zeros_like(x).at[row].set(lax.psum(x[row], "data")), "data")


def of_previous_turn(x, row):
    """The row of the next iteration is the device's number."""
    turn = lambda row, _: (lax.axis_index("data").astype(jnp.int32), _summed_at(row, x))
    return lax.scan(turn, row, None, length=2)[1][1]


def by_device(starts):
    return lax.axis_index("data") * 2


def by_part(starts):
    return starts[0]


def whole_block(block):
    return block


def row_of_block(block):
    return jnp.zeros_like(block).at[1].set(block[1])


def _exchanged(id: str, why: str, start: Any, exchange: Any, part: Any = whole_block) -> Mutant:
    """Blocks of rows at a start for each device, exchanged and put back there."""

    def local(starts, x):
        place = (start(starts), 0)
        block = exchange(part(lax.dynamic_slice(x, place, (2, x.shape[1]))))
        return lax.dynamic_update_slice(x, block, place)[None]

    contract = LaneContract(inputs=(Shared(), Lane()), outputs=Lane(axis=1))
    draw = lambda rng: (np.arange(0, 4, 2, dtype=np.int32), draw_advanced(rng)[2])
    step = over(local, P("data"), P(), P("data"), check_vma=False)
    return wrong(ADVANCED, id, "JAX", why, step, Kind.COLLECTIVE, contract=contract, draw=draw)


def _swapped(block):
    return lax.ppermute(block, "data", [(0, 1), (1, 0)])


def _numbered(id: str, why: str, row: Callable[..., Any]) -> Mutant:
    step = over(lambda x: _summed_at(row(x), x), P(), P(), check_vma=False)
    contract = LaneContract(inputs=(Lane(),), outputs=Lane())
    draw = lambda rng: draw_advanced(rng)[2:3]
    return wrong(ADVANCED, id, "JAX", why, step, Kind.COLLECTIVE, contract=contract, draw=draw)


def draw_choice(rng: np.random.Generator) -> tuple[Any, ...]:
    pool, slots, x, _ = draw_advanced(rng)
    return pool, slots, x


def _apart(id: str, source_text: str, why: str, local: Callable[..., tuple], lanes: P = WHOLE) -> Mutant:
    """Devices that meet at other collectives, or do not meet: such a step never ends."""
    of_lane = P(*lanes[:1])
    step = over(local, SPLIT, P(), lanes, of_lane, (lanes, SPLIT))
    return wrong(ADVANCED, id, source_text, why, step, Kind.COLLECTIVE, evidence=Evidence.TRACED)


MUTANTS = (
    wrong("sharded experts, summed in their order", "orders-of-their-own", "JAX",
          "rows are summed over devices each of which has sorted them by keys of its own",
          over(orders_of_their_own, *EXPERT_SPECS), Kind.COLLECTIVE),
    wrong("sharded experts, summed in their order", "ties-of-their-own", "JAX",
          "rows are summed over devices each of which may order equal keys otherwise",
          over(ties_of_their_own, *EXPERT_SPECS), Kind.COLLECTIVE, evidence=Evidence.FAULT),
    wrong(
        ADVANCED,
        "another-devices-choice",
        "JAX",
        "the first lane of each device decides whether the row of lane 0 is written",
        over(another_devices_choice, P("data"), P(), P("data"), (P("data"), P("data"))),
        Kind.CROSS_LANE,
        contract=LaneContract(
            inputs=(Pool("source"), SlotMap("source", SOURCE), Lane()), outputs=(Lane(), Pool("source"))
        ),
        draw=draw_choice,
    ),
    _numbered("row-by-scatter", "devices sum rows whose numbers they get from a sum in parts", by_scatter),
    _numbered("row-by-exchange", "devices sum rows whose numbers they exchange", by_exchange),
    _numbered("row-by-permutation", "devices sum rows whose numbers are sent to some of them", by_permutation),
    _numbered("row-by-declassified", "devices sum rows whose numbers they declassify", by_declassified),
    wrong(ADVANCED, "row-of-previous-turn", "JAX", "devices sum rows whose numbers they carry from the last iteration",
          over(of_previous_turn, P(), P(), P(), check_vma=False), Kind.COLLECTIVE,
          contract=LaneContract(inputs=(Lane(), Shared()), outputs=Lane()),
          draw=lambda rng: (draw_advanced(rng)[2], np.int32(0))),
    _exchanged("blocks-exchanged-by-device", "devices exchange blocks of rows at own places", by_device, _swapped),
    _exchanged("blocks-by-part", "devices exchange blocks at places that they get in parts", by_part, _swapped),
    _exchanged("blocks-summed", "devices sum blocks of rows at their own places", by_device,
               lambda block: lax.psum(block, "data")),
    _exchanged("blocks-gathered", "devices gather blocks of rows at their own places", by_part,
               lambda block: lax.all_gather(block, "data").sum(0)),
    _exchanged("row-of-block", "devices exchange a row of their own blocks", by_device, _swapped, row_of_block),
    _apart("order-by-device", "Atlas#101", "the first device calls its collectives in another order than the others",
           first_device_first),
    _apart("idle-device-skips", "vLLM#41862", "a device without active lanes skips a collective", idle_device_skips,
           P("data")),
    _apart("replay-by-device", "Atlas#969", "devices replay different numbers of tokens, with a collective for each",
           replay_by_device),
)  # fmt: skip

"""Faults in row caches and in experts that are split over devices."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from mutants.mutant import Kind, wrong
from zoo.attention import WINDOW, attend, project
from zoo.meshes.sharded_experts import PARALLEL_SPECS, of_experts, parallel
from zoo.meshes.sharded_rows import over
from zoo.program import CONTEXT, TOKENS
from zoo.row_caches import Change, decode, prefill, seen, unchanged

BAD = (Kind.WRONG_ROW, Kind.CROSS_LANE, Kind.FRAME, Kind.BOUNDS, Kind.CONSTANT, Kind.COLLECTIVE)


_rolled = lambda array: jnp.roll(array, 1, axis=0)
_first = lambda array: jnp.broadcast_to(array[:1], array.shape)


def _prefill(segments: Change = unchanged, rows: Change = unchanged, change: Change = jnp.zeros_like) -> Any:
    """Other segments, other rows of the cache, other rests of rows."""

    def step(w, pools, x, settings):
        y, k, v = prefill(w, x, segments(settings))
        news = {"k": rows(k), "v": rows(v), "segment": settings}
        rest = {name: change(pool[:, TOKENS:]) for name, pool in pools.items()}
        return y, {name: jnp.concatenate([new, rest[name]], axis=1) for name, new in news.items()}

    return step


def _ring(
    began: Change = unchanged, new: Change = unchanged, place_of: Callable[[Array, Array], Array] = lambda i, _: i
) -> Any:
    """Other beginnings, other entries, another place of the ring."""

    def step(w, pools, steps, settings, x):
        q, k, v = project(w, x)
        place = place_of(steps % WINDOW, settings)
        pools = {
            name: lax.dynamic_update_slice_in_dim(pools[name], item[:, None], place, axis=1)
            for name, item in (("k", new(k)), ("v", v))
        }
        return attend(q, pools["k"], pools["v"], seen(steps % WINDOW, began(settings))) @ w["o"].T, pools

    return step


def _experts(**parts: Any) -> Any:
    local = lambda w, state, x: parallel(w, state, x, lambda w, x, expert: of_experts(w, x, expert, **parts))
    return over(local, *PARALLEL_SPECS)


def _one(base: str, id: str, description: str, step: Any, source: str = "MaxText") -> Any:
    return wrong(base, id, source, description, step, *BAD)


PREFILL, DECODE = "row cache, prefill by segment ids", "row cache, decoding by segment ids"
RING, EXPERTS = "row cache, ring of a shared index", "sharded experts, some on each device"
MUTANTS = (
    _one(PREFILL, "row-prefill-segments", "tokens are masked by the segments of the next lane", _prefill(_rolled)),
    _one(PREFILL, "row-prefill-longest", "all lanes have the tokens of the longest prompt",
         _prefill(lambda ids: jnp.broadcast_to(ids.max(axis=0), ids.shape))),
    _one(PREFILL, "row-prefill-rows", "keys and values go to the rows of lanes in reverse",
         _prefill(rows=lambda new: new[::-1])),
    _one(PREFILL, "row-prefill-rest", "behind a prompt lies what another row held there", _prefill(change=_rolled)),
    _one(DECODE, "row-decode-first", "all lanes write at the position of lane 0", decode(position=_first)),
    _one(DECODE, "row-decode-longest", "all lanes write at the greatest position",
         decode(position=lambda array: jnp.minimum(jnp.broadcast_to(array.max(), array.shape), CONTEXT - 1))),
    _one(DECODE, "row-decode-new", "the key of the lane before is written", decode(new=_rolled)),
    _one(DECODE, "row-decode-held", "a lane sees what another row holds", decode(contents=_rolled)),
    _one(RING, "ring-began-first", "what lane 0 may see is shown to all", _ring(began=_first), "JAX-LLM-examples"),
    _one(RING, "ring-began-rolled", "a lane sees as far back as another began", _ring(began=_rolled),
         "JAX-LLM-examples"),
    _one(RING, "ring-new", "keys are written to the rows of lanes in reverse", _ring(new=lambda new: new[::-1]),
         "JAX-LLM-examples"),
    _one(RING, "ring-place", "the place of the ring depends on when lanes began",
         _ring(place_of=lambda place, began: (place + began.max()) % WINDOW), "JAX-LLM-examples"),
    _one(EXPERTS, "expert-rows-sorted", "results stay in the order of experts", _experts(inverse=lambda order: order),
         "JAX-LLM-examples"),
    _one(EXPERTS, "expert-rows-taken", "experts get the rows of a batch that is not sorted by them",
         _experts(selected=lambda order: jnp.arange(order.shape[0])), "JAX-LLM-examples"),
    _one(EXPERTS, "expert-sizes-all", "the sizes of groups count another device's experts too",
         _experts(sizes=lambda keys, expert: expert % 2), "JAX-LLM-examples"),
    _one(EXPERTS, "expert-sum-of-lanes", "results are summed over the devices that split lanes",
         _experts(along=("model", "data")), "JAX-LLM-examples"),
)  # fmt: skip

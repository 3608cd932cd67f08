"""Mutants at the proof's limits: calls, callbacks, references, meshes."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.sharding import PartitionSpec as P
from mutants.lanes import after
from mutants.mutant import Evidence, Kind, wrong
from zoo.meshes.sharded import PARAMS, local_rows, local_slots, mesh, over_rows
from zoo.program import LANES
from zoo.rows import advance

PLAIN, SHARDED = "rows behind a slot map", "sharded rows and heads"
CLOSED = (Kind.OPAQUE, Kind.UNKNOWN)
MESH = (Kind.COLLECTIVE, Kind.CROSS_LANE, Kind.WRONG_ROW, Kind.FRAME)
TRACED = Evidence.TRACED


def _typed(array: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype)


def foreign_call_on_the_pool(pool, slots, x, w):
    return x, jax.ffi.ffi_call("advances", _typed(pool), input_output_aliases={0: 0})(pool, slots)


@jax.custom_batching.custom_vmap
def double(x: Any) -> Any:
    return 2.0 * x


@double.def_vmap
def _double_rule(size: int, batched: Any, x: Any) -> Any:
    return 2.0 * x[::-1], batched[0]


def _accumulate(x: Any, out: Any, scratch: Any) -> None:
    @pl.when(pl.program_id(0) == 0)
    def _clear() -> None:
        scratch[...] = jnp.zeros_like(scratch)

    scratch[...] += x[...]
    out[...] = scratch[...]


def kernel_scratch(y):
    """The grid runs over lanes; its scratch persists from one to the next."""
    block = pl.BlockSpec((1, y.shape[1]), lambda i: (i, 0))
    scratch = [pl.MemorySpace.ANY((1, y.shape[1]), jnp.float32)]
    call = pl.pallas_call(
        _accumulate, _typed(y), grid=(LANES,), in_specs=[block], out_specs=block, scratch_shapes=scratch, interpret=True
    )
    return call(y)


def reference(pool, slots, x, w):
    """A mutable array indexed past its end clamps in silence."""
    ref = jax.new_ref(pool)
    new = advance(pool[slots], x, w)
    for i in range(LANES):
        ref[slots[i] + 1] = new[i]
    return new.sum(1), ref[...]


def exchanged(y, state):
    y = jnp.pad(y, ((0, 0), (0, 1)))
    y = lax.all_to_all(y.reshape(2, -1, y.shape[1]), "data", 0, 0).reshape(y.shape)
    return y[:, :-1], state


def same_result_claimed(w, state, x, lengths):
    """A value that differs between devices is returned as if it did not."""
    heads = P("data", "model")
    run = jax.shard_map(
        lambda *args: local_rows(*args),
        mesh=mesh(2, 2),
        in_specs=(PARAMS, heads, P("data"), P("data")),
        out_specs=(P(), heads),
        check_vma=False,
    )
    y, state = run(w, state, x, lengths)
    return jnp.concatenate([y, y]), state


def rows_of_one_device(w, state, slots, x):
    """Global row numbers on a split pool clamp to each device's rows."""
    state = jnp.concatenate([state, state[:1]])
    split = P("model")
    run = jax.shard_map(
        lambda state, slots, x: state.at[slots].get(mode="clip").sum((1, 2, 3))[:, None] + x,
        mesh=mesh(2),
        in_specs=(split, P(), P()),
        out_specs=P(),
        check_vma=False,
    )
    y = run(state, slots, x)
    heads = P(None, "model")
    slotted = jax.shard_map(local_slots, mesh=mesh(2), in_specs=(PARAMS, heads, P(), P()), out_specs=(P(), heads))
    out, new = slotted(w, state[:-1], slots, x)
    return out + y, new


def _sharded(id: str, description: str, change: Any) -> Any:
    """The sharded step with its outputs and state changed on each device."""
    local = lambda *args: change(*local_rows(*args))
    return wrong(SHARDED, id, "JAX", description, over_rows(local, check_vma=False), *MESH)


_swapped = lambda array: lax.ppermute(array, "data", [(0, 1), (1, 0)])


_plain = partial(wrong, PLAIN)
MUTANTS = (
    _plain("foreign-call", "JAX", "an FFI call without a contract",
           after(lambda y: jax.ffi.ffi_call("mixes_lanes", _typed(y))(y)), *CLOSED, evidence=TRACED),
    _plain("foreign-call-on-the-pool", "Atlas#6", "an FFI call writes the pool, without a contract",
           foreign_call_on_the_pool, *CLOSED, evidence=TRACED),
    _plain("callback", "JAX", "a callback reverses the lanes",
           after(lambda y: jax.pure_callback(lambda y: np.asarray(y)[::-1], _typed(y), y)), *CLOSED),
    _plain("vmap-rule", "JAX", "a custom rule for vmap reverses the lanes", after(jax.vmap(double)), Kind.CROSS_LANE),
    _plain("kernel-scratch", "JAX", "a kernel's scratch persists over a grid of lanes", after(kernel_scratch),
           Kind.UNINITIALIZED),
    _plain("reference", "JAX", "a mutable array is written past the row", reference, *CLOSED, Kind.BOUNDS,
           Kind.WRONG_ROW),
    _sharded("sum-over-data", "a mean over the axis of lanes", lambda y, state: (y - lax.pmean(y, "data"), state)),
    _sharded("lanes-passed-on", "outputs are passed to the other device's lanes",
             lambda y, state: (_swapped(y), state)),
    _sharded("rows-passed-on", "rows are passed to the other device's lanes", lambda y, state: (y, _swapped(state))),
    _sharded("first-device-for-all", "gathered over lanes, and the first device's kept",
             lambda y, state: (lax.all_gather(y, "data", axis=0, tiled=True)[: len(y)], state)),
    _sharded("exchanged", "an all-to-all over lanes without its inverse", exchanged),
    _sharded("maximum-over-everything", "a scale over lanes and heads", lambda y, state: (
        y / lax.pmax(lax.stop_gradient(jnp.abs(y).max(1, keepdims=True)), ("data", "model")), state)),
    wrong(SHARDED, "same-result-claimed", "JAX", "a result of each device is declared the same on all",
          same_result_claimed, *MESH),
    wrong("sharded heads behind a slot map", "rows-of-one-device", "tpu-inference#3565",
          "global row numbers on a split pool", rows_of_one_device, *MESH, Kind.BOUNDS, Kind.STALE),
)  # fmt: skip

"""Lanes of length 0 that do not keep their rows."""

import jax
import jax.numpy as jnp
from jax import lax
from mutants.mutant import Kind, wrong
from zoo import chunked, gated_delta, layers, rows
from zoo.program import KEY, SLOTS, normal
from zoo.rows import advance


def idle_lanes_move_on(w, pools, x, lengths):
    y, conv, state = gated_delta.delta(w, pools["conv"], pools["state"], jnp.where((lengths > 0)[:, None], x, 0.0))
    return jnp.where((lengths > 0)[:, None], y, 0.0), {"conv": conv, "state": state}


def idle_by_multiplication(w, pools, x, lengths):
    """`alive * new + (1 - alive) * old` differs from `old` for infinite `new`."""
    y, conv, state = gated_delta.delta(w, pools["conv"], pools["state"], x)
    alive = (lengths > 0).astype(jnp.float32)
    keep = {"conv": alive[:, None, None], "state": alive[:, None, None, None]}
    new = {"conv": conv, "state": state}
    return y, {name: keep[name] * new[name] + (1 - keep[name]) * pools[name] for name in pools}


def tail_at_the_padded_end(w, pools, x, lengths, positions):
    """The tail of the convolution is taken at T, not at the lane's length."""
    y, new = chunked.rows_step(w, pools, x, lengths, positions)
    window = jnp.concatenate([pools["conv"], x @ w[0].T], axis=1)
    return y, {"conv": window[:, chunked.TOKENS :], "state": new["state"]}


def fresh_before_idle(w, pools, x, lengths, positions):
    """Lanes at position 0 are cleared even if they have no token."""
    y, new = chunked.rows_step(w, pools, x, lengths, positions)
    fresh = (positions == 0)[:, None, None]
    return y, {**new, "state": jnp.where(fresh & (lengths == 0)[:, None, None], 0.0, new["state"])}


def idle_writes_zeros(pool, slots, x, w, lengths):
    y, _ = rows.masked_step(pool, slots, x, w, lengths)
    return y, pool.at[slots].set(jnp.where((lengths > 0)[:, None, None], advance(pool[slots], x, w), 0.0))


def paired_the_other_way(pool, slots, x, w, lengths):
    """Square rows are read element by element, and written back with their two axes exchanged."""
    size = pool.shape[1]
    index = jnp.broadcast_to(slots[:, None, None, None], (len(slots), size, size, 1))
    read = lax.GatherDimensionNumbers((), (0,), (0,), (1, 2), (1, 2))
    old = lax.gather(pool, index, read, (1, 1, 1), mode="clip")
    new = jnp.where((lengths > 0)[:, None, None], 0.5 * old + jnp.tanh(x @ w.T)[:, :1, None], old)
    write = lax.ScatterDimensionNumbers((), (0,), (0,), (1, 2), (2, 1))
    return new[:, 0], lax.scatter(pool, index, new, write, mode="clip")


def draw_square(rng):
    _, *rest = rows.draw_length(rng)
    return normal(rng, SLOTS, KEY, KEY), *rest


def next_layer_kept(w, pools, x, lengths):
    """Idle lanes keep the rows of this layer, in the place of the next layer's."""

    def body(i, carry):
        pools, x = carry
        rows, new = layers.layer(jax.tree.map(lambda leaf: leaf[i], w), pools[i], x)
        alive = lengths > 0
        rows = jnp.where(alive[:, None, None, None], rows, pools[i])
        return pools.at[jnp.minimum(i + 1, layers.LAYERS - 1)].set(rows), jnp.where(alive[:, None], new, x)

    pools, x = lax.fori_loop(0, layers.LAYERS, body, (pools, x))
    return x, pools


MUTANTS = (
    wrong("gated delta, idle lanes", "idle-lanes-move-on", "ROCm/ATOM#1436", "a lane of length 0 updates its rows",
          idle_lanes_move_on, Kind.IDLE),
    wrong("gated delta, idle lanes", "idle-by-multiplication", "vLLM#35219", "0 * NaN survives the mask",
          idle_by_multiplication, Kind.IDLE),
    wrong("chunk at once", "tail-at-the-padded-end", "mlx-lm#1736", "padding tokens enter the convolution's tail",
          tail_at_the_padded_end, Kind.IDLE),
    wrong("chunk at once", "fresh-before-idle", "llama.cpp", "an idle lane at position 0 is cleared", fresh_before_idle,
          Kind.IDLE),
    wrong("idle rows written back", "idle-writes-zeros", "SGLang#33431", "idle lanes write zeros", idle_writes_zeros,
          Kind.IDLE),
    wrong("layers over carried row pools, idle lanes", "next-layer-kept", "JAX",
          "what idle lanes keep of one layer is written to the next", next_layer_kept, Kind.IDLE),
    wrong("idle rows written back", "paired-the-other-way", "mistral.rs#2357",
          "what idle lanes have read is written back transposed", paired_the_other_way, Kind.IDLE, draw=draw_square),
)  # fmt: skip

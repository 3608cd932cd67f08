"""Small steps with every kind of scratch, and plans with known faults."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ir_passes import liveness
from ir_passes.jaxpr import ir
from ir_passes.scratch import planner
from ir_passes.scratch.liveness import Liveness, is_view
from ir_passes.scratch.planner import Buffer, Plan, pack, plan_liveness

ROWS, K, V, D, CONTEXT, LAYERS = 6, 4, 8, 4, 6, 3


@dataclass(frozen=True)
class Program:
    """A step, and a maker of arguments for N lanes."""

    fn: Callable[..., Any]
    args: Callable[[int], tuple[Any, ...]]


def _floats(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def delta_step(state, q, k, v, decay):
    """One token of a gated delta rule over a row pool."""
    state = state * jnp.exp(-jnp.abs(decay))[:, None, None]
    read = jnp.einsum("nk,nkv->nv", k, state)
    update = (v - read) * jax.nn.sigmoid(decay)[:, None]
    state = state + k[:, :, None] * update[:, None, :]
    return jnp.einsum("nk,nkv->nv", q, state), state


def cache_step(cache, slots, q, k, weight):
    """Attention over a slotted pool that is written twice and read between."""
    first = cache.at[slots, 0].set(k, unique_indices=True)
    rows = first[slots]
    scores = jax.nn.softmax(jnp.einsum("nd,ntd->nt", q, rows), axis=-1)
    mixed = jnp.einsum("nt,ntd->nd", scores, rows) @ weight
    second = first.at[slots, 1].set(mixed, unique_indices=True)
    return mixed + first[slots, 2], second


def layers_step(states, x, weights):
    """A scan over layers: the activation is the carry, states are `xs` and `ys`."""

    def layer(x, layer):
        state, weight = layer
        state = jnp.tanh(state + (x @ weight))
        return x + state * 0.5, state

    x, states = jax.lax.scan(layer, x, (states, weights))
    return x * 2, states


def loop_step(x, bound):
    """A while loop with a bound that all lanes share; its carry swaps two arrays."""

    def body(carry):
        i, a, b, c = carry
        return i + 1, b, a, jnp.sin(c) + a * 0.5

    _, a, b, c = jax.lax.while_loop(lambda carry: carry[0] < bound, body, (jnp.int32(0), x, x + 1, x))
    return (a - b * 2 + c,)


def view_step(x):
    """A value read last under another shape, after much other work."""
    base = jnp.exp(x)
    flat = base.reshape(-1)
    other = jnp.sin(x) + jnp.cos(x)
    third = jnp.tanh(other) * other
    return (third + flat.reshape(third.shape[0], -1) * 2,)


def branch_step(x, choice):
    """Branches with different scratch, a reversed scan, and an unread value."""
    _ = jnp.sin(x).sum()

    def scanned(x):
        total, sums = jax.lax.scan(lambda c, row: (c + row, c * row), jnp.zeros(x.shape[1], x.dtype), x, reverse=True)
        return sums + total[None, :]

    branches = [lambda x: x * 2, lambda x: jnp.exp(x) + jnp.sin(x) * jnp.cos(x), scanned]
    return (jax.lax.switch(choice, branches, x) - 1,)


def key_step(seed, x):
    """Typed random keys are scratch too."""
    keys = jax.random.split(jax.random.key(seed), x.shape[0])
    return (x + jax.vmap(lambda key: jax.random.uniform(key, (K,)))(keys),)


PROGRAMS = {
    "delta": Program(
        delta_step, lambda n: (_floats(0, n, K, V), _floats(1, n, K), _floats(2, n, K), _floats(3, n, V), _floats(4, n))
    ),
    "cache": Program(
        cache_step,
        lambda n: (
            _floats(0, ROWS, CONTEXT, D),
            np.arange(1, n + 1, dtype=np.int32),
            _floats(1, n, D),
            _floats(2, n, D),
            _floats(3, D, D),
        ),
    ),
    "layers": Program(
        layers_step, lambda n: (_floats(0, LAYERS, n, D), _floats(1, n, D), _floats(2, LAYERS, D, D) * 0.3)
    ),
    "loop": Program(loop_step, lambda n: (_floats(0, n, D), np.int32(3))),
    "view": Program(view_step, lambda n: (_floats(0, n, 16),)),
    "branch": Program(branch_step, lambda n: (_floats(0, n, D), np.int32(2))),
    "keys": Program(key_step, lambda n: (np.int32(7), _floats(0, n, K))),
}


def forgets_views(live: Liveness) -> Liveness:
    """A reference count that only counts readers of the value itself."""
    return _with_ends(live, lambda eqn: True, through_views=False)


def forgets_pool_reads(live: Liveness) -> Liveness:
    """A reference count that does not see that gathering rows reads the pool."""
    return _with_ends(live, lambda eqn: eqn.primitive.name != "gather", through_views=True)


def sized_for_one_lane(live: Liveness, liveness: Liveness) -> Liveness:
    """The sizes of the same step with one lane."""
    scratch = tuple(
        replace(value, bytes=small.bytes) for value, small in zip(live.scratch, liveness.scratch, strict=True)
    )
    bodies = {
        i: tuple(sized_for_one_lane(*pair) for pair in zip(bodies, liveness.bodies[i], strict=True))
        for i, bodies in live.bodies.items()
    }
    return replace(live, scratch=scratch, bodies=bodies)


def touching(buffers: Sequence[Buffer]) -> list[int]:
    """Pack with bytes free at the time of their last use."""
    return pack([(size, start, max(start, end - 1)) for size, start, end in buffers])


def mutant_plan(mutant: str, name: str, lanes: int, monkeypatch: Any) -> Plan:
    """The plan of a program with one fault."""
    program = PROGRAMS[name]
    live = liveness(program.fn, program.args(lanes))
    if mutant == "touching ends":
        monkeypatch.setattr(planner, "pack", touching)
    elif mutant == "forgotten view":
        live = forgets_views(live)
    elif mutant == "forgotten pool read":
        live = forgets_pool_reads(live)
    elif mutant == "size for one lane":
        live = sized_for_one_lane(live, liveness(program.fn, program.args(1)))
    return plan_liveness(live)


# mutant -> programs that show it
MUTANTS = {
    "forgotten view": ("view", "keys"),
    "forgotten pool read": ("cache",),
    "size for one lane": ("delta", "cache", "layers", "loop", "view", "branch"),
    "touching ends": ("delta", "cache", "layers", "loop", "view", "branch"),
}


def _with_ends(live: Liveness, counts: Callable[[ir.JaxprEqn], bool], through_views: bool) -> Liveness:
    """Live ranges that end at the last equation that `counts` as a reader."""
    eqns = live.jaxpr.jaxpr.eqns
    names: dict[Any, tuple[int, int]] = {}
    ends: dict[tuple[int, int], int] = {}
    for i, eqn in enumerate(eqns):
        for atom in eqn.invars:
            if not isinstance(atom, ir.Literal) and atom in names and counts(eqn):
                ends[names[atom]] = i
        for j, var in enumerate(eqn.outvars):
            if not is_view(eqn):
                names[var] = (i, j)
            elif through_views and eqn.invars[0] in names:
                names[var] = names[eqn.invars[0]]
    scratch = tuple(replace(v, end=ends.get((v.equation, v.result), v.start)) for v in live.scratch)
    return replace(live, scratch=scratch)

"""Facts that an operation ends: converted masks, finite values, changed row bits.

Exchanged layouts of packed tokens are here, too: the fact is the owner of each token.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from mutants.mutant import Evidence, Kind, wrong
from zoo.attention import HEADS, KV, SIZE, project
from zoo.packed import KEYS, TOKENS, lanes_of
from zoo.program import LANES, ragged

from ir_passes import Lane, LaneContract, Pool

finite = lambda v: jnp.where(jnp.isfinite(v), v, jnp.zeros((), v.dtype))
_of_keys = lambda cu: jnp.searchsorted(cu[1:], jnp.arange(KEYS), side="right")


def _attention(scores: Any = lambda s: s, values: Any = finite, weights: Any = None, dot: Any = None) -> Any:
    """Attention with the scores, weights or values in another dtype for a while."""

    def step(w, x, ids, positions, bias):
        q, k, v = project(w, x + bias.at[ids].get(mode="fill", fill_value=0.0))
        q = q.reshape(TOKENS, KV * HEADS, SIZE)
        k, v = (jnp.repeat(each, HEADS, axis=1) for each in (k, v))
        equal = (ids[:, None] == ids[None, :])[None]
        pairs = jnp.einsum("thd,shd->hts", q, k)
        if weights is None:
            attended = jax.nn.softmax(scores(jnp.where(equal, pairs, -jnp.inf)), axis=-1)
        else:
            attended = weights(equal, pairs)
        y = (dot or (lambda a, b: jnp.einsum("hts,shd->thd", a, b)))(attended, values(v))
        return x + y.reshape(TOKENS, -1) @ w["o"].T, jax.ops.segment_max(y.reshape(TOKENS, -1) @ w["o"].T, ids, LANES)

    return step


def _through(*dtypes: Any) -> Any:
    def convert(x: jax.Array) -> jax.Array:
        for dtype in (*dtypes, jnp.float32):
            x = x.astype(dtype)
        return x

    return convert


def _divided(array: jax.Array, pairs: jax.Array) -> jax.Array:
    """Integers divided by zero are -1."""
    rows = jnp.where(array, jnp.ones(pairs.shape, jnp.int32), 0)
    by = jnp.where(array, jnp.round(jnp.abs(pairs) * 0.01).astype(jnp.int32), 0)
    return lax.div(rows, jnp.broadcast_to(by.max(-1, keepdims=True), rows.shape)).astype(jnp.float32)


def _narrow_product(weights: jax.Array, values: jax.Array) -> jax.Array:
    """A mixed product computed in float16, where large values are infinite."""
    product = lax.dot_general(
        weights.astype(jnp.float16), values * jnp.float32(2e4), (((2,), (0,)), ((0,), (1,))),
        preferred_element_type=jnp.float16,
    )  # fmt: skip
    return product.transpose(1, 0, 2).astype(jnp.float32)


IDLE = LaneContract((Pool("rows"), Lane(role="length")), Pool("rows"))


def _kept(wide: Any) -> Any:
    """An idle row that is chosen in another dtype than its own."""

    def step(rows, lengths):
        other = rows.astype(wide)
        return jnp.where((lengths > 0)[:, None], other + jnp.ones((), wide), other).astype(rows.dtype)

    return step


def _rows(dtype: Any, number: float) -> Any:
    return lambda rng: (np.full((LANES, 3), number).astype(dtype), ragged(rng))


def _with_payloads(rng: np.random.Generator) -> tuple[Any, ...]:
    return np.full((LANES, 3), 0x7F81, np.uint16).view(jnp.bfloat16), ragged(rng)


def _cross(mask: Any, options: Any = lambda q, k: 0.0) -> Any:
    def step(q, k, queries, keys, bias):
        weights = jax.nn.softmax(jnp.where(mask(queries, keys), q @ k.T, -jnp.inf), axis=-1)
        return q + weights @ finite(k) + options(q, k), k[keys[1:] - 1] + bias

    return step


IDS, CROSS = "packed tokens, segment ids", "packed tokens, queries and keys"
FLOAT8 = jnp.float8_e4m3fn


def _packed(id: str, description: str, step: Any, base: str = IDS) -> Any:
    return wrong(base, f"fact-{id}", "JAX", description, step, Kind.CROSS_LANE)


def _idle(id: str, description: str, wide: Any, draw: Any, evidence: Evidence = Evidence.LEAK) -> Any:
    base = "layers over row pools, idle lanes, remat"
    step = _kept(wide)
    return wrong(base, f"fact-{id}", "JAX", description, step, Kind.IDLE, evidence=evidence, contract=IDLE, draw=draw)


MUTANTS = (
    _packed("int8-scores", "minus infinity is -128 in int8", _attention(_through(jnp.int8))),
    _packed("float4-scores", "minus infinity is -6 in float4", _attention(_through(jnp.float4_e2m1fn))),
    _packed("smaller-float8", "finite values are infinite in a float8 of smaller range",
            _attention(values=lambda v: _through(jnp.float8_e4m3b11fnuz)(finite((v * 10).astype(FLOAT8))))),
    _packed("int-division", "zero divided by zero is -1 in integers", _attention(weights=_divided)),
    _packed("float16-product", "finite values are infinite in the dtype of a product", _attention(dot=_narrow_product)),
    _packed("keys-by-queries", "keys are masked by the layout of the queries",
            _cross(lambda q, k: lanes_of(q)[:, None] == _of_keys(q)[None]), CROSS),
    _packed("queries-by-keys", "queries are masked by the layout of the keys",
            _cross(lambda q, k: _of_keys(k)[:TOKENS, None] == _of_keys(k)[None]), CROSS),
    _packed("key-at-query", "query t is added to key t",
            _cross(lambda q, k: lanes_of(q)[:, None] == _of_keys(k)[None], lambda q, k: k[:TOKENS]), CROSS),
    _idle("int8-by-float8", "an int8 row is chosen in a float8", FLOAT8, _rows(np.int8, 17)),
    _idle("float8-by-fnuz", "a float8 row is chosen in one of smaller range", jnp.float8_e4m3fnuz, _rows(FLOAT8, 256)),
    _idle("int32-by-float32", "an int32 row is chosen in float32", jnp.float32, _rows(np.int32, (1 << 24) + 1)),
    _idle("nan-by-float32", "a bfloat16 nan loses its payload in float32", jnp.float32, _with_payloads, Evidence.FAULT),
)  # fmt: skip

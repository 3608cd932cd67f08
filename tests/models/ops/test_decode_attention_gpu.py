"""The kernel for attention of a few tokens computes what the plain form does, and keeps lanes apart."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ir_passes import Lane, LaneContract, Pool
from ir_passes.contract.statements import Note
from ir_passes.proof.lane_proof import prove_isolation
from models.mixers.kv_cache import KVCache, attend
from models.ops.decode_attention_gpu import KERNEL, MAX_ROWS

CONTEXT = 256
LENGTHS = (0, 1, 127, 128, 129, 250)
KINDS = {"grouped": (6, 2, 16, 32), "one head": (1, 1, 32, 16), "latent": (4, 1, 48, 32)}
"""Heads, key/value heads, sizes of key and value."""


def operands(kind: str, tokens: int, dtype: Any = jnp.float32) -> tuple[Any, ...]:
    """Random lanes of different lengths, behind whose last token the caches hold NaN; the first one is idle."""
    rng = np.random.default_rng(tokens)
    heads, kv_heads, size, value_size = KINDS[kind]
    lanes, lengths = len(LENGTHS), np.array(LENGTHS, np.int32)
    query = rng.normal(size=(lanes, tokens, heads, size)).astype(np.float32)
    key, value = (rng.normal(size=(lanes, kv_heads, CONTEXT, one)).astype(np.float32) for one in (size, value_size))
    first = np.maximum(lengths - tokens, 0)
    valid = np.arange(tokens)[None] < (lengths - first)[:, None]
    for lane, length in enumerate(LENGTHS):
        key[lane, :, length:] = value[lane, :, length:] = np.nan
        query[lane, ~valid[lane]] = np.nan
    cache = KVCache(jnp.asarray(key, dtype), None if kind == "latent" else jnp.asarray(value, dtype))
    at = (first[:, None] + np.arange(tokens)[None]).astype(np.int32)
    return jnp.asarray(query), cache, jnp.asarray(at), jnp.asarray(valid)


def run(kind: str, given: tuple[Any, ...], kernels: str = "interpret") -> np.ndarray:
    value_size = KINDS[kind][3]
    form = partial(attend, blocks=CONTEXT // 128, value_size=value_size, kernels=kernels)
    return np.asarray(jax.jit(form)(*given))


@pytest.mark.each_value
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("tokens", "dtype"), [(1, jnp.float32), (3, jnp.bfloat16)])
def test_kernel_computes_attention(kind: str, tokens: int, dtype: Any) -> None:
    given = operands(kind, tokens, dtype)
    found = run(kind, given)
    np.testing.assert_allclose(found, run(kind, given, "off"), rtol=2e-5, atol=2e-6)
    assert np.isfinite(found).all() and not found[~np.asarray(given[3])].any()


@pytest.mark.parametrize("kind", KINDS)
def test_lanes_keep_their_bits(kind: str) -> None:
    query, cache, at, valid = operands(kind, 2)
    expected = run(kind, (query, cache, at, valid))
    for bad in (0, 1):
        poisoned = jax.tree.map(lambda one, bad=bad: one.at[bad::2].set(jnp.nan), (query, cache))
        found = run(kind, (*poisoned, at, valid))
        others = np.arange(len(LENGTHS)) % 2 != bad
        np.testing.assert_array_equal(found[others], expected[others])


@pytest.mark.parametrize("kind", KINDS)
def test_kernel_is_proved_from_the_inside(kind: str) -> None:
    query, cache, at, valid = operands(kind, 2)

    def step(caches: Any, query: Any, at: Any, valid: Any) -> Any:
        form = partial(attend, blocks=CONTEXT // 128, value_size=KINDS[kind][3], kernels="interpret")
        return form(query, caches, at, valid), caches

    pool = Pool("rows", dims=("lane", "kv_head", "context", "value"))
    contract = LaneContract((pool, Lane(), Lane(), Lane()), (Lane(), pool))
    proof = prove_isolation(step, (cache, query, at, valid), contract)
    (note,) = [note for note in proof.notes if note.id == Note.KERNEL_READ.value]
    assert note.about.startswith(KERNEL.name)


@pytest.mark.parametrize(
    ("rows", "size", "value"), [(1, 24, 16), (1, 16, 8), (1, 1024, 16), (MAX_ROWS + 1, 16, 16), (MAX_ROWS, 16, 512)]
)
def test_other_sizes_are_left_to_the_plain_form(rows: int, size: int, value: int) -> None:
    query, key = jnp.zeros((1, rows, 2, size)), jnp.zeros((1, 2, CONTEXT, size))
    assert KERNEL.unsupported(query, key, jnp.zeros((1, 2, CONTEXT, value)), value)

"""Typed random keys have the owner of their words; samples have the key's owner."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from rewritten_steps import graph_of

from hybridlm.compiler import exported, measure, rewrites, sanitizer
from ir_passes import (
    ContractError,
    ContractFault,
    IsolationError,
    Lane,
    LaneContract,
    Pool,
    Shared,
    SlotMap,
    ViolationKind,
    compile_step,
)
from ir_passes.jaxpr import ir
from ir_passes.proof.lane_proof import prove_isolation

N, D, S = 4, 4, 9
X = np.random.default_rng(0).normal(size=(N, D)).astype(np.float32)
SLOTS = np.array([3, 1, 7, 5], np.int32)
OWN = LaneContract((Lane(), Lane()), (Lane(),))
ONE = LaneContract((Shared(), Lane()), (Lane(),))
GENERATORS = ("threefry2x32", "rbg", "unsafe_rbg")


def key(generator: str = "threefry2x32") -> Any:
    return jax.random.key(7, impl=generator)


def keys(count: int = N, generator: str = "threefry2x32") -> Any:
    return jax.random.split(key(generator), count)


def noise(key: Any) -> Any:
    return jax.random.normal(key, (D,))


def each(function: Any) -> Any:
    return lambda k, x: (x + jax.vmap(lambda key: noise(function(key)))(k),)


def scanned(k, x):
    def body(carry, _):
        pair = jax.vmap(jax.random.split)(carry)
        return pair[:, 0], jax.vmap(noise)(pair[:, 1])

    last, drawn = lax.scan(body, k, None, length=3)
    return (x + drawn.sum(0) + jax.vmap(noise)(last),)


def while_of_keys(k, x):
    last, _ = lax.while_loop(
        lambda c: c[1] < 3, lambda c: (jax.vmap(jax.random.fold_in, (0, None))(*c), c[1] + 1), (k, 0)
    )
    return (x + jax.vmap(noise)(last),)


CLEAN = {
    "split": each(lambda key: jax.random.split(key, (2, 3))[1, 2]),
    "fold in a shared number": each(lambda key: jax.random.fold_in(key, 3)),
    "fold in a lane's": lambda k, x: (
        x + jax.vmap(lambda key, y: noise(jax.random.fold_in(key, y[0].astype(int))))(k, x),
    ),
    "clone": each(jax.random.clone),
    "words": each(lambda key: jax.random.wrap_key_data(jax.random.key_data(key) + 1)),
    "words as numbers": lambda k, x: (x + jax.random.key_data(k).sum(1, keepdims=True).astype(jnp.float32),),
    "scan": scanned,
    "while": while_of_keys,
    "cond": lambda k, x: (x + jax.vmap(noise)(lax.cond(x.shape[0] > 3, jax.random.clone, lambda key: key, k)),),
    "a lane at a time": lambda k, x: (lax.map(lambda pair: pair[1] + noise(pair[0]), (k, x)),),
    "a chosen key": lambda k, x: (x + jax.vmap(noise)(jnp.where(x[:, 0] > 0, k, jax.random.clone(k))),),
    "gamma": lambda k, x: (jax.vmap(lambda key, y: jax.random.gamma(key, 1 + jnp.abs(y)))(k, x),),
    "categorical": lambda k, x: (jax.vmap(jax.random.categorical)(k, x),),
    "permutation": lambda k, x: (jax.vmap(jax.random.permutation)(k, x),),
    "keys returned": lambda k, x: (jax.vmap(jax.random.split)(k),),
}
SAMPLE = "split", "fold in a lane's", "scan"
"""The other programs are `long`."""


@pytest.mark.parametrize(
    "step",
    [pytest.param(step, id=name, marks=() if name in SAMPLE else pytest.mark.long) for name, step in CLEAN.items()],
)
def test_each_lane_draws_by_its_own_key(step) -> None:
    assert prove_isolation(step, (keys(), X), OWN)
    assert prove_isolation(step, (jax.ShapeDtypeStruct((N,), keys().dtype), X), OWN)
    bound = OWN.bind(step, (keys(), X))
    assert measure.measured_dependence(jax.jit(step), (keys(), X), bound).crossings == ()


MIXED = {
    "rolled": lambda k, x: (x + jax.vmap(noise)(jnp.roll(k, 1)),),
    "split and rolled": lambda k, x: (x + jax.vmap(noise)(jnp.roll(jax.vmap(jax.random.split)(k)[:, 0], 1)),),
    "one lane's for all": lambda k, x: (x + noise(k[0])[None],),
    "split along the wrong axis": lambda k, x: (jax.vmap(lambda key: jax.random.split(key, N), out_axes=1)(k),),
    "sorted": lambda k, x: (x + jax.vmap(noise)(k[jnp.argsort(x[:, 0])]),),
    "words of two lanes": lambda k, x: (
        x + jax.vmap(noise)(jax.random.wrap_key_data(jax.random.key_data(k).T.reshape(N, 2))),
    ),
    "carried from lane to lane": lambda k, x: (
        lax.scan(lambda c, z: (jax.random.fold_in(c, z[1][0].astype(int)), z[1] + noise(c)), k[0], (k, x))[1],
    ),
    "another lane's number folded in": lambda k, x: (
        x + jax.vmap(noise)(jax.vmap(jax.random.fold_in)(k, jnp.roll(x[:, 0], 1).astype(int))),
    ),
}


@pytest.mark.parametrize("step", MIXED.values(), ids=MIXED)
def test_keys_of_other_lanes_are_found(step) -> None:
    with pytest.raises(IsolationError) as error:
        prove_isolation(step, (keys(), X), OWN)
    assert {violation.kind for violation in error.value.violations} <= {ViolationKind.CROSS_LANE}
    assert measure.measured_dependence(jax.jit(step), (keys(), X), OWN.bind(step, (keys(), X))).crossings


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("captured", [False, True])
def test_a_shared_key_is_everyones(generator, captured) -> None:
    fresh = key(generator)

    def step(k, x):
        used = fresh if captured else k
        lane_keys = jax.random.split(used, N)
        return (x + jax.random.normal(used, x.shape) + lax.map(noise, lane_keys),)

    assert prove_isolation(step, (fresh, X), ONE)


def test_captured_keys_of_lanes_are_shared() -> None:
    several = keys()
    assert prove_isolation(lambda k, x: (x + jax.vmap(noise)(several),), (key(), X), ONE)


BY_FIRST_KEY = {
    "bits": (lambda k: jax.vmap(noise)(k), {"rbg", "unsafe_rbg"}),
    "split": (lambda k: jax.vmap(jax.random.split)(k)[:, 1], {"unsafe_rbg"}),
    "fold in": (lambda k: jax.vmap(lambda key: jax.random.fold_in(key, 3))(k), set()),
    "bits, a key at a time": (lambda k: lax.map(noise, k), set()),
}


@pytest.mark.each_value
@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize(("draw", "leaking"), BY_FIRST_KEY.values(), ids=BY_FIRST_KEY)
def test_generators_that_take_the_first_key_of_a_batch_are_refused(generator, draw, leaking) -> None:
    """XLA's generator samples for a whole batch of keys by the first of them."""
    step = lambda k, x: (draw(k),)
    args = keys(generator=generator), X
    crosses = measure.measured_dependence(jax.jit(step), args, OWN.bind(step, args)).crossings
    assert bool(crosses) == (generator in leaking)
    cautious = generator == "unsafe_rbg" and draw is BY_FIRST_KEY["fold in"][0]
    if not crosses and not cautious:
        assert prove_isolation(step, args, OWN)
        return
    with pytest.raises(IsolationError, match="threefry2x32"):
        prove_isolation(step, args, OWN)


POOLS = LaneContract((Lane(), Pool("k"), Pool("s"), SlotMap(("k", "s"), S)), (Lane(), Pool("k"), Pool("s")))


def pooled(x, pool_keys, pool, slots):
    pair = jax.vmap(jax.random.split)(pool_keys[slots])
    state = jnp.tanh(pool[slots] + x + jax.vmap(noise)(pair[:, 0]))
    return state, pool_keys.at[slots].set(pair[:, 1]), pool.at[slots].set(state)


def crossed(x, pool_keys, pool, slots):
    state, _, pool = pooled(x, pool_keys, pool, slots)
    return state, pool_keys.at[slots].set(jnp.roll(pool_keys[slots], 1)), pool


def pools() -> tuple[Any, ...]:
    return X, keys(S), jnp.ones((S, D)), SLOTS


def test_a_pool_of_keys_goes_on_from_call_to_call() -> None:
    assert prove_isolation(pooled, pools(), POOLS)
    with pytest.raises(IsolationError):
        prove_isolation(crossed, pools(), POOLS)
    sanitizer.sanitize(pooled, pools(), POOLS)


def test_keys_are_neither_numbers_nor_words() -> None:
    returned = lambda k, x: (jax.random.key_data(k),)
    for key_array, step, con, fault in (
        (keys(), returned, LaneContract((Pool("k"), Lane()), (Pool("k"),)), ContractFault.SUCCESSOR),
        (keys(), returned, LaneContract((Lane(role="length"), Lane()), (Lane(),)), ContractFault.ARRAY),
        (keys(), returned, LaneContract((SlotMap("k", N), Pool("k")), (Lane(),)), ContractFault.ARRAY),
        (key(), lambda k, x: (x,), OWN, ContractFault.AXIS),
    ):
        with pytest.raises(ContractError) as error:
            prove_isolation(step, (key_array, X), con)
        assert error.value.ids == (fault,)


def bits(tree: Any) -> list[bytes]:
    leaves = jax.tree.leaves(tree)
    return [
        np.asarray(jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf).tobytes()
        for leaf in leaves
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("step", "arguments", "con"), [
    (lambda k, x: (x + noise(k)[None],), lambda: (key(), X), ONE),
    (each(jax.random.clone), lambda: (keys(), X), OWN),
    (pooled, pools, POOLS),
], ids=["shared", "of lanes", "of a pool"])  # fmt: skip
def test_a_step_that_samples_is_compiled_exported_and_run(step, arguments, con, tmp_path) -> None:
    wanted = bits(jax.jit(step)(*arguments()))
    compiled = compile_step(step, arguments(), con, certificates=tmp_path)
    assert compiled.certificate.holds
    assert bits(compiled(*arguments())) == wanted
    assert compile_step(step, arguments(), con, certificates=tmp_path).certificate.reused
    assert "key<fry>" in compiled.report() and "key" in compiled._repr_html_()
    compiled.export().save(tmp_path / "portable")
    assert "key<fry>" in {
        argument.dtype for argument in exported.load_exported(tmp_path / "portable").signature.arguments
    }
    compiled.export("executable").save(tmp_path / "executable")
    loaded = exported.load_exported(tmp_path / "executable").load()
    assert bits(loaded(*jax.tree.leaves(arguments()))) == wanted
    assert measure.measured_dependence(step, arguments(), compiled.bound).crossings == ()


def test_passes_leave_keys_as_they_are() -> None:
    def step(x, pool_keys, pool, slots):
        for i in range(N):
            pair = jax.random.split(pool_keys[slots[i]])
            pool_keys = pool_keys.at[slots[i]].set(pair[1])
            pool = pool.at[slots[i]].set(pool[slots[i]] + x[i] + noise(pair[0]))
        return pool[slots], pool_keys, pool

    rewritten, _ = rewrites.run_passes(graph_of(step, pools(), POOLS))
    results = jax.jit(ir.as_function(rewritten.program))(*jax.tree.leaves(pools()))
    assert bits(results) == bits(jax.jit(step)(*pools()))

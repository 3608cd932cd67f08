"""Steps of a loaded model on random lanes, plain and with disturbed lanes.

`measure` changes every lane in turn, one array at a time, and copies all results to the host: for small models.
`disturb_halves` changes every second lane in all arrays at once and compares where the arrays are: for large ones.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from paged_shapes import paged
from perturbation import Influence, influence, rows_of
from verify_scene import own_table

import hybridlm
from hybridlm.programs.shapes import Shape
from hybridlm.sampling.sampling import FILTERED, Sampling
from hybridlm.steps.hooks import Ablations, ProbeInputs, ProbeShape, Vectors, site_of
from hybridlm.steps.operands import Batch, Chosen, StepInputs
from hybridlm.steps.structure import Step
from ir_passes import Lane, LaneContract, Pool
from models import kv_blocks

POSITIONS = (0, 2, 129, 5)
"""Positions of lanes that begin, go on, go on beyond the first block of the cache, and do nothing; more repeat them."""
LENGTHS = "args[2].batch.lengths"


def step_shape(
    lm: hybridlm.LM, step: Any, tokens: int, lanes: int | None = None, probes: tuple[int, ...] = (), **fields: Any
) -> Shape:
    """Return the shape of a step of all lanes, or of fewer with a row each.

    Args:
        probes: numbers of hidden states, places, vectors and ablations; () for none.
    """
    probed = {"probes": ProbeShape(*probes)} if probes else {}
    return lm.engine.shape(step, lanes or lm.engine.rows, tokens, lanes, **probed, **fields)


@functools.cache
def program(lm: hybridlm.LM, shape: Shape) -> tuple[Step, LaneContract, Step]:
    """Return a step, its contract, and the engine's program on copies of rows."""
    shape = paged(lm.engine, shape)
    step, contract = lm.engine.programs.step(shape)
    compiled = lm.engine.program(shape)

    def run(params, pools, inputs):
        return compiled(params, jax.tree.map(jnp.array, pools), inputs)

    return step, contract, run


def arguments(lm: hybridlm.LM, shape: Shape) -> tuple[Any, ...]:
    """Return different lanes with random state; every fourth lane has the same state."""
    shape = paged(lm.engine, shape)
    rng = np.random.default_rng(0)
    vocab, lanes, tokens = lm.config.vocab_size, shape.lanes, shape.tokens

    def repeated(values: Any, dtype: Any) -> np.ndarray:
        return np.resize(np.array(values, dtype), lanes)

    def state(leaf: jax.ShapeDtypeStruct) -> Any:
        each = shape.blocks if leaf.shape[0] == shape.pages else 1
        rows_of_pool = (0.5 * rng.normal(size=(each * min(4, lanes), *leaf.shape[1:]))).astype(leaf.dtype)
        if leaf.shape[0] == len(rows_of_pool):
            return rows_of_pool
        null = leaf.shape[0] - each * lanes  # the null page
        repeated = jnp.resize(jnp.asarray(rows_of_pool), (each * lanes, *leaf.shape[1:]))
        return jnp.concatenate([jnp.zeros_like(repeated[:null]), repeated])

    pools = jax.tree.map(state, lm.engine.row_arrays.abstract(shape.rows, shape.pages))
    ids = rng.integers(1, vocab, (lanes, tokens)).astype(np.int32)
    lengths = repeated((1, 1, 1, 0) if tokens == 1 else (tokens, tokens // 2, tokens - 1, 0), np.int32)
    blocks = np.int32(kv_blocks(max(POSITIONS) + tokens))
    table = own_table(lanes, lm.context) if shape.pages else None
    slots = np.arange(lanes, dtype=np.int32)
    inputs = StepInputs(Batch(ids, lengths, repeated(POSITIONS, np.int32), slots, blocks, table))
    if shape.probes is not None:
        inputs = inputs._replace(probes=_probes(lm, shape, repeated))
    if shape.step == "score":
        inputs = inputs._replace(targets=rng.integers(1, vocab, (lanes, tokens)).astype(np.int32))
        if shape.chosen is not None:
            ids = rng.integers(1, vocab, (lanes, tokens, shape.chosen)).astype(np.int32)
            inputs = inputs._replace(chosen=Chosen(ids, repeated([1.0, 0.7, 2.0, 1.0], np.float32)))
    if shape.step in ("score", "hidden"):
        return lm.engine.params, pools, inputs
    sampling = Sampling(
        repeated([0.0, 0.7, 1.3, 1.0], np.float32),
        repeated([0, 5, 0, 0], np.int32),
        repeated([1.0, 1.0, 0.9, 1.0], np.float32),
        repeated([0.0, 0.0, 0.0, 0.05], np.float32),
        rng.integers(0, 2**32, (lanes, 2)).astype(np.uint32),
        np.arange(lanes, dtype=np.uint32),
    )
    drafts = repeated((0, 2, tokens - 2, 0), np.int32) if shape.step == "verify" else None
    inputs = inputs._replace(drafts=drafts, sampling=sampling, sampling_mode=np.int32(FILTERED))
    return lm.engine.params, pools, inputs


def _probes(lm: hybridlm.LM, shape: Shape, repeated: Callable[[Any, Any], np.ndarray]) -> ProbeInputs:
    """Vectors at even lanes, ablations at odd ones, from the first or third token."""
    assert shape.probes is not None
    hidden, wanted, vectors, ablations = shape.probes

    def slots(values: Any, count: int) -> np.ndarray:
        return np.tile(repeated(values, np.int32)[:, None], (1, count))

    def span(count: int) -> tuple[np.ndarray, np.ndarray]:
        return slots([0, 2, 0, 0], count), slots([999, 4, 999, 999], count)

    # of a recurrence, where the model has one; without any site an ablation has no effect
    sites = [(name != "recurrent", layer, name) for layer, names in enumerate(lm.model.sites()) for name in names]
    _, layer, name = min(sites, default=(False, 0, "recurrent"))
    vector = np.random.default_rng(1).normal(size=(shape.lanes, vectors, lm.config.residual_size)).astype(np.float32)
    places = slots([0, 1, 0, shape.tokens], wanted) if shape.step == "score" else None
    replaces = slots([0, 0, 1, 0], vectors).astype(bool)
    additions = Vectors(slots([1, -1, 0, 1], vectors), *span(vectors), replaces, vector)
    site = slots([-1, site_of(layer, name), -1, -1], ablations)
    layers = np.array([[0, 2], [2, -1], [1, 0], [-1, -1]], np.int32)[np.arange(shape.lanes) % 4, :hidden]
    return ProbeInputs(places, layers, additions, Ablations(site, slots([0, 1, 0, 0], ablations), *span(ablations)))


def change(path: str, row: np.ndarray, rng: np.random.Generator, vocab: int) -> np.ndarray:
    """Another valid value of a lane's row; NaN and infinity in its state, or any integers."""
    if path.startswith("args[1].layers"):
        if np.issubdtype(row.dtype, np.integer):
            return row ^ rng.integers(1, np.iinfo(row.dtype).max, row.shape, dtype=row.dtype)
        return np.where(rng.random(row.shape) < 0.5, np.nan, np.inf).astype(row.dtype)
    if path.endswith(".vector"):
        return np.full_like(row, np.nan)
    if path == LENGTHS:
        return np.where(row == 0, 1, 0).astype(row.dtype)
    if path == "args[2].batch.positions":
        return ((row + 1) % 130).astype(row.dtype)
    if row.dtype == np.int32:
        return ((row + rng.integers(1, vocab - 1, row.shape)) % vocab).astype(row.dtype)
    if row.dtype == np.uint32:
        return row ^ np.uint32(0x5BD1E995)
    return np.clip(np.float32(0.55) + row * np.float32(0.3), 0.1, 0.9).astype(row.dtype)


def measure(lm: hybridlm.LM, shape: Shape, wrap: Callable[[Step], Step] = lambda step: step) -> Influence:
    """Return the effects of each lane's changes on other lanes; `wrap` plants a fault."""
    step, contract, run = program(lm, shape)
    args = arguments(lm, shape)
    changed = functools.partial(change, vocab=lm.config.vocab_size)
    return influence(wrap(run), args, contract.bind(wrap(step), args), changed)


def disturb_halves(
    lm: hybridlm.LM, shape: Shape, wrap: Callable[[Step], Step] = lambda step: step
) -> tuple[list[str], list[int]]:
    """Disturb the even lanes, then the odd ones.

    Returns:
        Outputs with a changed bit in an undisturbed lane, and disturbed lanes without any change.
    """
    step, contract, run = program(lm, shape)
    args = arguments(lm, shape)
    bound, wrapped = contract.bind(wrap(step), args), wrap(run)
    base, inputs = jax.tree.leaves(wrapped(*args)), jax.tree.leaves(args)
    reached, inert = dict[str, None](), list[int]()
    for half in (0, 1):
        hit = np.arange(shape.lanes) % 2 == half
        changed = np.zeros(shape.lanes, np.bool_)
        got = jax.tree.leaves(wrapped(*_disturbed(args, bound, hit, lm.config.vocab_size)))
        for output, expected, array in zip(bound.outputs, base, got, strict=True):
            entry: Any = output.entry
            differs = _bits(expected) != _bits(array)
            rows = np.asarray(differs.any(axis=tuple(i for i in range(differs.ndim) if i != entry.axis)))
            lanes = np.array([rows[rows_of(bound, inputs, entry, lane)].any() for lane in range(shape.lanes)])
            if lanes[~hit].any():
                reached[output.path] = None
            changed |= lanes
        inert += np.flatnonzero(hit & ~changed).tolist()
    return list(reached), inert


def _disturbed(args: tuple[Any, ...], bound: Any, hit: np.ndarray, vocab: int) -> tuple[Any, ...]:
    leaves, tree = jax.tree.flatten(args)
    for i, spec in enumerate(bound.inputs):
        if not isinstance(spec.entry, Lane | Pool):
            continue
        leaf, axis = leaves[i], spec.entry.axis
        if spec.path.startswith("args[1].layers"):
            rows = [row for lane in np.flatnonzero(hit) for row in rows_of(bound, leaves, spec.entry, int(lane))]
            where = np.isin(np.arange(leaf.shape[axis]), rows).reshape(
                [-1 if j == axis else 1 for j in range(leaf.ndim)]
            )
            other = jnp.asarray(np.nan, leaf.dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else ~leaf
            leaves[i] = jnp.where(where, other, leaf)
        elif spec.path == LENGTHS:
            # no lane that is disturbed does nothing
            tokens = int(np.max(leaf))
            leaves[i] = np.where(hit, np.where(leaf == tokens, 1, tokens), leaf).astype(np.int32)
        else:
            array = np.moveaxis(np.array(leaf), axis, 0)
            for lane in np.flatnonzero(hit):
                array[lane] = change(spec.path, array[lane], np.random.default_rng((int(lane), i)), vocab)
            leaves[i] = np.moveaxis(array, 0, axis)
    return jax.tree.unflatten(tree, leaves)


def _bits(array: Any) -> jax.Array:
    array = jnp.asarray(array)
    if array.dtype == jnp.bool_:
        return array
    return jax.lax.bitcast_convert_type(array, jnp.dtype(f"uint{8 * array.dtype.itemsize}"))

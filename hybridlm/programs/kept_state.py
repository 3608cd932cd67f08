"""Measure that only accepted tokens change the kept state of a verifying step.

A small model with random weights has one layer of each kind with state. Verifying steps with equal accepted tokens and
different rejected drafts must leave the same bits, and the state of an ordinary step with the accepted tokens. Layers
run in sequence, which also detects outputs that depend on rejected drafts.
"""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.tree_util import GetAttrKey

from hybridlm.programs.step_key import PACKAGES, structure_name
from hybridlm.steps.structure import Structure
from ir_passes.contract.statements import MeasuredFault
from ir_passes.files.loaded_code import patched_code
from ir_passes.xla_audit.findings import Finding
from models import Decoder, DecoderConfig, MtpDecoder
from models.decoder.decoder import BranchConfig, lane_info
from models.mixers.ngram_embedding import NgramEmbeddingConfig
from models.sharding.devices import Devices
from models.state.pages import kv_blocks
from models.state.state import StateArray

VOCABULARY = 64
POSITION = 5
"""Tokens before the step in half of the lanes."""
COUNTS = 8
"""Numbers of accepted tokens per call, with four lanes each."""
TOLERANCE = 1e-3
"""Largest difference from the ordinary step, relative to the lane's largest number: rounding is about 1e-6, wrong
tokens about 1."""
RANDOM_BLOCK = 1 << 20
"""Random numbers to draw; larger weights repeat them."""
FAST_TO_COMPILE = {"xla_backend_optimization_level": 0}
"""Options of XLA:CPU that save compile time."""
REMEDY = (
    "While info.verifying, return the inputs of each token instead of a new state; make the state of them in "
    "commit(kept, info, state), whose info.valid masks the accepted tokens (docs/adding-a-family.md)."
)


class _Lanes(NamedTuple):
    """int32 operands of one call: token ids [lane, token], other arrays [lane].

    Attributes:
        tokens, other_drafts: equal accepted tokens, different rejected drafts.
    """

    tokens: np.ndarray
    other_drafts: np.ndarray
    lengths: np.ndarray
    accepted: np.ndarray
    positions: np.ndarray


_findings: dict[Any, tuple[Finding, ...]] = {}
_lock = threading.Lock()


def kept_state_findings(
    config: DecoderConfig, devices: Devices, structure: Structure, tokens: int
) -> tuple[Finding, ...]:
    """Return faults of layers in a verifying step of `tokens`, cached by structure.

    Args:
        config: the whole model, not a shard.
        devices: platform and kernels; the layers run on one device.
    """
    devices = devices._replace(model=1, expert=1)
    # A layer of another package, or a patched one, may have changed under the same name.
    patched = patched_code(*(folder.name for folder in PACKAGES))
    name = None if patched else structure_name(structure)
    if name is None:
        return _measured(_small_model(config, devices), tokens)
    key = name, devices, tokens
    with _lock:
        if key not in _findings:
            _findings[key] = _measured(_small_model(config, devices), tokens)
        return _findings[key]


def _measured(model: Decoder, tokens: int) -> tuple[Finding, ...]:
    graph, types = nnx.split(model)
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: _random_weight(leaf, rng), types)
    blocks = kv_blocks(POSITION + tokens)
    options = FAST_TO_COMPILE if model.config.devices.platform == "cpu" else None

    @partial(jax.jit, compiler_options=options)
    def verified(params: Any, tokens: Any, lanes: Any, state: tuple) -> tuple[Any, tuple]:
        model = nnx.merge(graph, params)
        hidden, pending = model(tokens, lanes.lengths, lanes.positions, state, blocks, verifying=True)
        return hidden, model.commit(pending, lane_info(tokens, lanes.accepted, lanes.positions, blocks), state)

    @partial(jax.jit, compiler_options=options)
    def ordinary(params: Any, tokens: Any, lanes: Any, state: tuple) -> tuple[Any, tuple]:
        return nnx.merge(graph, params)(tokens, lanes.accepted, lanes.positions, state, blocks)

    faults: dict[tuple[str, MeasuredFault], Finding] = {}
    for lanes in _calls(tokens, rng):
        count = len(lanes.lengths)
        random_state = partial(_random_state, lanes=count, pages=1 + count * blocks, rng=rng)
        state = jax.tree.map(random_state, model.state_arrays())
        runs = [verified(params, drafts, lanes, state) for drafts in (lanes.tokens, lanes.other_drafts)]
        results = jax.device_get([*runs, ordinary(params, lanes.tokens, lanes, state)])
        for name, kind, message in _differences(model, lanes, results):
            faults.setdefault((name, kind), Finding(kind, name, message, REMEDY, (name,)))
    return tuple(faults.values())


def _small_model(config: DecoderConfig, devices: Devices) -> Decoder:
    branches = dict.fromkeys(
        branch.with_tables_of(VOCABULARY) if isinstance(branch, NgramEmbeddingConfig) else branch
        for layer in config.layers
        for branch in layer
    )
    small = replace(config, vocab_size=VOCABULARY, tied=True)

    def with_state(branches: Sequence[BranchConfig]) -> tuple[BranchConfig, ...]:
        layers = nnx.eval_shape(lambda: Decoder(replace(small, layers=(tuple(branches),), head=None), nnx.Rngs(0)))
        pairs = zip(branches, layers.stateful(), strict=True)
        return tuple(branch for branch, layer in pairs if jax.tree.leaves(layer.state_arrays()))

    layers = tuple((branch,) for branch in with_state(tuple(branches)))
    head = None if config.head is None else with_state(config.head)
    local = replace(small, layers=layers, head=head).shard(devices)
    return nnx.eval_shape(lambda: (Decoder if head is None else MtpDecoder)(local, nnx.Rngs(0)))


def _random_weight(leaf: jax.ShapeDtypeStruct, rng: np.random.Generator) -> np.ndarray:
    """Return weights of variance 1 / fan-in; vectors around 1."""
    size = min(int(np.prod(leaf.shape)), RANDOM_BLOCK)
    numbers = rng.uniform(0.5, 1.5, size) if len(leaf.shape) < 2 else rng.normal(size=size) * leaf.shape[-1] ** -0.5
    return np.resize(numbers.astype(leaf.dtype), leaf.shape)


def _random_state(array: StateArray, lanes: int, pages: int, rng: np.random.Generator) -> np.ndarray:
    """Return random rows of a state array, or pages of a cache; zero for integers."""
    leaf = array.of(lanes, pages, jnp.float32)
    values = rng.normal(size=leaf.shape) if jnp.issubdtype(leaf.dtype, jnp.floating) else np.zeros(leaf.shape)
    return values.astype(leaf.dtype)


def _calls(tokens: int, rng: np.random.Generator) -> Iterator[_Lanes]:
    """Yield the lanes of each call.

    Each accepted count occurs with and without rejected drafts, from position 0 and from `POSITION`.
    """
    counts = np.arange(tokens + 1)
    for begin in range(0, tokens + 1, COUNTS):
        accepted = np.repeat(np.resize(counts[begin : begin + COUNTS], min(tokens + 1, COUNTS)), 4).astype(np.int32)
        lanes = np.arange(len(accepted))
        lengths = np.where(lanes % 2 == 0, tokens, accepted).astype(np.int32)
        positions = np.where(lanes % 4 < 2, 0, POSITION).astype(np.int32)
        ids = rng.integers(0, VOCABULARY, (len(lanes), tokens)).astype(np.int32)
        rejected = np.arange(tokens) >= accepted[:, None]
        other_drafts = np.where(rejected, (ids + rng.integers(1, VOCABULARY, ids.shape)) % VOCABULARY, ids)
        yield _Lanes(ids, other_drafts.astype(np.int32), lengths, accepted, positions)


def _differences(
    model: Decoder, lanes: _Lanes, results: Sequence[tuple[np.ndarray, tuple]]
) -> Iterator[tuple[str, MeasuredFault, str]]:
    """Yield (name, fault, message) for each wrong array of each lane.

    Args:
        results: outputs [lane, token, hidden] and state with the first and the second rejected drafts, and without.
    """
    layers = model.stateful()
    names = [type(layer).__name__ for layer in layers]
    described = jax.tree_util.tree_leaves_with_path(model.state_arrays())
    states = zip(*(jax.tree.leaves(state) for _, state in results), strict=True)
    parts = [
        (
            names[path[0].idx] + jax.tree_util.keystr(path[2 - isinstance(path[1], GetAttrKey) :]),
            array.positions_axis,
            layers[path[0].idx].cache_lag,
            tuple(_of_lanes(pool, array.positions_axis, len(lanes.accepted)) for pool in values),
        )
        for (path, array), values in zip(described, states, strict=True)
    ]
    for name, axis, lag, values in [*parts, ("outputs", 0, 0, tuple(hidden for hidden, _ in results))]:
        for lane, count in enumerate(lanes.accepted.tolist()):
            begin, length = int(lanes.positions[lane]), lanes.lengths[lane]
            end = count if name == "outputs" else max(begin + count - lag, 0)
            first, second, ordinary = (_written_positions(rows[lane], axis, end) for rows in values)
            message = f"{count} of {length} tokens accepted from position {begin}"
            if first.tobytes() != second.tobytes():
                yield name, MeasuredFault.REJECTED_TOKENS, message
            elif (difference := _distance(first, ordinary)) > TOLERANCE:
                yield name, MeasuredFault.NOT_THE_ACCEPTED, f"{message}: a difference of {difference:.2g} of its size"


def _of_lanes(pool: np.ndarray, axis: int | None, lanes: int) -> np.ndarray:
    """Return the rows of a pool, or each lane's joined pages, without the null page."""
    if axis is None:
        return pool
    return np.stack([np.concatenate(pages, axis) for pages in np.split(pool[1:], lanes)])


def _written_positions(row: np.ndarray, axis: int | None, end: int) -> np.ndarray:
    """Return a row, or a cache to `end`."""
    return row if axis is None else np.take(row, np.arange(end), axis)


def _distance(actual: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest relative difference; infinite unless all numbers are finite."""
    if not actual.size:
        return 0.0
    actual, expected = actual.astype(np.float64), expected.astype(np.float64)
    difference = (
        float(np.max(np.abs(actual - expected)) / max(float(np.max(np.abs(expected))), 1e-30))
        if np.any(actual != expected)
        else 0.0
    )
    return difference if np.isfinite(actual).all() and np.isfinite(expected).all() else np.inf

"""Measure that only accepted tokens change the kept state of a verifying step.

One layer of each kind with state runs as it does in a verifying step, in a small model of random weights: the same
accepted tokens with two sets of rejected drafts must leave the same bits, and the state of an ordinary step that reads
the accepted tokens alone. Layers follow one another, so that a layer whose outputs at accepted tokens depend on
rejected drafts is found too.
"""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

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
from models.decoder.decoder import BranchConfig
from models.sharding.devices import Devices
from models.state.state import StateArray

VOCABULARY = 64
POSITION = 5
"""Tokens before the step in half of the lanes; the sequences of the others begin in it."""
COUNTS = 8
"""Numbers of accepted tokens that one call measures, each in four lanes."""
TOLERANCE = 1e-3
"""Largest difference from the ordinary step, as a fraction of the lane's largest number: two programs round otherwise,
by 1e-6 in float32, and a missing or surplus token changes a state of a few random tokens by its own size."""
RANDOM_BLOCK = 1 << 20
"""Random numbers that are drawn; larger weights repeat them."""
FAST_TO_COMPILE = {"xla_backend_optimization_level": 0}
"""Options of XLA:CPU; the layers run three times."""
REMEDY = (
    "While info.verifying, return the inputs of each token instead of a new state; make the state of them in "
    "commit(kept, info, state), whose info.valid masks the accepted tokens (docs/adding-a-family.md)."
)


class _Lanes(NamedTuple):
    """Operands of one call, int32: token ids [lane, token], the others [lane].

    Attributes:
        tokens: accepted tokens and rejected drafts.
        others: the same accepted tokens with other rejected drafts.
        lengths, accepted, positions: as of `verify_step`.
    """

    tokens: np.ndarray
    others: np.ndarray
    lengths: np.ndarray
    accepted: np.ndarray
    positions: np.ndarray


class KeptState:
    """The measurement for one model: made once for each number of tokens, and once for models of equal structure.

    Args:
        config: of the whole model, not of a shard.
        devices: platform and kernels of the steps; the layers run on one device.
        structure: of the steps' model.
    """

    _shared: ClassVar[dict[Any, tuple[Finding, ...]]] = {}

    def __init__(self, config: DecoderConfig, devices: Devices, structure: Structure):
        self._config, self._devices = config, devices._replace(model=1, expert=1)
        self._structure, self._own = structure, dict[Any, tuple[Finding, ...]]()
        self._lock = threading.Lock()

    def findings(self, tokens: int) -> tuple[Finding, ...]:
        """Run the layers with state for every number of accepted tokens; return their faults.

        Args:
            tokens: T of the verifying step: the drafts and one more.
        """
        # Layers from elsewhere, or patched ones, may have changed under the same name.
        patched = patched_code(*(folder.name for folder in PACKAGES))
        name = None if patched else structure_name(self._structure)
        known = self._own if name is None else self._shared
        key = name, self._devices, tokens
        with self._lock:
            if key not in known:
                known[key] = _measured(_small_model(self._config, self._devices), tokens)
            return known[key]


def _measured(model: Decoder, tokens: int) -> tuple[Finding, ...]:
    """Measure a small model, whose parameters are ShapeDtypeStructs."""
    graph, types = nnx.split(model)
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: _random_weight(leaf, rng), types)
    fast = FAST_TO_COMPILE if model.config.devices.platform == "cpu" else None

    @partial(jax.jit, compiler_options=fast)
    def verified(params: Any, tokens: Any, lanes: Any, state: tuple) -> tuple[Any, tuple]:
        model = nnx.merge(graph, params)
        hidden, kept = model(tokens, lanes.lengths, lanes.positions, state, 1, verifying=True)
        return hidden, model.commit(kept, tokens, lanes.accepted, lanes.positions, state, 1)

    @partial(jax.jit, compiler_options=fast)
    def ordinary(params: Any, tokens: Any, lanes: Any, state: tuple) -> tuple[Any, tuple]:
        return nnx.merge(graph, params)(tokens, lanes.accepted, lanes.positions, state, 1)

    faults: dict[tuple[str, MeasuredFault], Finding] = {}
    for lanes in _calls(tokens, rng):
        state = jax.tree.map(partial(_random_state, lanes=len(lanes.lengths), rng=rng), model.state_arrays())
        results = _Results(
            *jax.device_get(
                (
                    verified(params, lanes.tokens, lanes, state),
                    verified(params, lanes.others, lanes, state),
                    ordinary(params, lanes.tokens, lanes, state),
                )
            )
        )
        for place, kind, message in _differences(model, lanes, results):
            faults.setdefault((place, kind), Finding(kind, place, message, REMEDY, (place,)))
    return tuple(faults.values())


class _Results(NamedTuple):
    """Outputs `[lane, token, hidden]` and state of each run, on the host.

    Attributes:
        first, second: with these drafts rejected, and with others.
        ordinary: of a step that reads the accepted tokens alone.
    """

    first: tuple[np.ndarray, tuple]
    second: tuple[np.ndarray, tuple]
    ordinary: tuple[np.ndarray, tuple]


def _small_model(config: DecoderConfig, devices: Devices) -> Decoder:
    """Build a model of one layer for each kind of branch with state; its parameters are ShapeDtypeStructs."""
    branches = dict.fromkeys(branch for layer in config.layers for branch in layer)
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
    """Return random numbers in place of a weight: of variance 1 / fan-in, or about 1 for a vector."""
    size = min(int(np.prod(leaf.shape)), RANDOM_BLOCK)
    numbers = rng.uniform(0.5, 1.5, size) if len(leaf.shape) < 2 else rng.normal(size=size) * leaf.shape[-1] ** -0.5
    return np.resize(numbers.astype(leaf.dtype), leaf.shape)


def _random_state(array: StateArray, lanes: int, rng: np.random.Generator) -> np.ndarray:
    """Return random rows of an array of the state; integers are zero."""
    leaf = array.of(lanes, 1, jnp.float32)
    values = rng.normal(size=leaf.shape) if jnp.issubdtype(leaf.dtype, jnp.floating) else np.zeros(leaf.shape)
    return values.astype(leaf.dtype)


def _calls(tokens: int, rng: np.random.Generator) -> Iterator[_Lanes]:
    """Yield the lanes of each call: every count of accepted tokens, with and without drafts behind them."""
    counts = np.arange(tokens + 1)
    for begin in range(0, tokens + 1, COUNTS):
        accepted = np.repeat(np.resize(counts[begin : begin + COUNTS], min(tokens + 1, COUNTS)), 4).astype(np.int32)
        lanes = np.arange(len(accepted))
        lengths = np.where(lanes % 2 == 0, tokens, accepted).astype(np.int32)
        positions = np.where(lanes % 4 < 2, 0, POSITION).astype(np.int32)
        ids = rng.integers(0, VOCABULARY, (len(lanes), tokens)).astype(np.int32)
        rejected = np.arange(tokens) >= accepted[:, None]
        others = np.where(rejected, (ids + rng.integers(1, VOCABULARY, ids.shape)) % VOCABULARY, ids)
        yield _Lanes(ids, others.astype(np.int32), lengths, accepted, positions)


def _differences(model: Decoder, lanes: _Lanes, results: "_Results") -> Iterator[tuple[str, MeasuredFault, str]]:
    """Yield array, fault and message for each wrong array of each lane."""
    names = [type(layer).__name__ for layer in model.stateful()]
    described = jax.tree_util.tree_leaves_with_path(model.state_arrays())
    states = zip(*(jax.tree.leaves(state) for _, state in results), strict=True)
    parts = [
        (names[path[0].idx] + jax.tree_util.keystr(path[2 - isinstance(path[1], GetAttrKey) :]), _axis(array), values)
        for (path, array), values in zip(described, states, strict=True)
    ]
    for place, axis, values in [*parts, ("outputs", 0, tuple(hidden for hidden, _ in results))]:
        for lane, count in enumerate(lanes.accepted.tolist()):
            begin, length = int(lanes.positions[lane]), lanes.lengths[lane]
            end = count if place == "outputs" else begin + count
            first, second, ordinary = (_kept(rows[lane], axis, end) for rows in values)
            message = f"{count} of {length} tokens accepted from position {begin}"
            if first.tobytes() != second.tobytes():
                yield place, MeasuredFault.REJECTED_TOKENS, message
            elif (off := _distance(first, ordinary)) > TOLERANCE:
                yield place, MeasuredFault.NOT_THE_ACCEPTED, f"{message}: a difference of {off:.2g} of its size"


def _axis(array: StateArray) -> int | None:
    """Return the position axis of a row; None for an array of fixed size."""
    return [size for _, size in array.sizes].index(None) if array.grows else None


def _kept(row: np.ndarray, axis: int | None, end: int) -> np.ndarray:
    """Return a row, or the first `end` positions of a cache: later ones are written before they are read."""
    return row if axis is None else np.take(row, np.arange(end), axis)


def _distance(got: np.ndarray, want: np.ndarray) -> float:
    """Return the largest difference as a fraction of the largest number; infinite where one is not finite."""
    if not got.size:
        return 0.0
    got, want = got.astype(np.float64), want.astype(np.float64)
    off = float(np.max(np.abs(got - want)) / max(float(np.max(np.abs(want))), 1e-30)) if np.any(got != want) else 0.0
    return off if np.isfinite(got).all() and np.isfinite(want).all() else np.inf

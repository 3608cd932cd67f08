"""Sample the next token of every lane from its logits.

The random key is (seed, request index, position): tokens do not depend on batch-mates or lanes.
"""

import functools
import math
import operator
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Bool, Float32, Int32, UInt32

from hybridlm.sampling.filter_cutoffs import filter_cutoffs, ordered
from hybridlm.sampling.sample_rows import KERNEL as SAMPLE_ROWS
from hybridlm.sampling.sample_rows import sample_rows
from models.ops.kernels import fastest
from models.ops.layout import materialize
from models.sharding.devices import SINGLE_DEVICE, Devices, varying_like

HostOrDevice = Array | np.ndarray

LogitsProcessor = Callable[[Float32[Array, "vocab"], Int32[Array, ""], Int32[Array, ""]], Float32[Array, "vocab"]]
"""(logits of one lane, its last token, position to sample) -> logits; jittable."""


NAN_SLICES = 16
"""Slices of a row that are checked for NaN element by element."""


class Sampling(NamedTuple):
    """Sampling settings of each lane, applied in order: temperature, top_k, top_p, min_p.

    Attributes:
        top_k: keep the k most likely tokens, and ties with the last; 0 keeps all.
        top_p: keep a token if more likely ones have less total probability; 1 keeps all.
        min_p: keep tokens at least min_p times as likely as the most likely; 0 keeps all.
        seed: 64 bits in two words, high and low.
    """

    temperature: Float32[HostOrDevice, "lane"]
    top_k: Int32[HostOrDevice, "lane"]
    top_p: Float32[HostOrDevice, "lane"]
    min_p: Float32[HostOrDevice, "lane"]
    seed: UInt32[HostOrDevice, "lane 2"]
    index: UInt32[HostOrDevice, "lane"]


def _groups(logits: Float32[Array, "row vocab"]) -> Float32[Array, "row group token"]:
    rows, vocab = logits.shape
    return logits.reshape((rows, -1, math.gcd(vocab, 128)))


def group_max(logits: Float32[Array, "row vocab"]) -> Float32[Array, "row group"]:
    """Return each token group's maximum, for all uses in a step; may ignore NaN."""
    return jnp.max(_groups(logits), axis=2)


def has_nan(logits: Float32[Array, "row vocab"]) -> Bool[Array, "row"]:
    """Whether a row has NaN: XLA:CPU's max() drops it in large arrays.

    Slices are combined element by element, which is faster.
    """
    rows, vocab = logits.shape
    slices = logits.reshape((rows, math.gcd(vocab, NAN_SLICES), -1))
    nan_tokens = functools.reduce(operator.or_, (jnp.isnan(slices[:, i]) for i in range(slices.shape[1])))
    return jnp.any(materialize(nan_tokens), axis=1)


def most_likely(logits: Float32[Array, "row vocab"], platform: str = "cpu") -> Int32[Array, "row"]:
    """Return the first index of each row's maximum; `vocab` if the row has NaN."""
    if platform != "gpu":
        return jnp.where(has_nan(logits), jnp.int32(logits.shape[1]), grouped_argmax(logits))
    first = lax.argmax(logits, 1, jnp.int32)  # of a row with NaN, the place of one
    logit = jnp.take_along_axis(logits, first[:, None], axis=1, mode="fill")[:, 0]
    return jnp.where(jnp.isnan(logit), jnp.int32(logits.shape[1]), first)


def grouped_argmax(logits: Float32[Array, "row vocab"]) -> Int32[Array, "row"]:
    """Return the first index of each row's maximum, for rows without NaN.

    Logits are read once, for group maxima.
    """
    groups = _groups(logits)
    size = groups.shape[2]
    highest = group_max(logits)
    # Not by comparison with the maximum: XLA may compute a value twice, rounded otherwise (ops/layout: fusion).
    first = lax.argmax(highest, 1, jnp.int32)
    group = jnp.take_along_axis(groups, first[:, None, None], axis=1, mode="fill")[:, 0]
    return first * size + lax.argmax(group, 1, jnp.int32)


GREEDY, SAMPLED, FILTERED = range(3)
"""A lane's most general mode; general modes are slower with equal samples."""
BESIDE_GREEDY = 4
"""Added to a mode above GREEDY if a lane has temperature 0."""
MAX_BATCHED_LOGITS = 1_800_000
"""Logits sampled together on a CPU, above it lane by lane: XLA would map a step's scratch anew in every call
(docs/performance.md)."""


def _key(sampling: Sampling, position: Array) -> Array:
    key = jax.random.wrap_key_data(jnp.asarray(sampling.seed), impl="threefry2x32")
    return jax.random.fold_in(jax.random.fold_in(key, sampling.index), position)


def _noise(sampling: Sampling, position: Array, vocab: int) -> Array:
    return jax.random.gumbel(_key(sampling, position), (vocab,), jnp.float32)


def kept_by_filters(scaled: Float32[Array, "lane vocab"], sampling: Sampling) -> Bool[Array, "lane vocab"]:
    """Return the mask of tokens that each lane's filters keep, on CPUs.

    The most likely token is always kept. A filter is a cutoff: ties stay together, and nothing is sorted.

    Args:
        scaled: logits over temperature.
    """
    order = ordered(scaled)
    highest = jnp.max(scaled, axis=1, keepdims=True)
    best = jnp.max(order, axis=1)
    unit_weights = jnp.ones(scaled.shape, jnp.float32)
    wanted = jnp.asarray(sampling.top_k, jnp.float32)
    cutoff = jnp.where(sampling.top_k > 0, _cutoff(order, unit_weights, wanted), jnp.uint32(0))
    keep = order >= cutoff[:, None]
    # in units of the probability of the most likely token; its logit may be infinite
    weight = jnp.where(scaled == highest, 1.0, jnp.where(keep, jnp.exp(scaled - highest), 0.0))
    enough = jnp.asarray(sampling.top_p) * jnp.sum(weight, axis=1)
    cutoff = jnp.where(sampling.top_p < 1.0, jnp.minimum(_cutoff(order, weight, enough), best), jnp.uint32(0))
    first = jnp.arange(scaled.shape[1], dtype=jnp.int32)[None] == grouped_argmax(scaled)[:, None]
    return first | (keep & (order >= cutoff[:, None]) & (weight >= sampling.min_p[:, None]))


def _cutoff(
    order: UInt32[Array, "lane vocab"], weight: Float32[Array, "lane vocab"], enough: Float32[Array, "lane"]
) -> UInt32[Array, "lane"]:
    """Return the lowest cutoff with less than `enough` weight above, by bisection."""

    def halve(bounds: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], None]:
        low, high = bounds
        middle = low + (high - low) // 2
        above = jnp.sum(jnp.where(order > middle[:, None], weight, 0.0), axis=1) < enough
        return (jnp.where(above, low, middle + 1), jnp.where(above, middle, high)), None

    lanes = order.shape[0]
    bounds = (jnp.zeros(lanes, jnp.uint32), jnp.full(lanes, 0xFFFFFFFF, jnp.uint32))
    (cutoff, _), _ = lax.scan(halve, varying_like(bounds, order), length=32)
    return cutoff


def sample_tokens(
    logits: Float32[Array, "lane vocab"],
    sampling: Sampling,
    positions: Int32[Array, "lane"],
    sampling_mode: Int32[Array, ""],
    devices: Devices = SINGLE_DEVICE,
) -> Int32[Array, "lane"]:
    """Sample the next token of every lane; `vocab` for a lane with NaN.

    Args:
        sampling_mode: `GREEDY` if all temperatures are 0, `SAMPLED` without filters, else `FILTERED`; `BESIDE_GREEDY`
            has no effect.
        devices: on GPUs and TPUs a loop would launch operations lane by lane.
    """
    if SAMPLE_ROWS.chosen(devices, logits):
        return lax.cond(
            sampling_mode == GREEDY,
            lambda: most_likely(logits, devices.platform),
            lambda: _sampled_by_kernel(logits, sampling, positions),
        )
    greedy = most_likely(logits, devices.platform)

    def alone(lane: tuple[Array, Array, Sampling, Array]) -> Array:
        logits, greedy, sampling, position = jax.tree.map(lambda x: x[None], lane)
        return _sampled(logits, greedy, sampling, position, sampling_mode)[0]

    def sampled() -> Array:
        of_lanes = (logits, greedy, jax.tree.map(jnp.asarray, sampling), positions)
        if devices.platform != "cpu" or logits.size <= MAX_BATCHED_LOGITS:
            return _sampled(*of_lanes, sampling_mode, devices)
        return lax.map(alone, of_lanes)

    return lax.cond(sampling_mode == GREEDY, lambda: greedy, sampled)


def _sampled_by_kernel(
    logits: Float32[Array, "lane vocab"], sampling: Sampling, positions: Int32[Array, "lane"]
) -> Int32[Array, "lane"]:
    keys = jax.vmap(lambda sampling, position: jax.random.key_data(_key(sampling, position)))(sampling, positions)
    limits = (jnp.asarray(limit) for limit in (sampling.top_k, sampling.top_p, sampling.min_p))
    return sample_rows(logits, jnp.asarray(sampling.temperature), *limits, keys, instructions=fastest())


def _sampled(
    logits: Float32[Array, "lane vocab"],
    greedy: Int32[Array, "lane"],
    sampling: Sampling,
    positions: Int32[Array, "lane"],
    sampling_mode: Int32[Array, ""],
    devices: Devices = SINGLE_DEVICE,
) -> Int32[Array, "lane"]:
    vocab = logits.shape[1]
    temperature = jnp.where(sampling.temperature > 0, sampling.temperature, 1.0)
    scaled = logits / temperature[:, None]
    filtered = sampling_mode % BESIDE_GREEDY == FILTERED
    if devices.platform == "cpu" and not devices.interpret:
        mask = lax.cond(
            filtered,
            lambda: kept_by_filters(scaled, sampling),
            lambda: varying_like(jnp.ones(logits.shape, jnp.bool_), scaled),
        )
    else:
        mask = _kept_by_cutoffs(logits, greedy, temperature, sampling, filtered, devices)
    noise = jax.vmap(lambda sampling, position: _noise(sampling, position, vocab))(sampling, positions)
    noisy = jnp.where(mask, scaled + noise, -jnp.inf)
    tokens = lax.argmax(noisy, 1, jnp.int32) if devices.platform == "gpu" else grouped_argmax(noisy)
    return jnp.where((sampling.temperature > 0) & (greedy < vocab), tokens, greedy)


def _kept_by_cutoffs(
    logits: Float32[Array, "lane vocab"],
    greedy: Int32[Array, "lane"],
    temperature: Float32[Array, "lane"],
    sampling: Sampling,
    filtered: Bool[Array, ""],
    devices: Devices,
) -> Bool[Array, "lane vocab"]:
    """Return the mask of `kept_by_filters` from cutoffs, so that the branch writes no mask."""
    highest = jnp.take_along_axis(logits, greedy[:, None], axis=1, mode="fill")[:, 0]
    limits = jnp.asarray(sampling.top_k), jnp.asarray(sampling.top_p)
    cutoff = lax.cond(
        filtered,
        lambda: filter_cutoffs(logits, highest, temperature, *limits, devices),
        lambda: varying_like(jnp.zeros(highest.shape, jnp.uint32), highest),
    )
    scale, top = temperature[:, None], highest[:, None]
    weight = jnp.where(logits == top, 1.0, jnp.exp(logits / scale - top / scale))
    first = jnp.arange(logits.shape[1], dtype=jnp.int32)[None] == greedy[:, None]
    return first | ((ordered(logits) >= cutoff[:, None]) & (weight >= sampling.min_p[:, None]))

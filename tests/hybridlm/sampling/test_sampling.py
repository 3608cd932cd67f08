"""Possible tokens of sampling, their frequencies, and the inputs that they depend on."""

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from model_inputs import sampling_of
from random_checkpoint import write_random_checkpoint

import hybridlm
from hybridlm.sampling import sampling
from hybridlm.sampling.filter_cutoffs import _lowest, filter_cutoffs, ordered
from hybridlm.sampling.sampling import (
    BESIDE_GREEDY,
    FILTERED,
    GREEDY,
    SAMPLED,
    Sampling,
    _cutoff,
    kept_by_filters,
    most_likely,
    sample_tokens,
)
from models import Devices

VOCAB, LANES = 11, 6000
LOGITS = np.array([2.0, 1.5, 1.4, 0.2, 0.1, 0.0, -0.5, -1.0, -3.0, -5.0, 1.9], np.float32)
GPU = Devices(platform="gpu")
run = jax.jit(sample_tokens)


def expected(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0) -> np.ndarray:
    """Return float64 probabilities after temperature, top_k, top_p and min_p in turn."""
    p = np.exp(LOGITS.astype(np.float64) / temperature)
    order = np.argsort(-p)
    if top_k:
        p[order[top_k:]] = 0
    p /= p.sum()
    initial = np.cumsum(p[order]) - p[order]
    p[order[initial >= top_p]] = 0
    p[p < min_p * p.max()] = 0
    return p / p.sum()


@pytest.mark.parametrize("filters", [
    {}, {"temperature": 0.5}, {"temperature": 2.0, "top_k": 4}, {"top_p": 0.6}, {"top_k": 5, "top_p": 0.7},
    {"min_p": 0.5}, {"temperature": 1.5, "top_k": 8, "top_p": 0.9, "min_p": 0.2},
], ids=str)  # fmt: skip
def test_samples_follow_the_filtered_distribution(filters: dict) -> None:
    tokens = np.asarray(
        run(np.tile(LOGITS, (LANES, 1)), sampling_of(LANES, **filters), np.zeros(LANES, np.int32), np.int32(FILTERED))
    )
    frequency = np.bincount(tokens, minlength=VOCAB) / LANES
    want = expected(**filters)
    assert set(np.flatnonzero(frequency)) <= set(np.flatnonzero(want))
    # five standard deviations of a binomial frequency
    np.testing.assert_array_less(np.abs(frequency - want), 5 * np.sqrt(want * (1 - want) / LANES) + 1e-9)


def test_temperature_zero_is_the_first_most_likely_token_in_either_branch() -> None:
    logits = np.array([[1, 3, 3, 2], [5, 5, 5, 5], [0, -1, -2, 7]], np.float32)
    for sampling_mode in (GREEDY, SAMPLED, FILTERED):
        got = run(logits, sampling_of(3, 0.0), np.zeros(3, np.int32), np.int32(sampling_mode))
        assert got.tolist() == [1, 0, 3]


def kept_in_float64(scaled: np.ndarray, top_k: int, top_p: float, min_p: float) -> np.ndarray:
    keep = np.array([top_k == 0 or (scaled > x).sum() < top_k for x in scaled])
    weight = np.where(keep, np.exp(scaled.astype(np.float64) - scaled.max()), 0.0)
    array = np.array([weight[scaled > x].sum() for x in scaled])
    keep &= (top_p == 1.0) | (array < top_p * weight.sum()) | (scaled == scaled.max())
    return keep & (weight >= min_p)


def test_filters_keep_the_tokens_of_a_sort_and_ties_together() -> None:
    rng = np.random.default_rng(3)
    rows = [rng.normal(size=300) * 3, rng.integers(-3, 3, 300), np.zeros(300), -np.abs(rng.normal(size=300)) * 1e-3]
    rows += [np.where(np.arange(300) % 7, -np.inf, rng.normal(size=300)), np.where(np.arange(300) == 9, 1e30, 0.0)]
    rows += [np.where(np.arange(300) % 2, 0.0, -0.0), np.array([1e-40, -1e-40, 3.0] * 100)]
    filters = [
        (0, 1.0, 0.3), (1, 1.0, 0.0), (7, 1.0, 0.0), (0, 0.35, 0.0), (0, 1e-9, 0.0), (40, 0.8, 0.01), (299, 0.999, 0.0),
    ]  # fmt: skip
    for top_k, top_p, min_p in filters:
        scaled = np.stack(rows).astype(np.float32)
        of = sampling_of(len(rows), top_k=top_k, top_p=top_p, min_p=min_p)
        want = [kept_in_float64(row, top_k, top_p, min_p) for row in scaled]
        got = jax.jit(kept_by_filters)(scaled, of)
        np.testing.assert_array_equal(got, want, str((top_k, top_p, min_p)))
        cutoff = jax.jit(partial(filter_cutoffs, devices=GPU))(scaled, scaled.max(1), *map(jnp.asarray, of[:3]))
        weight = np.exp(scaled - scaled.max(1, keepdims=True))
        matches = (np.asarray(ordered(jnp.asarray(scaled))) >= np.asarray(cutoff)[:, None]) & (weight >= min_p)
        np.testing.assert_array_equal(matches, want, str((top_k, top_p, min_p, "by digits")))


@pytest.mark.parametrize("bits", [3, 4])
def test_cutoffs_found_by_digits_match_bisection(bits: int) -> None:
    """All of 32 bits, ties, nothing to be found, and sums that are never enough."""
    rng = np.random.default_rng(4)
    logits = rng.integers(0, 1 << 32, (8, 200), np.uint32).view(np.float32)
    logits = np.where(np.isnan(logits), rng.normal(size=logits.shape), logits).astype(np.float32)
    logits[1] = rng.integers(-3, 3, 200)
    logits[2, :9], logits[3] = [np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-45, 3.4e38, -3.4e38, 1.0], -np.inf
    weight = rng.integers(1, 5, logits.shape).astype(np.float32)
    enough = np.array([70, 150, 3, 500, 260, 0, 9, 1e9], np.float32)
    none = jnp.zeros(8, jnp.uint32)
    order = ordered(jnp.asarray(logits))
    compiled = jax.jit(
        lambda x: _lowest(x, lambda _: jnp.asarray(weight), lambda total: jnp.asarray(enough), none, bits)
    )(logits)
    bisected = np.asarray(jax.jit(_cutoff)(order, weight, enough))
    for x, item, other in zip(np.asarray(order), np.asarray(compiled), bisected, strict=True):
        assert item == 0 if other == 0 else (x >= item).tolist() == (x >= other).tolist()
    assert len(set(bisected.tolist())) > 5


def test_an_infinite_logit_is_sampled() -> None:
    logits = np.tile(LOGITS, (2, 1))
    logits[:, 5] = np.inf
    each: list[dict[str, Any]] = [{}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.5}]
    for filters in each:
        assert run(logits, sampling_of(2, **filters), np.zeros(2, np.int32), np.int32(FILTERED)).tolist() == [5, 5]


def test_lanes_without_filters_sample_the_same_next_to_lanes_with_filters() -> None:
    """Few distinct values, so that sums of logits and noise tie often."""
    rng = np.random.default_rng(0)
    logits = rng.integers(0, 3, (64, 3000)).astype(np.float32) * 1e6
    of_64 = np.zeros(64, np.int32)
    plain, filtered = (run(logits, sampling_of(64), of_64, np.int32(how)) for how in (SAMPLED, FILTERED))
    np.testing.assert_array_equal(plain, filtered)
    neighbour = sampling_of(64)._replace(top_k=np.where(np.arange(64) % 2, 3, 0).astype(np.int32))
    np.testing.assert_array_equal(run(logits, neighbour, of_64, np.int32(FILTERED))[::2], plain[::2])


def test_greedy_and_sampled_lanes_do_not_mix() -> None:
    logits = np.tile(LOGITS, (4, 1))
    mixed = sampling_of(4)._replace(temperature=np.array([0, 1, 0, 1], np.float32))
    got = run(logits, mixed, np.zeros(4, np.int32), np.int32(FILTERED))
    all_sampled = run(logits, sampling_of(4), np.zeros(4, np.int32), np.int32(FILTERED))
    assert got.tolist() == [0, all_sampled[1], 0, all_sampled[3]]


def every_setting(lanes: int) -> Sampling:
    """Lanes with each filter, with none, and greedy ones."""
    kinds = [sampling_of(1), sampling_of(1, 0.0), sampling_of(1, top_k=3), sampling_of(1, top_p=0.6)]
    kinds.append(sampling_of(1, min_p=0.3))
    mixed = jax.tree.map(lambda *each: np.concatenate([each[i % len(each)] for i in range(lanes)]), *kinds)
    return mixed._replace(index=np.arange(lanes, dtype=np.uint32))


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampling_mode", [GREEDY, SAMPLED, FILTERED, SAMPLED + BESIDE_GREEDY, FILTERED + BESIDE_GREEDY]
)
def test_many_logits_are_sampled_lane_by_lane_with_the_same_tokens(sampling_mode: int, monkeypatch: pytest.MonkeyPatch):
    logits = np.random.default_rng(1).normal(size=(23, 300)).astype(np.float32)
    logits[4, 5] = np.nan
    args = (logits, every_setting(23), np.arange(23, dtype=np.int32), np.int32(sampling_mode))
    array = np.asarray(run(*args))
    monkeypatch.setattr(sampling, "MAX_BATCHED_LOGITS", logits.size)
    loops = [str(jax.make_jaxpr(lambda *args: sample_tokens(*args))(*args)).count("length=23")]
    monkeypatch.setattr(sampling, "MAX_BATCHED_LOGITS", logits.size - 1)
    loops.append(str(jax.make_jaxpr(lambda *args: sample_tokens(*args))(*args)).count("length=23"))
    one_by_one = jax.jit(lambda *args: sample_tokens(*args))(*args)
    loops.append(
        str(jax.make_jaxpr(lambda *args: sample_tokens(*args, devices=Devices(platform="gpu")))(*args)).count(
            "length=23"
        )
    )
    assert loops == [0, 1, 0] and array[4] == 300
    np.testing.assert_array_equal(one_by_one, array)
    assert np.unique(array).size > 15


@pytest.mark.long
def test_steps_that_sample_lane_by_lane_are_certified_and_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    directory = write_random_checkpoint("next_base", tmp_path)
    sizes: dict[str, Any] = {"lanes": 4, "context": 40, "dtype": "float32", "chunk": 4}
    settings: dict[str, Any] = {"max_tokens": 5, "ignore_eos": True, "temperature": 0.9, "top_k": 9, "seed": 3}
    prompts = [[5, 6, 7], [9, 8], [3] * 6, [10]]
    expected = [completion.token_ids for completion in hybridlm.load(directory, **sizes).generate(prompts, **settings)]
    monkeypatch.setattr(sampling, "MAX_BATCHED_LOGITS", 1)
    for mesh in (None, hybridlm.mesh(data=2, model=2)):
        lm = hybridlm.load(directory, mesh=mesh, **sizes)
        assert [completion.token_ids for completion in lm.generate(prompts, **settings)] == expected
        assert lm.certificates and all(certificate.holds for certificate in lm.certificates.values())


def test_a_sample_depends_on_seed_index_and_position_only() -> None:
    logits = np.tile(LOGITS, (LANES, 1))
    base = np.asarray(run(logits, sampling_of(LANES), np.zeros(LANES, np.int32), np.int32(FILTERED)))
    assert len(set(base.tolist())) > 5
    order = np.random.default_rng(0).permutation(LANES)
    shuffled = jax.tree.map(lambda x: x[order], sampling_of(LANES))
    np.testing.assert_array_equal(run(logits, shuffled, np.zeros(LANES, np.int32), np.int32(FILTERED)), base[order])
    for other in (
        run(logits, sampling_of(LANES, seed=(0, 8)), np.zeros(LANES, np.int32), np.int32(FILTERED)),
        run(logits, sampling_of(LANES), np.ones(LANES, np.int32), np.int32(FILTERED)),
        run(
            logits,
            sampling_of(LANES)._replace(seed=np.tile(np.array([1, 7], np.uint32), (LANES, 1))),
            np.zeros(LANES, np.int32),
            np.int32(FILTERED),
        ),
    ):
        assert 0.5 < (np.asarray(other) != base).mean() < 0.95


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_give_no_token(temperature: float) -> None:
    logits = np.tile(LOGITS, (3, 1))
    logits[1, 4] = np.nan
    got = run(logits, sampling_of(3, temperature), np.zeros(3, np.int32), np.int32(FILTERED))
    assert got[1] == VOCAB and got[0] < VOCAB and got[2] < VOCAB


@pytest.mark.parametrize("shape", [(1, 248320), (1, 32768), (8, 32768), (33, 5000), (4, 4099), (64, 300), (2, 16)])
@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_nan_is_found_wherever_it_stands(shape: tuple[int, int], platform: str) -> None:
    """A maximum does not find it: XLA's library loses it in large arrays."""
    rng = np.random.default_rng(0)
    lanes, vocab = shape
    find = jax.jit(partial(most_likely, platform=platform))
    for place in (0, vocab - 1, *rng.integers(0, vocab, 4)):
        logits = rng.normal(size=shape).astype(np.float32)
        lane = rng.integers(lanes)
        expected = logits.argmax(axis=1)
        expected[lane] = vocab
        logits[lane, place] = np.nan
        assert np.asarray(find(logits)).tolist() == expected.tolist()
    logits[lane] = np.nan
    assert np.asarray(find(logits))[lane] == vocab
    logits[lane] = np.inf
    assert np.asarray(find(logits))[lane] == 0
    logits[lane] = -np.inf
    assert np.asarray(find(logits))[lane] == 0


def test_recomputed_values_may_be_rounded_differently() -> None:
    """Sums inside the argmax program never make a lane's logits NaN."""
    rng = np.random.default_rng(0)
    logits, noise = rng.normal(size=(2, 8, 64)).astype(np.float32)
    temperature = rng.uniform(0.3, 1.3, (8, 1)).astype(np.float32)
    for scores in (lambda x, t, g: x / t + g, lambda x, t, g: jnp.tanh(x) * t + jnp.exp(g) * x):
        array = np.asarray(jax.jit(lambda *args, scores=scores: most_likely(scores(*args)))(logits, temperature, noise))
        exact = np.asarray(scores(*(jnp.asarray(each, jnp.float32) for each in (logits, temperature, noise))))
        np.testing.assert_allclose(np.take_along_axis(exact, array[:, None], 1)[:, 0], exact.max(1), rtol=1e-6)

"""What a draw can give, how often, and on what it depends."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hybridlm._sampling import Sampling, draw, most_likely

VOCAB, LANES = 11, 6000
LOGITS = np.array([2.0, 1.5, 1.4, 0.2, 0.1, 0.0, -0.5, -1.0, -3.0, -5.0, 1.9], np.float32)
run = jax.jit(draw)


def settings(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=7, lanes=LANES) -> Sampling:
    return Sampling(
        np.full(lanes, temperature, np.float32),
        np.full(lanes, top_k, np.int32),
        np.full(lanes, top_p, np.float32),
        np.full(lanes, min_p, np.float32),
        np.tile(np.array([0, seed], np.uint32), (lanes, 1)),
        np.arange(lanes, dtype=np.uint32),
    )


def expected(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0) -> np.ndarray:
    """Probabilities in float64: temperature, top_k, top_p of what is left, min_p."""
    p = np.exp(LOGITS.astype(np.float64) / temperature)
    order = np.argsort(-p)
    if top_k:
        p[order[top_k:]] = 0
    p /= p.sum()
    before = np.cumsum(p[order]) - p[order]
    p[order[before >= top_p]] = 0
    p[p < min_p * p.max()] = 0
    return p / p.sum()


@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 2.0, "top_k": 4},
        {"top_p": 0.6},
        {"top_k": 5, "top_p": 0.7},
        {"min_p": 0.5},
        {"temperature": 1.5, "top_k": 8, "top_p": 0.9, "min_p": 0.2},
    ],
    ids=str,
)
def test_draws_follow_the_filtered_distribution(filters: dict) -> None:
    tokens = np.asarray(
        run(np.tile(LOGITS, (LANES, 1)), settings(**filters), np.zeros(LANES, np.int32), np.array(True))
    )
    frequency = np.bincount(tokens, minlength=VOCAB) / LANES
    want = expected(**filters)
    assert set(np.flatnonzero(frequency)) <= set(np.flatnonzero(want))
    # five standard deviations of a binomial frequency
    np.testing.assert_array_less(np.abs(frequency - want), 5 * np.sqrt(want * (1 - want) / LANES) + 1e-9)


def test_temperature_zero_is_the_first_most_likely_token_in_either_branch() -> None:
    logits = np.array([[1, 3, 3, 2], [5, 5, 5, 5], [0, -1, -2, 7]], np.float32)
    for any_sampled in (True, False):
        got = run(logits, settings(temperature=0.0, lanes=3), np.zeros(3, np.int32), np.array(any_sampled))
        assert got.tolist() == [1, 0, 3]


def test_greedy_and_sampled_lanes_do_not_mix() -> None:
    logits = np.tile(LOGITS, (4, 1))
    mixed = settings(lanes=4)._replace(temperature=np.array([0, 1, 0, 1], np.float32))
    got = run(logits, mixed, np.zeros(4, np.int32), np.array(True))
    all_sampled = run(logits, settings(lanes=4), np.zeros(4, np.int32), np.array(True))
    assert got.tolist() == [0, all_sampled[1], 0, all_sampled[3]]


def test_a_draw_depends_on_seed_index_and_position_only() -> None:
    logits = np.tile(LOGITS, (LANES, 1))
    base = np.asarray(run(logits, settings(), np.zeros(LANES, np.int32), np.array(True)))
    assert len(set(base.tolist())) > 5
    order = np.random.default_rng(0).permutation(LANES)
    shuffled = jax.tree.map(lambda x: x[order], settings())
    np.testing.assert_array_equal(run(logits, shuffled, np.zeros(LANES, np.int32), np.array(True)), base[order])
    for other in (
        run(logits, settings(seed=8), np.zeros(LANES, np.int32), np.array(True)),
        run(logits, settings(), np.ones(LANES, np.int32), np.array(True)),
        run(
            logits,
            settings()._replace(seed=np.tile(np.array([1, 7], np.uint32), (LANES, 1))),
            np.zeros(LANES, np.int32),
            np.array(True),
        ),
    ):
        assert 0.5 < (np.asarray(other) != base).mean() < 0.95


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_give_no_token(temperature: float) -> None:
    logits = np.tile(LOGITS, (3, 1))
    logits[1, 4] = np.nan
    got = run(logits, settings(temperature, lanes=3), np.zeros(3, np.int32), np.array(True))
    assert got[1] == VOCAB and got[0] < VOCAB and got[2] < VOCAB


def test_most_likely_equals_argmax() -> None:
    logits = jnp.asarray(np.random.default_rng(0).integers(0, 50, (40, 130)), jnp.float32)
    np.testing.assert_array_equal(jax.jit(most_likely)(logits), np.asarray(logits).argmax(1))

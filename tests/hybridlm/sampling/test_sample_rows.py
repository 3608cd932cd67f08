"""The CPU kernel samples the plain form's tokens for equal keys, row by row."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from model_inputs import sampling_of

from hybridlm.sampling.sample_rows import KERNEL
from hybridlm.sampling.sampling import BESIDE_GREEDY, FILTERED, GREEDY, SAMPLED, Sampling, sample_tokens
from models import Devices

pytestmark = pytest.mark.cpu_kernels

ROWS, VOCAB = 512, 1003
WITH_KERNEL, PLAIN = Devices(kernels="auto"), Devices(kernels="off")
run = jax.jit(sample_tokens, static_argnums=4)
FILTERS: dict[str, dict[str, Any]] = {
    "no filter": {}, "temperature 0.2": {"temperature": 0.2}, "top_k 1": {"top_k": 1}, "top_k 20": {"top_k": 20},
    "more groups than tokens": {"top_k": 500}, "the whole vocabulary": {"top_k": VOCAB}, "top_p": {"top_p": 0.7},
    "small top_p": {"top_p": 0.2}, "almost all": {"top_p": 0.9999}, "top_p 0": {"top_p": 0.0}, "min_p": {"min_p": 0.1},
    "typical settings": {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
    "all filters": {"temperature": 1.3, "top_k": 60, "top_p": 0.9, "min_p": 0.02},
}  # fmt: skip


settings = partial(sampling_of, seed=(3, 11))


def logits(rows: int = ROWS, vocab: int = VOCAB, spread: float = 2.0) -> jax.Array:
    values = np.random.default_rng(vocab).normal(size=(rows, vocab)) * spread
    return jnp.asarray(np.round(values * 32) / 32, jnp.float32)  # some logits are equal


def tokens(x: jax.Array, sampling: Sampling, devices: Devices, mode: int = FILTERED) -> np.ndarray:
    positions = np.arange(x.shape[0], dtype=np.int32) % 7
    return np.asarray(run(x, sampling, positions, np.int32(mode), devices))


@pytest.fixture(autouse=True)
def kernel() -> None:
    chosen = KERNEL.chosen(Devices(kernels="auto"), jax.ShapeDtypeStruct((ROWS, VOCAB), jnp.float32))
    assert chosen, "no kernels: build them with `python -m models.cpu_kernels`"


@pytest.mark.parametrize("filters", FILTERS.values(), ids=FILTERS)
def test_tokens_match_the_plain_form(filters: dict[str, Any]) -> None:
    x, sampling = logits(), settings(ROWS, **filters)
    np.testing.assert_array_equal(tokens(x, sampling, WITH_KERNEL), tokens(x, sampling, PLAIN))


@pytest.mark.parametrize("spread", [1e-3, 30.0, 1e6])
def test_flat_peaked_and_large_logits(spread: float) -> None:
    x = logits(spread=spread)
    for sampling in (settings(ROWS), settings(ROWS, top_p=0.9), settings(ROWS, top_p=0.3), settings(ROWS, min_p=0.5)):
        np.testing.assert_array_equal(tokens(x, sampling, WITH_KERNEL), tokens(x, sampling, PLAIN))


@pytest.mark.parametrize("filters", [{}, {"top_k": 3}, {"top_p": 0.5}], ids=str)
def test_infinite_logits(filters: dict[str, Any]) -> None:
    x = np.array(logits(8))
    x[0, 5] = np.inf
    x[1] = -np.inf
    x[2, 100:] = -np.inf
    x[3, [7, 900]] = np.inf
    x[4, :-1] = -np.inf
    result = tokens(jnp.asarray(x), settings(8, **filters), WITH_KERNEL)
    np.testing.assert_array_equal(result, tokens(jnp.asarray(x), settings(8, **filters), PLAIN))
    assert result[0] == 5 and result[2] < 100 and result[3] in (7, 900) and result[4] == VOCAB - 1


def test_a_row_is_sampled_by_itself() -> None:
    """Alone, permuted, and next to rows of NaN, at temperature 0 too."""
    x, sampling = logits(16), settings(16, 0.7, top_k=40, top_p=0.9)
    sampling.temperature[3] = 0.0
    positions = np.arange(16, dtype=np.int32)

    def sample(x: jax.Array, rows: np.ndarray | slice) -> np.ndarray:
        """Sample rows `x` with the settings and positions of `rows`."""
        chosen = jax.tree.map(lambda setting: setting[rows], sampling)
        return np.asarray(run(x, chosen, positions[rows], np.int32(FILTERED + BESIDE_GREEDY), WITH_KERNEL))

    tokens = sample(x, slice(16))
    assert tokens[3] == int(jnp.argmax(x[3]))
    order = np.random.default_rng(0).permutation(16)
    np.testing.assert_array_equal(sample(x[order], order), tokens[order])
    for row in range(16):
        assert sample(x[row : row + 1], slice(row, row + 1))[0] == tokens[row]
        neighbours = sample(jnp.full_like(x, jnp.nan).at[row].set(x[row]), slice(16))
        assert neighbours[row] == tokens[row] and (np.delete(neighbours, row) == VOCAB).all()


@pytest.mark.parametrize("mode", [GREEDY, SAMPLED, FILTERED])
def test_modes(mode: int) -> None:
    x, sampling = logits(32), settings(32, 0.0 if mode == GREEDY else 1.0)
    np.testing.assert_array_equal(tokens(x, sampling, WITH_KERNEL, mode), tokens(x, sampling, PLAIN, mode))


def test_words_that_depend_on_the_vocabulary_are_left_to_xla() -> None:
    shape = jax.ShapeDtypeStruct((1, VOCAB), jnp.float32)
    with jax.threefry_partitionable(False):
        assert not KERNEL.chosen(Devices(kernels="auto"), shape)

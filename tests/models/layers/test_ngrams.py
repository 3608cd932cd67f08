"""Hashed n-grams: rows against integers of any size, predecessors against a loop over tokens."""

import jax
import numpy as np
import pytest
from published import QWEN4_EXP

from hybridlm.families import NgramEmbeddingConfig
from models import family_of
from models.layers.ngrams import MAX_TABLE, hashed_rows, multipliers, next_window, previous_tokens, primes_from

END = 5


def test_tables_have_consecutive_primes() -> None:
    sieve = np.ones(2000, bool)
    sieve[:2] = False
    for i in range(2, 45):
        if sieve[i]:
            sieve[i * i :: i] = False
    primes = np.flatnonzero(sieve)
    for start in (0, 2, 3, 24, 1000):
        assert primes_from(start, 60) == tuple(primes[primes >= start][:60])


def test_the_published_table() -> None:
    """Readers of Qwen3.8-Flash-Next's files report 320,001,536 rows of 160 numbers."""
    config = family_of(QWEN4_EXP).read_config(QWEN4_EXP)
    (ngrams,) = [branch for layer in config.layers for branch in layer if isinstance(branch, NgramEmbeddingConfig)]
    assert config.layers[1][0] is ngrams
    assert (ngrams.rows, ngrams.width // len(ngrams.tables), len(ngrams.tables)) == (320_001_536, 160, 16)


@pytest.mark.parametrize("vocabulary", [97, 248_320, (1 << 31) - 1])
def test_rows_are_rests_of_large_numbers(vocabulary: int) -> None:
    rng = np.random.default_rng(vocabulary)
    tokens = rng.integers(0, vocabulary, (4, 2, 50)).astype(np.int32)
    tokens[:, 0, 0], tokens[:, 0, 1] = vocabulary - 1, 0
    factors = multipliers(vocabulary, 4, 3, 1234)
    assert all(factor % 2 and factor < 1 << 63 for factor in factors)
    tables = (2, 3, 65_537, 20_000_003, MAX_TABLE - 57, 101)
    rows = np.asarray(jax.jit(lambda x: hashed_rows(list(x), factors, tables))(tokens))
    for lane, token in np.ndindex(2, 50):
        ids = [int(token) for token in tokens[:, lane, token]]
        expected, start = [], 0
        for head, table in enumerate(tables):
            number = 0
            for i in range(2 + head // 2):
                number ^= (ids[i] * factors[i]) % (1 << 64)
            expected.append(start + number % table)
            start += table
        assert rows[lane, token].tolist() == expected


def test_multipliers_are_at_most_the_largest_integer_per_token() -> None:
    """A token id times its multiplier is below 2^63; layers and seeds have different ones."""
    factors = [factor for layer in range(4) for factor in multipliers(1000, 3, layer, 1234)]
    assert len(set(factors)) == 12 and max(factors) * 999 < 1 << 63 and max(factors) > 1 << 50
    assert multipliers(1000, 3, 0, 1) != multipliers(1000, 3, 0, 2)


def test_predecessors_stop_at_the_end_of_a_text() -> None:
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, END + 1, (6, 40)).astype(np.int32)
    window = rng.integers(0, END + 1, (6, 3)).astype(np.int32)
    history = np.concatenate([window, tokens], axis=1)
    shifted = jax.jit(lambda history: previous_tokens(history, 3, END))(history)
    for lane, token in np.ndindex(6, 40):
        for back in range(4):
            between = history[lane, token + 3 - back : token + 3]
            expected = END if END in between else history[lane, token + 3 - back]
            assert shifted[back][lane, token] == expected


def test_windows_hold_the_last_tokens() -> None:
    history = np.array([[1, 2, 10, 11, 12], [3, 4, 13, 14, 15], [5, 6, 16, 17, 18]], np.int32)
    window = jax.jit(lambda history, lengths: next_window(history, 2, lengths))(history, np.array([3, 1, 0], np.int32))
    assert np.asarray(window).tolist() == [[11, 12], [4, 13], [5, 6]]

"""Hashed n-grams: rows of an embedding table for the last tokens (as in Qwen4-Exp).

The hash of an n-gram is the exclusive or of its token ids, each times an odd number of 63 bits; a head's row is the
rest of its division by a prime. JAX without x64 has no 64-bit integers: numbers are lists of 16-bit digits.
"""

import math
from collections.abc import Sequence
from functools import cache

import jax.numpy as jnp
from jax import Array
from jaxtyping import Int32, UInt32

DIGIT_BITS, DIGITS = 16, 4
MAX_TABLE = 1 << 28
"""A rest times 16, plus a hexadecimal digit, has 32 bits."""
_MASK64 = (1 << 64) - 1


@cache
def primes_from(start: int, count: int) -> tuple[int, ...]:
    """Return the first `count` primes of at least `start`."""
    primes: list[int] = []
    number = max(start, 2)
    while len(primes) < count:
        if number == 2 or (number % 2 and all(number % i for i in range(3, math.isqrt(number) + 1, 2))):
            primes.append(number)
        number += 1
    return tuple(primes)


def multipliers(vocabulary: int, tokens: int, layer: int, seed: int) -> tuple[int, ...]:
    """Return the odd multiplier of each token of an n-gram, the current token first.

    Pseudo-random numbers of SplitMix64 (doi:10.1145/2714064.2660195).

    Args:
        layer: number among the layers with n-grams.
    """
    bound = max(1, ((1 << 63) - 1) // max(vocabulary, 1) // 2)
    return tuple(2 * (_split_mix(seed + 10007 * layer, i + 1) % bound) + 1 for i in range(tokens))


def _split_mix(seed: int, index: int) -> int:
    gamma = 0x9E3779B97F4A7C15
    value = (seed + gamma * index) & _MASK64
    value = (value + gamma) & _MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return value ^ (value >> 31)


def previous_tokens(history: Int32[Array, "lane all"], taps: int, end: int) -> list[Int32[Array, "lane token"]]:
    """Return each token and its predecessors at distances 1 to `taps`; `end` across an end.

    Args:
        history: the previous `taps` tokens, and the tokens.
    """
    tokens = history[:, taps:]
    shifted, ended = [tokens], jnp.zeros(tokens.shape, jnp.bool_)
    for distance in range(1, taps + 1):
        start = taps - distance
        predecessor = history[:, start : start + tokens.shape[1]]
        ended = ended | (predecessor == end)
        shifted.append(jnp.where(ended, end, predecessor))
    return shifted


def hashed_rows(
    previous: Sequence[Int32[Array, "lane token"]], factors: Sequence[int], tables: Sequence[int]
) -> Int32[Array, "lane token head"]:
    """Return each head's row in the joined tables.

    Args:
        previous: as from `previous_tokens`.
        factors: of each token.
        tables: sizes, equally many for n-grams of 2, 3, .. tokens.
    """
    heads = len(tables) // (len(previous) - 1)
    digits, rows = _product(previous[0], factors[0]), []
    for order, (token, factor) in enumerate(zip(previous[1:], factors[1:], strict=True)):
        digits = [a ^ b for a, b in zip(digits, _product(token, factor), strict=True)]
        rows.append(_rest(digits, tables[order * heads : (order + 1) * heads]))
    starts = [sum(tables[:head]) for head in range(len(tables))]
    return jnp.concatenate(rows, axis=-1).astype(jnp.int32) + jnp.array(starts, jnp.int32)[None, None]


def _product(token: Int32[Array, "lane token"], factor: int) -> list[UInt32[Array, "lane token"]]:
    """Return the low 64 bits of the product, in digits, the least first."""
    low = jnp.uint32((1 << DIGIT_BITS) - 1)
    token = token.astype(jnp.uint32)
    parts = token & low, token >> DIGIT_BITS
    sums = [jnp.zeros_like(token)] * (DIGITS + 1)
    for i, part in enumerate(parts):
        for j in range(DIGITS - i):
            product = part * jnp.uint32((factor >> (DIGIT_BITS * j)) & 0xFFFF)
            sums[i + j] = sums[i + j] + (product & low)
            sums[i + j + 1] = sums[i + j + 1] + (product >> DIGIT_BITS)
    digits, carry = [], jnp.zeros_like(token)
    for total in sums[:DIGITS]:
        total = total + carry
        digits.append(total & low)
        carry = total >> DIGIT_BITS
    return digits


def _rest(digits: Sequence[UInt32[Array, "lane token"]], divisors: Sequence[int]) -> UInt32[Array, "lane token head"]:
    """Return the remainders by each divisor; divisors are below `MAX_TABLE`."""
    divisor = jnp.array(divisors, jnp.uint32)[None, None]
    rest = jnp.zeros((*digits[0].shape, len(divisors)), jnp.uint32)
    for digit in reversed(digits):
        for shift in range(DIGIT_BITS - 4, -1, -4):
            rest = (rest * 16 + ((digit >> shift) & 15)[..., None]) % divisor
    return rest


def next_window(
    history: Int32[Array, "lane all"], taps: int, lengths: Int32[Array, "lane"]
) -> Int32[Array, "lane tap"]:
    """Return each lane's last tokens; of a lane of length 0 the previous ones."""
    last = lengths[:, None] + jnp.arange(taps, dtype=jnp.int32)[None]
    return jnp.take_along_axis(history, last, axis=1, mode="fill")

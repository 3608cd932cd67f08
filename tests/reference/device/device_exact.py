"""Kernel operations in float64 NumPy, for some lanes or rows."""

from typing import Any

import numpy as np


def exact_attention(query: Any, key: Any, value: Any, position: Any, value_size: int, lane: int) -> np.ndarray:
    """Return a lane's attention, float64 `[token, head, value]`; position -1 gives zeros.

    Args:
        query: scaled, `[lane, token, head, key]`.
        key, value: caches `[lane, kv_head, position, size]`; `value` is None for values inside keys.
        position: of each token, int `[lane, token]`.
        value_size: size of a value.
        lane: which.
    """
    queries, positions = np.asarray(query[lane], np.float64), np.asarray(position[lane])
    tokens, heads, _ = queries.shape
    groups, out = heads // key.shape[1], np.zeros((tokens, heads, value_size))
    last = int(positions.max()) + 1
    for kv_head in range(key.shape[1]):
        keys = np.asarray(key[lane, kv_head, :last], np.float64)
        values = keys[:, :value_size] if value is None else np.asarray(value[lane, kv_head, :last], np.float64)
        for token, position in enumerate(positions):
            part = slice(kv_head * groups, (kv_head + 1) * groups)
            scores = queries[token, part] @ keys[: position + 1].T
            weights = np.exp(scores - scores.max(axis=1, keepdims=True)) if position >= 0 else scores
            out[token, part] = (weights @ values[: position + 1]) / np.maximum(
                weights.sum(axis=1, keepdims=True), 1e-300
            )
    return out


def exact_recurrence(form: str, operands: tuple[Any, ...], lane: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a lane's outputs `[token, head, value]` and state `[head, value, key]` in float64.

    Args:
        form: "delta rule", "KDA" or "SSD".
        operands: query, key, value, log decay, beta, state, valid, fresh, as of `RecurrenceInputs`.
        lane: which.
    """
    arrays = [np.asarray(array[lane], np.float64) for array in operands]
    query, key, value, decay, beta, state, valid, fresh = arrays
    repeats = value.shape[1] // query.shape[1]
    query, key = np.repeat(query, repeats, axis=1), np.repeat(key, repeats, axis=1)
    state, out = np.zeros_like(state) if fresh else state, np.zeros(value.shape)
    for token in np.flatnonzero(valid):
        q, k, v = query[token], key[token], value[token]
        factor = np.exp(decay[token]).reshape((len(v), 1, -1))
        state = factor * state
        if form != "SSD":
            v = beta[token][:, None] * (v - np.einsum("hvk,hk->hv", state, k))
        state = state + v[:, :, None] * k[:, None, :]
        out[token] = np.einsum("hvk,hk->hv", state, q)
    return out, state


def exact_product(x: Any, numbers: Any, row: int) -> np.ndarray:
    """Return a row's product with `[out, in]` in float64, after rounding the row."""
    rounded = np.asarray(x[row]).astype(numbers.dtype)
    return np.asarray(numbers, np.float64) @ np.asarray(rounded, np.float64)


def exact_convolution(x: Any, weight: Any, state: Any, length: int, fresh: bool) -> np.ndarray:
    """Return a lane's short convolution with SiLU in float64; padding is zero.

    Args:
        x: `[token, channel]`.
        weight: `[channel, 1, tap]`.
        state: the inputs before the first token, `[tap - 1, channel]`.
        length: real tokens.
        fresh: the lane begins; its state is zero.
    """
    initial = np.asarray(state, np.float64) * (not fresh)
    inputs = np.concatenate([initial, np.asarray(x, np.float64)])
    taps = np.asarray(weight, np.float64)[:, 0].T
    out = np.zeros(np.asarray(x).shape)
    for token in range(length):
        total = np.sum(inputs[token : token + len(taps)] * taps, axis=0)
        out[token] = total / (1 + np.exp(-total))
    return out

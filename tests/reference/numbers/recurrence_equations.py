"""The linear recurrences token by token, as their equations are written."""

from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from models.ops.float32 import full_einsum
from models.ops.recurrences.recurrence import RecurrenceInputs, RecurrenceOutputs


def scanned(token: Any, inputs: RecurrenceInputs, *gates: Array) -> RecurrenceOutputs:
    """Run an equation of one token: state, (q, k, v, g, gates, real) -> state, output."""
    per_token = (inputs.query, inputs.key, inputs.value, inputs.log_decay, *gates, inputs.valid)
    state = jnp.where(inputs.fresh[:, None, None, None], 0.0, inputs.state)
    state, out = lax.scan(token, state, tuple(jnp.moveaxis(x, 1, 0) for x in per_token))
    return RecurrenceOutputs(jnp.moveaxis(out, 0, 1), state)


def delta_rule_reference(inputs: RecurrenceInputs) -> RecurrenceOutputs:
    """Run token by token, as the equation is written."""

    def token(state: Array, operands: tuple[Array, ...]) -> tuple[Array, Array]:
        q, k, v, g, b, real = operands
        decayed = jnp.exp(g).reshape((*g.shape[:2], 1, -1)) * state
        delta = b[:, :, None] * (v - full_einsum("nhvk,nhk->nhv", decayed, k))
        updated = decayed + delta[:, :, :, None] * k[:, :, None, :]
        out = full_einsum("nhvk,nhk->nhv", updated, q)
        real = real[:, None, None]
        return jnp.where(real[..., None], updated, state), jnp.where(real, out, 0.0)

    assert inputs.beta is not None
    return scanned(token, inputs, inputs.beta)


def ssd_reference(inputs: RecurrenceInputs) -> RecurrenceOutputs:
    """Run token by token, as the equation is written."""
    repeats = inputs.value.shape[2] // inputs.query.shape[2]

    def token(state: Array, operands: tuple[Array, ...]) -> tuple[Array, Array]:
        q, k, v, g, real = operands
        q, k = jnp.repeat(q, repeats, axis=1), jnp.repeat(k, repeats, axis=1)
        updated = jnp.exp(g)[:, :, None, None] * state + v[:, :, :, None] * k[:, :, None, :]
        out = full_einsum("nhvk,nhk->nhv", updated, q)
        real = real[:, None, None]
        return jnp.where(real[..., None], updated, state), jnp.where(real, out, 0.0)

    return scanned(token, inputs)

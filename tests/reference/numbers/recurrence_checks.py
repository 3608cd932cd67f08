"""Checks that hold for every form of every linear recurrence."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Inputs = tuple[list[np.ndarray], np.ndarray, np.ndarray]
"""Tokens' operands, states `[lane, head, value, key]` and which tokens are real `[lane, token]`."""


def check_equation(
    form: Callable[..., Any],
    equation: Callable[[list[np.ndarray], np.ndarray, int, int], tuple[np.ndarray, np.ndarray]],
    lengths: Sequence[int],
    inputs: Inputs,
    tolerance: float,
) -> None:
    """Compare a form with float64 up to each length; the last lane is idle."""
    arrays, state, valid = inputs
    state[-1] = np.nan
    out, new = jax.device_get(form(*arrays, state, valid, np.zeros(len(state), bool)))
    assert new[-1].tobytes() == state[-1].tobytes()
    for lane, length in enumerate(lengths):
        want_out, want_state = equation(arrays, state, length, lane)
        np.testing.assert_allclose(out[lane, :length], want_out, atol=tolerance, rtol=0)
        np.testing.assert_allclose(new[lane], want_state, atol=tolerance, rtol=0)
        assert (out[lane, length:] == 0).all()


def check_idle_lane(form: Callable[..., Any], inputs: Inputs) -> None:
    """The second of three lanes is idle: all keep bits for any content."""
    arrays, state, valid = inputs
    fresh = np.zeros(len(state), bool)
    poisoned = state.copy()
    poisoned[1] = np.nan
    poisoned[1, 0, :, 0] = [-0.0, 0.0, np.inf, 1e-45, 1, 2, 3]
    out, new = jax.device_get(form(*arrays, state, valid, fresh))
    poisoned_out, poisoned_new = jax.device_get(form(*arrays, poisoned, valid, fresh))
    assert poisoned_new[1].tobytes() == poisoned[1].tobytes()
    assert new[1].tobytes() == state[1].tobytes()
    for lane in (0, 2):
        assert out[lane].tobytes() == poisoned_out[lane].tobytes()
        assert new[lane].tobytes() == poisoned_new[lane].tobytes()
    assert (poisoned_out[1] == 0).all()


def check_single_tokens(
    step: Callable[..., Any], reference: Callable[..., Any], inputs: Inputs, tolerance: float
) -> None:
    """Compare a form, run for one token after the other, with a form for all at once."""
    arrays, state, valid = inputs
    old = np.zeros(len(state), bool)
    want_out, want_state = jax.device_get(reference(*arrays, state, valid, old))
    for t in range(valid.shape[1]):
        out, state = step(*(x[:, t : t + 1] for x in arrays), state, valid[:, t : t + 1], old)
        np.testing.assert_allclose(np.asarray(out)[:, 0], want_out[:, t], atol=tolerance, rtol=0)
    np.testing.assert_allclose(state, want_state, atol=tolerance, rtol=0)


def check_gradients(form: Callable[..., Any], reference: Callable[..., Any], inputs: Inputs) -> None:
    """Compare the gradients of a form by operands and states with those of another form."""
    arrays, state, valid = inputs
    arrays = [np.where(valid.reshape(valid.shape + (1,) * (x.ndim - 2)), x, np.float32(0)) for x in arrays]

    def loss(form: Callable[..., Any], arrays: list[np.ndarray], state: np.ndarray) -> Any:
        out, new = form(*arrays, state, valid, np.zeros(len(state), bool))
        return jnp.sum(jnp.sin(out)) + jnp.sum(jnp.cos(new))

    gradients = (jax.jit(jax.grad(partial(loss, each), argnums=(0, 1)))(arrays, state) for each in (form, reference))
    for a, b in zip(*map(jax.tree.leaves, gradients), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4, rtol=1e-4)

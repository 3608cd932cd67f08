"""The kernel for one token of a recurrence computes what the plain forms do, and keeps lanes apart."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from recurrence_cases import (
    FORMS,
    HEADS,
    LANES,
    arguments,
    check,
    check_lanes_keep_their_bits,
    check_proof,
    inputs,
    several,
    zero_padding,
)

from models.ops.recurrences.delta_rule import delta_rule, delta_rule_step
from models.ops.recurrences.recurrence import RecurrenceInputs, Surroundings
from models.ops.recurrences.recurrent_step_gpu import KERNEL, MAX_KEY, MAX_TOKENS, recurrent_step
from models.ops.recurrences.ssd import ssd, ssd_step
from models.sharding.devices import Devices

SIZES = ((8, 4), (64, 16), (2, 32))


def kernel(given: RecurrenceInputs) -> Any:
    return jax.jit(partial(recurrent_step, interpret=True))(given)


@pytest.mark.each_value
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("values", "keys"), SIZES)
def test_kernel_computes_the_recurrence(form: str, values: int, keys: int):
    given = inputs(form, values, keys)
    check(form, given, kernel(given))


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_lanes_keep_their_bits(form: str):
    check_lanes_keep_their_bits(inputs(form, 64, 16), kernel)


@pytest.mark.parametrize("form", FORMS)
def test_kernel_is_proved_from_the_inside(form: str):
    given = inputs(form, 64, 16)

    def step(state: Any, lengths: Any, rest: Any) -> Any:
        found = recurrent_step(RecurrenceInputs(**rest, state=state, valid=(lengths > 0)[:, None]), interpret=True)
        return found.output, found.state

    check_proof(KERNEL, step, arguments(given))


@pytest.mark.parametrize("form", FORMS)
def test_operations_choose_it(form: str):
    given = inputs(form, 8, 4)
    step = ssd_step if form.startswith("ssd") else delta_rule_step

    def kernels(**changes: Any) -> bool:
        return "pallas_call" in str(jax.make_jaxpr(step)(replace(given, devices=Devices(**changes))))

    assert kernels(kernels="interpret") and kernels(kernels="auto", platform="gpu")
    assert not kernels() and not kernels(kernels="auto") and not kernels(kernels="off", platform="gpu")
    assert not kernels(kernels="auto", platform="tpu")
    with pytest.raises(ValueError, match="'fast'"):
        kernels(kernels="fast")


@pytest.mark.parametrize(
    ("values", "keys", "tokens"), [(6, 4, 1), (8, 5, 1), (8, 2 * MAX_KEY, 1), (8, 4, MAX_TOKENS + 1)]
)
def test_other_sizes_are_left_to_the_plain_form(values: int, keys: int, tokens: int):
    query, value = jnp.zeros((LANES, tokens, HEADS, keys)), jnp.zeros((LANES, tokens, HEADS, values))
    state, real = jnp.zeros((LANES, HEADS, values, keys)), jnp.ones((LANES, tokens), bool)
    given = RecurrenceInputs(query, query, value, query, state, real, real[:, 0])
    assert KERNEL.unsupported(given) and not KERNEL.chosen(Devices(platform="gpu", kernels="auto"), given)


@pytest.mark.parametrize("form", FORMS)
def test_tokens_one_after_the_other(form: str):
    """A step that verifies drafts, its state kept, and the replay of the accepted tokens."""
    given = several(form)
    # the reference would multiply what padding tokens hold
    clean = zero_padding(given)
    found = kernel(given)
    check(form, clean, found)
    np.testing.assert_array_equal(found.state[1], given.state[1])
    kept = jax.jit(partial(recurrent_step, keep_state=True, interpret=True))(given)
    np.testing.assert_array_equal(kept.output, found.output)
    assert kept.state is None
    poisoned = replace(given, state=given.state.at[::2].set(jnp.nan), value=given.value.at[::2].set(jnp.nan))
    for one, expected in zip(kernel(poisoned), found, strict=True):
        np.testing.assert_array_equal(one[1::2], expected[1::2])
    first = jax.tree.map(lambda x: x[:, :1] if x.ndim > 1 and x.shape[1] == 3 else x, given)
    accepted = replace(given, valid=given.valid & (jnp.arange(3) < 1)[None])
    np.testing.assert_allclose(kernel(accepted).state, kernel(first).state, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("form", FORMS)
def test_several_tokens_are_proved_from_the_inside(form: str):
    given = several(form)

    def step(state: Any, lengths: Any, rest: Any) -> Any:
        valid = jnp.arange(3)[None] < lengths[:, None]
        operation = ssd if form.startswith("ssd") else delta_rule
        devices = Devices(kernels="interpret")
        return tuple(operation(RecurrenceInputs(**rest, state=state, valid=valid, devices=devices)))

    check_proof(KERNEL, step, arguments(given))


@pytest.mark.parametrize("tokens", [1, 3])
def test_values_are_scaled_and_added_inside(tokens: int):
    """The time step and D of an SSD layer, with padding tokens and an idle lane; proved from the inside."""
    given = inputs("ssd in groups", 8, 4) if tokens == 1 else several("ssd in groups", tokens=tokens)
    rng = np.random.default_rng(tokens)
    scale = jnp.asarray(rng.uniform(0.1, 1, (LANES, tokens, HEADS)).astype(np.float32))
    around = Surroundings(scale, jnp.asarray(rng.normal(size=HEADS).astype(np.float32)))

    def run(given: RecurrenceInputs, kernels: str) -> Any:
        devices = Devices(kernels=kernels)
        return jax.jit(lambda one: ssd(replace(one, devices=devices), surroundings=around))(given)

    found = run(given, "interpret")
    clean = jax.tree.map(lambda x: jnp.nan_to_num(x) if x.ndim > 2 and x.shape[1] == tokens else x, given)
    expected = run(clean, "off")
    valid = given.valid[:, :, None, None]
    np.testing.assert_allclose(found.output, jnp.where(valid, expected.output, 0.0), rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(found.state, expected.state, rtol=2e-5, atol=2e-6)

    def step(state: Any, lengths: Any, rest: Any) -> Any:
        real = jnp.arange(tokens)[None] < lengths[:, None]
        every = Surroundings(rest.pop("scale"), around.skip)
        one = RecurrenceInputs(**rest, state=state, valid=real, devices=Devices(kernels="interpret"))
        return tuple(ssd(one, surroundings=every))

    *args, rest = arguments(given)
    check_proof(KERNEL, step, (*args, {**rest, "scale": scale}))

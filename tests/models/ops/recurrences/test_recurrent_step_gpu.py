"""The kernel for one recurrent token equals the plain forms and separates lanes."""

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


def kernel(operands: RecurrenceInputs) -> Any:
    return jax.jit(partial(recurrent_step, interpret=True))(operands)


@pytest.mark.each_value
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("values", "keys"), SIZES)
def test_kernel_computes_the_recurrence(form: str, values: int, keys: int):
    operands = inputs(form, values, keys)
    check(form, operands, kernel(operands))


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_lanes_keep_their_bits(form: str):
    check_lanes_keep_their_bits(inputs(form, 64, 16), kernel)


@pytest.mark.parametrize("form", FORMS)
def test_kernel_is_proved_from_the_inside(form: str):
    operands = inputs(form, 64, 16)

    def step(state: Any, lengths: Any, rest: Any) -> Any:
        result = recurrent_step(RecurrenceInputs(**rest, state=state, valid=(lengths > 0)[:, None]), interpret=True)
        return result.output, result.state

    check_proof(KERNEL, step, arguments(operands))


@pytest.mark.parametrize("form", FORMS)
def test_operations_choose_it(form: str):
    operands = inputs(form, 8, 4)
    step = ssd_step if form.startswith("ssd") else delta_rule_step

    def kernels(**changes: Any) -> bool:
        return "pallas_call" in str(jax.make_jaxpr(step)(replace(operands, devices=Devices(**changes))))

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
    operands = RecurrenceInputs(query, query, value, query, state, real, real[:, 0])
    assert KERNEL.unsupported(operands) and not KERNEL.chosen(Devices(platform="gpu", kernels="auto"), operands)


@pytest.mark.parametrize("form", FORMS)
def test_tokens_one_after_the_other(form: str):
    """A step that verifies drafts, its state kept, and the replay of the accepted tokens."""
    operands = several(form)
    # the reference would multiply what padding tokens hold
    clean = zero_padding(operands)
    result = kernel(operands)
    check(form, clean, result)
    np.testing.assert_array_equal(result.state[1], operands.state[1])
    stored = jax.jit(partial(recurrent_step, keep_state=True, interpret=True))(operands)
    np.testing.assert_array_equal(stored.output, result.output)
    assert stored.state is None
    poisoned = replace(operands, state=operands.state.at[::2].set(jnp.nan), value=operands.value.at[::2].set(jnp.nan))
    for item, expected in zip(kernel(poisoned), result, strict=True):
        np.testing.assert_array_equal(item[1::2], expected[1::2])
    first = jax.tree.map(lambda x: x[:, :1] if x.ndim > 1 and x.shape[1] == 3 else x, operands)
    accepted = replace(operands, valid=operands.valid & (jnp.arange(3) < 1)[None])
    np.testing.assert_allclose(kernel(accepted).state, kernel(first).state, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("form", FORMS)
def test_several_tokens_are_proved_from_the_inside(form: str):
    operands = several(form)

    def step(state: Any, lengths: Any, rest: Any) -> Any:
        valid = jnp.arange(3)[None] < lengths[:, None]
        operation = ssd if form.startswith("ssd") else delta_rule
        devices = Devices(kernels="interpret")
        return tuple(operation(RecurrenceInputs(**rest, state=state, valid=valid, devices=devices)))

    check_proof(KERNEL, step, arguments(operands))


@pytest.mark.parametrize("tokens", [1, 3])
def test_values_are_scaled_and_added_inside(tokens: int):
    """An SSD layer's time step and D, with padding and an idle lane."""
    operands = inputs("ssd in groups", 8, 4) if tokens == 1 else several("ssd in groups", tokens=tokens)
    rng = np.random.default_rng(tokens)
    scale = jnp.asarray(rng.uniform(0.1, 1, (LANES, tokens, HEADS)).astype(np.float32))
    around = Surroundings(scale, jnp.asarray(rng.normal(size=HEADS).astype(np.float32)))

    def run(operands: RecurrenceInputs, kernels: str) -> Any:
        devices = Devices(kernels=kernels)
        return jax.jit(lambda item: ssd(replace(item, devices=devices), surroundings=around))(operands)

    result = run(operands, "interpret")
    clean = jax.tree.map(lambda x: jnp.nan_to_num(x) if x.ndim > 2 and x.shape[1] == tokens else x, operands)
    expected = run(clean, "off")
    valid = operands.valid[:, :, None, None]
    np.testing.assert_allclose(result.output, jnp.where(valid, expected.output, 0.0), rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(result.state, expected.state, rtol=2e-5, atol=2e-6)

    def step(state: Any, lengths: Any, rest: Any) -> Any:
        real = jnp.arange(tokens)[None] < lengths[:, None]
        every = Surroundings(rest.pop("scale"), around.skip)
        item = RecurrenceInputs(**rest, state=state, valid=real, devices=Devices(kernels="interpret"))
        return tuple(ssd(item, surroundings=every))

    *args, rest = arguments(operands)
    check_proof(KERNEL, step, (*args, {**rest, "scale": scale}))

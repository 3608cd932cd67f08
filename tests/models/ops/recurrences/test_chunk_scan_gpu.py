"""The kernel that carries states through prompt chunks equals the token-by-token form."""

import operator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from recurrence_cases import arguments, check_proof, check_proof_by_slot, delta_rule_reference, ssd_reference

from models import Devices
from models.ops.recurrences.chunk_scan_gpu import KERNEL, MAX_CHUNKS, MAX_KEY, MAX_PART
from models.ops.recurrences.delta_rule import CHUNK, delta_rule
from models.ops.recurrences.recurrence import RecurrenceInputs
from models.ops.recurrences.ssd import ssd

TOKENS = CHUNK + 8
LENGTHS = (0, 1, CHUNK - 1, CHUNK, CHUNK + 1, TOKENS)
FORMS = ("head", "channel", "ssd in groups")
LANES, HEADS, VALUES, KEYS = len(LENGTHS), 4, 32, 2 * MAX_PART


def inputs(form: str) -> RecurrenceInputs:
    """Random lanes, two of them fresh; unused values are NaN."""
    rng = np.random.default_rng(0)
    key_heads = 2 if form == "ssd in groups" else HEADS
    draw = lambda *shape: rng.normal(size=(LANES, *shape)).astype(np.float32)
    query, key = draw(TOKENS, key_heads, KEYS), draw(TOKENS, key_heads, KEYS)
    key /= np.linalg.norm(key, axis=-1, keepdims=True)
    value, decay = draw(TOKENS, HEADS, VALUES), -np.abs(draw(TOKENS, HEADS, *([KEYS] if form == "channel" else [])))
    beta = None if form.startswith("ssd") else rng.uniform(0.1, 0.9, (LANES, TOKENS, HEADS)).astype(np.float32)
    valid = np.arange(TOKENS)[None] < np.array(LENGTHS)[:, None]
    fresh = np.array([False, False, True, False, True, False])
    state = draw(HEADS, VALUES, KEYS)
    state[fresh] = np.nan
    for array in (query, key, value, decay):
        array[~valid] = np.nan
    names = "query", "key", "value", "log_decay", "state", "valid", "fresh"
    arrays = dict(zip(names, map(jnp.asarray, (query, key, value, decay, state, valid, fresh)), strict=True))
    return RecurrenceInputs(
        **arrays, beta=None if beta is None else jnp.asarray(beta), devices=Devices(kernels="interpret")
    )


def operation(form: str) -> Any:
    return ssd if form.startswith("ssd") else delta_rule


run = jax.jit(lambda form, operands, keep: operation(form)(operands, keep_state=keep), static_argnums=(0, 2))


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_kernel_computes_the_recurrence(form: str) -> None:
    operands = inputs(form)
    assert KERNEL.name in str(jax.make_jaxpr(operation(form))(operands))
    clean = jax.tree.map(lambda x: jnp.nan_to_num(x) if x.ndim > 2 and x.shape[1] == TOKENS else x, operands)
    reference = jax.jit(ssd_reference if form.startswith("ssd") else delta_rule_reference)(clean)
    result = run(form, operands, False)
    for item, expected in zip(result, reference, strict=True):
        np.testing.assert_allclose(item, expected, rtol=2e-5, atol=5e-6)
    np.testing.assert_array_equal(result.state[0], operands.state[0])
    stored = run(form, operands, True)
    np.testing.assert_array_equal(stored.output, result.output)
    assert stored.state is None


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_lanes_keep_their_bits(form: str) -> None:
    operands = inputs(form)
    expected = run(form, operands, False)
    for bad in (0, 1):
        state, value = (array.at[bad::2].set(jnp.nan) for array in (operands.state, operands.value))
        poisoned = run(form, replace(operands, state=state, value=value), False)
        other_lanes = np.arange(LANES) % 2 != bad
        for result, reference in zip(poisoned, expected, strict=True):
            np.testing.assert_array_equal(result[other_lanes], reference[other_lanes])


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_rows_by_slot_give_the_same_bits(form: str) -> None:
    """An idle lane names another lane's row and must not write; foreign rows stay."""
    operands = inputs(form)
    slots = jnp.array([2, 7, 0, 5, 3, 2], jnp.int32)
    busy = jnp.arange(1, LANES)
    pool = jnp.full((9, *operands.state.shape[1:]), jnp.nan).at[slots[busy]].set(operands.state[busy])
    by_slot = replace(operands, state=pool, slots=slots)
    program = str(jax.make_jaxpr(operation(form))(by_slot))
    assert KERNEL.name in program and "scatter" not in program
    expected, result = run(form, operands, False), run(form, by_slot, False)
    np.testing.assert_array_equal(result.output, expected.output)
    np.testing.assert_array_equal(result.state, pool.at[slots[busy]].set(expected.state[busy]))
    stored = run(form, by_slot, True)
    np.testing.assert_array_equal(stored.output, expected.output)
    assert stored.state is None


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_kernel_is_proved_from_the_inside(form: str) -> None:
    state, *args = arguments(inputs(form))
    pool, slots = jnp.zeros((9, *state.shape[1:])), jnp.array([2, 7, 0, 5, 3, 1], jnp.int32)

    def step(state: Any, lengths: Any, rest: Any, slots: Any = None) -> Any:
        valid = jnp.arange(TOKENS)[None] < lengths[:, None]
        devices = Devices(kernels="interpret")
        return tuple(operation(form)(RecurrenceInputs(**rest, state=state, valid=valid, devices=devices, slots=slots)))

    other_kernels = () if form == "channel" else ("chunk_products_kernel",)
    check_proof(KERNEL, step, (state, *args), *other_kernels)
    check_proof_by_slot(KERNEL, step, (pool, *args, slots), *other_kernels)


@pytest.mark.parametrize(
    ("values", "keys", "tokens"),
    [(24, 16, 64), (16, 8, 64), (16, 2 * MAX_KEY, 64), (16, 16, CHUNK - 1), (16, 16, CHUNK * MAX_CHUNKS + 1)],
)
def test_other_sizes_are_left_to_the_plain_form(values: int, keys: int, tokens: int) -> None:
    operands = jax.tree.map(operator.itemgetter(slice(0, 1)), inputs("head"))
    query, value = jnp.zeros((1, tokens, HEADS, keys)), jnp.zeros((1, tokens, HEADS, values))
    state, gates = jnp.zeros((1, HEADS, values, keys)), jnp.zeros((1, tokens, HEADS))
    real = jnp.ones((1, tokens), bool)
    operands = RecurrenceInputs(query, query, value, gates, state, real, operands.fresh)
    assert not KERNEL.supports(operands, CHUNK)

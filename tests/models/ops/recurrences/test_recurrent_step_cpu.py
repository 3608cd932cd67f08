"""Kernels of a recurrence on CPUs, as XLA calls them: numbers, declarations, states in place."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from calls_in_place import (
    check_a_call_beside_is_found,
    check_declaration,
    check_derivatives,
    check_each_device,
    check_in_place,
    check_proof_by_slot_map,
    check_rows_by_slot,
    kernels_called,
    rows_contract,
)
from instruction_sets import instruction_sets
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from recurrence_cases import FORMS, LANES, arguments, check, check_lanes_keep_their_bits, inputs, several, zero_padding
from zoo.meshes.sharded import mesh

from ir_passes import IsolationError, Pool, compile_step, prove_isolation
from models import Devices
from models.ops.recurrences.delta_rule import delta_rule
from models.ops.recurrences.recurrence import RecurrenceInputs
from models.ops.recurrences.recurrent_step_cpu import KERNEL, MAX_KEPT_TOKENS, MAX_KEY, READ, STEP, recurrent_step_cpu
from models.ops.recurrences.ssd import ssd

pytestmark = pytest.mark.cpu_kernels

HERE = Devices(kernels="auto")
STATE = Pool("state", dims=("row", "value_head", "value", "key"))
CONTRACT = rows_contract(STATE, lanes=1)


def kernel(operands: RecurrenceInputs, **settings: Any) -> Any:
    return jax.jit(partial(recurrent_step_cpu, **settings))(operands)


def operation(form: str) -> Any:
    return ssd if form.startswith("ssd") else delta_rule


def step(state: Any, lengths: Any, rest: Any, slots: Any = None) -> Any:
    valid = jnp.arange(rest["value"].shape[1])[None] < lengths[:, None]
    return tuple(recurrent_step_cpu(RecurrenceInputs(**rest, state=state, valid=valid, slots=slots)))


@pytest.mark.parametrize("instructions", instruction_sets())
@pytest.mark.parametrize("form", FORMS)
def test_kernel_computes_the_recurrence(form: str, instructions: str):
    for values, keys in ((8, 4), (17, 33), (64, 16)):
        operands = inputs(form, values, keys)
        result = kernel(operands, instructions=instructions)
        check(form, operands, result)
        np.testing.assert_array_equal(result.state[1], operands.state[1])
        assert not np.any(result.output[1])
    for tokens in (3, MAX_KEPT_TOKENS, 2 * MAX_KEPT_TOKENS + 1):
        operands = several(form, tokens=tokens)
        result = kernel(operands, instructions=instructions)
        check(form, zero_padding(operands), result)
        if tokens <= MAX_KEPT_TOKENS:
            stored = kernel(operands, keep_state=True, instructions=instructions)
            np.testing.assert_array_equal(stored.output, result.output)
            assert stored.state is None
        else:
            with pytest.raises(jax.errors.JaxRuntimeError, match="keeps its state"):
                jax.block_until_ready(kernel(operands, keep_state=True, instructions=instructions))


@pytest.mark.parametrize("form", ["channel", "ssd in groups"])
def test_rows_by_slot(form: str):
    operands = inputs(form, 9, 20)
    run = lambda rows, slots=None: tuple(kernel(replace(operands, state=rows, slots=slots)))
    check_rows_by_slot(run, operands.state, "a row of its own")


def test_operations_choose_it():
    def calls(operands: RecurrenceInputs, form: str = "head", keep_state: bool = False) -> list[str]:
        return kernels_called(partial(operation(form), keep_state=keep_state), operands)

    for form in FORMS:
        operands = inputs(form, 8, 4, devices=HERE)
        assert calls(operands, form) == [STEP] and calls(replace(several(form), devices=HERE), form) == [STEP]
        assert calls(operands, form, keep_state=True) == [READ]
        by_slot = replace(operands, slots=jnp.arange(LANES, dtype=jnp.int32))
        assert calls(by_slot, form) == [f"{STEP}_by_slot"]
        assert calls(by_slot, form, keep_state=True) == [f"{READ}_by_slot"]
    operands = inputs("head", 8, 4)
    for other in (Devices(), Devices(kernels="interpret"), Devices(platform="gpu", kernels="auto")):
        assert not calls(replace(operands, devices=other))
    assert not KERNEL.supports(inputs("ssd", 8, MAX_KEY + 1))
    long = several("head", tokens=MAX_KEPT_TOKENS + 1)
    assert KERNEL.supports(long) and not KERNEL.supports(long, True)


@pytest.mark.slow
@pytest.mark.parametrize(("form", "tokens"), [("head", 1), ("channel", 3), ("ssd in groups", 3)])
def test_derivatives_match_the_plain_form(form: str, tokens: int):
    operands = zero_padding(inputs(form, 8, 4) if tokens == 1 else several(form))
    operands = replace(operands, fresh=jnp.zeros_like(operands.fresh), state=jnp.nan_to_num(operands.state))

    def loss(devices: Devices, query: Any, value: Any, state: Any) -> Any:
        built = operation(form)(replace(operands, query=query, value=value, state=state, devices=devices))
        return jnp.sum(jnp.tanh(built.output)) + jnp.sum(built.state**2)

    check_derivatives(loss, operands.query, operands.value, operands.state)


@pytest.mark.slow
def test_each_device_of_a_mesh_has_its_lanes_in_its_rows():
    """Slots are row numbers of a device; lanes of other devices have different rows."""
    operands = jax.tree.map(lambda x: x[:4], several("head"))  # the second lane is idle, the fourth fresh
    state, _, rest = arguments(operands)
    lengths, slots = jnp.array([3, 0, 3, 3], jnp.int32), jnp.array([2, 0, 1, 2], jnp.int32)
    rows = jnp.array([2, 0, 4, 5])
    pool = jnp.full((6, *state.shape[1:]), jnp.nan).at[rows].set(state)
    by_lane = P("data")
    specs = (by_lane, by_lane, {name: None if item is None else by_lane for name, item in rest.items()}, by_lane)
    over = jax.shard_map(step, mesh=mesh(2, 1), in_specs=specs, out_specs=(by_lane, by_lane))

    def placed(*args: Any) -> Any:
        return jax.tree.map(lambda x, spec: jax.device_put(jnp.array(x), NamedSharding(mesh(2, 1), spec)), args, specs)

    contract = rows_contract(STATE, lanes=1, rows=6, devices=2)
    args = placed(pool, lengths, rest, slots)
    compiled = compile_step(over, args, contract)
    assert compiled.certificate.holds and compiled.certificate.copies == ()
    expected, updated = step(state, lengths, rest)
    output, new = compiled(*args)
    np.testing.assert_array_equal(output, expected)
    np.testing.assert_array_equal(new, pool.at[rows].set(updated))

    def of_other_lanes(pool: Any, lengths: Any, rest: Any, slots: Any) -> Any:
        return step(pool, lengths, rest, jnp.roll(slots, 1))

    def of_all_devices(pool: Any, lengths: Any, rest: Any, slots: Any) -> Any:
        return step(pool, lengths, rest, jax.lax.ppermute(slots, "data", [(0, 1), (1, 0)]))

    for wrong in (of_other_lanes, of_all_devices):
        with pytest.raises(IsolationError):
            prove_isolation(
                jax.shard_map(wrong, mesh=mesh(2, 1), in_specs=specs, out_specs=(by_lane, by_lane)), args, contract
            )
    slot_map = contract.inputs[-1]
    for other in (replace(slot_map, size=6, local=None), replace(slot_map, local=None)):
        with pytest.raises(IsolationError):
            prove_isolation(over, args, replace(contract, inputs=(*CONTRACT.inputs, other)))


@pytest.mark.slow
@pytest.mark.parametrize("form", ["channel", "ssd in groups"])
def test_each_device_of_a_mesh_has_its_lanes_and_heads(form: str):
    """Proved, audited and in place on each device, with the bits of one device."""
    operands = jax.tree.map(lambda x: x[:4], several(form))  # the second lane is idle, the fourth fresh
    state, _, rest = arguments(operands)
    lengths = jnp.array([3, 0, 3, 3], jnp.int32)
    by_head, rows = P("data", None, "model"), P("data", "model")
    specs = (
        rows,
        P("data"),
        {name: None if item is None else by_head for name, item in rest.items()} | {"fresh": P("data")},
    )

    def poisoned(lane: int) -> tuple[Any, ...]:
        poison = jax.tree.map(lambda x: x if x.dtype == bool else x.at[lane].set(jnp.nan), rest)
        return state.at[lane].set(jnp.nan), lengths, poison

    certificate = check_each_device(step, (state, lengths, rest), (specs, (by_head, rows)), CONTRACT, poisoned)
    (assumed,) = [statement for statement in certificate.assumed if statement.id == "opaque-idle"]
    assert assumed.about.startswith(STEP)


@pytest.mark.parametrize("form", FORMS)
def test_step_is_certified_and_in_place(form: str):
    for operands in (inputs(form, 8, 16), several(form, 8, 16)):
        args = arguments(operands)
        output, updated = check_in_place(step, args, CONTRACT, STEP)
        expected = kernel(replace(operands, valid=jnp.arange(operands.tokens)[None] < args[1][:, None]))
        np.testing.assert_array_equal(output, expected.output)
        np.testing.assert_array_equal(updated, expected.state)


def test_proof_believes_the_declaration_and_nothing_more():
    args = arguments(inputs("head", 8, 8))
    always_busy = lambda state, lengths, rest: step(state, jnp.maximum(lengths, 1), rest)
    other_lanes = lambda state, lengths, rest: step(state, lengths, jax.tree.map(lambda x: x[::-1], rest))

    def turned(state: Any, lengths: Any, rest: Any) -> Any:
        output, updated = step(jnp.swapaxes(state, 2, 3), lengths, rest)
        return output, jnp.swapaxes(updated, 2, 3)

    def read_behind(state: Any, lengths: Any, rest: Any) -> Any:
        output, updated = step(state, lengths, rest)
        return output + jnp.sum(state, axis=(1, 2, 3))[:, None, None, None], updated

    check_declaration(step, args, CONTRACT, STEP, always_busy, other_lanes, turned, read_behind)


def test_rows_by_slot_are_proved():
    check_proof_by_slot_map(step, arguments(inputs("ssd", 8, 16)), CONTRACT)


def test_audit_finds_a_call_that_does_not_write_in_place(monkeypatch: pytest.MonkeyPatch):
    check_a_call_beside_is_found(monkeypatch, step, arguments(inputs("head", 8, 16)), CONTRACT, STEP)


@pytest.mark.parametrize("form", FORMS)
def test_lanes_keep_their_bits(form: str):
    check_lanes_keep_their_bits(several(form), kernel, (np.nan, np.inf))

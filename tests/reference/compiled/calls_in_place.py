"""Checks of in-place calls: declarations, certificates, rows by slot, devices of a mesh."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from jax.sharding import NamedSharding
from zoo.meshes.sharded import mesh

from hybridlm.steps.contract import kernel_calls, page_table, slot_map
from ir_passes import AuditError, FindingKind, IsolationError, Lane, LaneContract, Pool, compile_step, prove_isolation
from models import Devices

Step = Callable[..., Any]


def rows_contract(state: Pool, lanes: int, rows: int | None = None, devices: int = 1) -> LaneContract:
    """Return the contract of a step that the engine's kernels declare: state, lengths, operands of lanes[, slots].

    Args:
        lanes: operands after the lengths.
        rows: of the pool, which slots address; None for row i of lane i.
        devices: of a mesh, with as many rows each.
    """
    slots = None if rows is None else slot_map(rows, devices)
    inputs = (state, Lane(role="length"), *(Lane() for _ in range(lanes)), *(() if slots is None else (slots,)))
    return LaneContract(inputs, (Lane(), state), opaque=kernel_calls(slots))


def paged_contract(target: str, pages: int, values: bool = True) -> LaneContract:
    """Return the contract of a step that attends: caches, lengths, page table, operands of lanes.

    Args:
        target: of the call that declares the dimensions of the caches.
        pages: of the pool, with the null page.
        values: False for a cache of keys alone.
    """
    table = page_table(pages)
    calls = kernel_calls(pages=table)
    keys, stored_values = calls[target].inputs[7:]
    pools = keys, stored_values if values else None
    return LaneContract((pools, Lane(role="length"), table, Lane()), (Lane(), pools), opaque=calls)


def kernels_called(fn: Step, *args: Any) -> list[str]:
    """Return the targets of a function's foreign calls, in order."""
    return re.findall(r"target_name=(\w+)\n", str(jax.make_jaxpr(fn)(*args)))


def check_declaration(step: Step, args: tuple[Any, ...], contract: LaneContract, target: str, *wrong: Step) -> None:
    """Check that the declaration proves the step, but no wrong or undeclared step."""
    prove_isolation(step, args, contract)
    for other in wrong:
        with pytest.raises(IsolationError):
            prove_isolation(other, args, contract)
    with pytest.raises(IsolationError, match=target):
        prove_isolation(step, args, replace(contract, opaque={}))


def check_in_place(step: Step, args: tuple[Any, ...], contract: LaneContract, target: str) -> Any:
    """Check a step's certificate and its in-place first argument; return the results."""
    compiled = compile_step(step, args, contract)
    assert {"idle", "dimensions"} <= {statement.id for statement in compiled.certificate.proved}
    (assumed,) = [statement for statement in compiled.certificate.assumed if statement.id == "opaque-idle"]
    assert assumed.about.startswith(target)
    state = jax.tree.map(jnp.array, args[0])
    places = [array.unsafe_buffer_pointer() for array in jax.tree.leaves(state)]
    results = compiled(state, *args[1:])
    assert [array.unsafe_buffer_pointer() for array in jax.tree.leaves(results[1])] == places
    return results


def check_rows_by_slot(run: Callable[..., Any], state: Array, refused: str = "") -> None:
    """Check `run(state or pool, slots)`: other and idle rows keep bits, rows are reused.

    Args:
        refused: message of the error for slots that no lanes can have; "" where they are not looked at.
    """
    slots = jnp.array([6, 6, 0, 4, 1], jnp.int32)  # the second lane is idle
    busy, pool = jnp.array([0, 2, 3, 4]), jnp.full((8, *state.shape[1:]), jnp.nan, state.dtype).at[slots].set(state)
    for named in (slots, slots[jnp.array([3, 1, 4, 0, 2])]):
        expected, updated = run(pool[named])
        result, new = run(pool, named)
        np.testing.assert_array_equal(result, expected)
        written = pool.at[named[busy]].set(updated[busy])
        np.testing.assert_array_equal(np.asarray(new, np.float32), np.asarray(written, np.float32))
        pool = new
    for wrong in ([0, 6, 8, 1, 2], [-1, 6, 0, 1, 2], [3, 6, 0, 3, 2]) if refused else ():
        with pytest.raises(jax.errors.JaxRuntimeError, match=refused):
            jax.block_until_ready(run(pool, jnp.array(wrong, jnp.int32)))


def check_proof_by_slot_map(step: Step, args: tuple[Any, ...], contract: LaneContract) -> None:
    """Certify `step(state, ..., slots)` on rows of a pool; refuse the next lane's slots."""
    pool, slots = jnp.zeros((8, *args[0].shape[1:])), jnp.array([3, 1, 2, 7, 5], jnp.int32)
    by_slot = rows_contract(contract.inputs[0], len(contract.inputs) - 2, rows=8)
    arguments = pool, *args[1:], slots
    proved = compile_step(step, arguments, by_slot).certificate.proved
    assert "idle" in {statement.id for statement in proved}
    with pytest.raises(IsolationError):
        prove_isolation(lambda *args: step(*args[:-1], jnp.roll(args[-1], 1)), arguments, by_slot)


def check_derivatives(loss: Callable[..., Any], *args: Any) -> None:
    """Compare derivatives of `loss(devices, *args)` by all arguments with and without kernels."""
    places = tuple(range(len(args)))
    result, expected = (
        jax.jit(jax.grad(partial(loss, devices), places))(*args) for devices in (Devices(kernels="auto"), Devices())
    )
    for item, other in zip(result, expected, strict=True):
        np.testing.assert_allclose(item, other, rtol=1e-4, atol=1e-5)


def check_each_device(
    step: Step, args: tuple[Any, ...], specs: tuple[Any, Any], contract: LaneContract, poisoned: Callable[[int], Any]
) -> Any:
    """Check a step over 2 x 2 devices: certified, in place, equal bits, separate lanes.

    Args:
        args: of four lanes; the first one is updated.
        specs: of arguments and results.
        poisoned: lane -> arguments with NaN in this lane.

    Returns:
        The certificate.
    """
    devices = mesh(2, 2)
    over = jax.shard_map(step, mesh=devices, in_specs=specs[0], out_specs=specs[1])
    place = lambda x, spec: jax.device_put(jnp.array(x), NamedSharding(devices, spec))
    compiled = compile_step(over, jax.tree.map(place, args, specs[0]), contract)
    certificate = compiled.certificate
    assert certificate.holds and certificate.copies == ()
    assert "idle" in {statement.id for statement in certificate.proved}
    places = lambda array: [shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards]

    def run(args: tuple[Any, ...]) -> tuple[np.ndarray, ...]:
        operands = jax.tree.map(place, args, specs[0])
        initial = places(operands[0])
        output, updated = compiled(*operands)
        assert places(updated) == initial
        return np.asarray(output), np.asarray(updated)

    expected = [np.asarray(array) for array in jax.jit(step)(*args)]
    for result, reference in zip(run(args), expected, strict=True):
        np.testing.assert_array_equal(result, reference)
    for lane in range(4):
        neighbours = np.arange(4) != lane
        for result, reference in zip(run(poisoned(lane)), expected, strict=True):
            np.testing.assert_array_equal(result[neighbours], reference[neighbours])
    return certificate


def check_a_call_beside_is_found(
    monkeypatch: pytest.MonkeyPatch,
    step: Callable[..., Any],
    args: tuple[Any, ...],
    contract: LaneContract,
    target: str,
) -> None:
    """Check that proof and audit require a declared in-place call; nothing runs.

    Args:
        monkeypatch: takes the aliases from every call from now on.
        step: calls the kernel, whose target the contract declares in place.
        args, contract: operands of the step, and its contract.
        target: of the call.
    """
    called = jax.ffi.ffi_call
    monkeypatch.setattr(jax.ffi, "ffi_call", lambda *args, input_output_aliases, **options: called(*args, **options))
    plain = lambda *args: step(*args)
    with pytest.raises(IsolationError, match="aliases"):
        compile_step(plain, args, contract)
    undeclared = replace(contract, opaque={target: replace(contract.opaque[target], aliases={})})
    with pytest.raises(AuditError) as error:
        compile_step(plain, args, undeclared)
    kinds = {finding.kind for finding in error.value.findings}
    # With more rows than lanes the call also makes rows that the step need not compute.
    assert {FindingKind.POOL_COPY} <= kinds <= {FindingKind.POOL_COPY, FindingKind.SECOND_POOL}
    with pytest.raises(jax.errors.JaxRuntimeError, match="not updated in place"):
        jax.block_until_ready(jax.jit(plain)(*args))

"""Steps with lanes split over devices."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from zoo.meshes.sharded import mesh

from ir_passes import (
    ContractError,
    ContractFault,
    IsolationError,
    Lane,
    LaneContract,
    Packed,
    PageTable,
    Pool,
    Shared,
    SlotMap,
    ViolationKind,
    compile_step,
    prove_isolation,
)

DATA = P("data")


def over(step: Any, contract: LaneContract, *args: Any, out_specs: Any = DATA) -> None:
    """Prove a step with half of the lanes on each of two devices."""
    specs = tuple(P() if isinstance(entry, SlotMap) else DATA for entry in contract.inputs)
    sharded = jax.shard_map(step, mesh=mesh(2, 1), in_specs=specs, out_specs=out_specs)
    prove_isolation(sharded, args, contract)


ROWWISE = LaneContract(inputs=(Lane(), Lane(role="length")), outputs=(Lane(),))


def tokens_as_rows(x: Any, lengths: Any) -> Any:
    """Reshape tokens of all lanes to rows and back, with masked empty lanes."""
    lanes, tokens, size = x.shape
    rows = jnp.tanh(x.reshape((lanes * tokens, size))).reshape(x.shape)
    return (jnp.where(jnp.arange(tokens)[None, :, None] < lengths[:, None, None], rows, 0.0),)


@pytest.mark.parametrize("lanes", [2, 4])
def test_rows_of_one_lane_are_a_lane_again(lanes: int) -> None:
    over(tokens_as_rows, ROWWISE, np.ones((lanes, 5, 3), np.float32), np.ones(lanes, np.int32))


def test_one_of_several_lanes_is_not_those_of_its_device() -> None:
    """A lane equals all lanes of a device only on a device with one lane."""

    def first(x: Any, lengths: Any) -> Any:
        return (jnp.broadcast_to(x[:1], x.shape),)

    over(first, ROWWISE, np.ones((2, 3), np.float32), np.ones(2, np.int32))
    with pytest.raises(IsolationError):
        over(first, ROWWISE, np.ones((4, 3), np.float32), np.ones(4, np.int32))


def test_counts_of_accepted_tokens_keep_their_limits() -> None:
    contract = LaneContract(inputs=(Lane(), Lane(role="length")), outputs=(Lane(role="accepted"),))

    def counted(x: Any, lengths: Any) -> Any:
        return (jnp.where(lengths > 0, jnp.clip(x, 0, 3), 0),)

    over(counted, contract, np.ones(4, np.int32), np.ones(4, np.int32))
    with pytest.raises(IsolationError, match=ViolationKind.ACCEPTED):
        over(lambda x, lengths: (x,), contract, np.ones(4, np.int32), np.ones(4, np.int32))


def test_a_pool_meets_its_successor_beside_an_output_of_its_size() -> None:
    """A device's part of the output has the pool part's bytes, or is None."""
    contract = LaneContract(inputs=(Lane(), Shared(), Pool("state")), outputs=(Lane(), Pool("state")))

    def step(x: Any, shared: Any, rows: Any) -> Any:
        return x + 1, (None, rows[1] + x[:, None] * shared[1])

    sharded = jax.shard_map(step, mesh=mesh(2, 1), in_specs=(DATA, P(), DATA), out_specs=(DATA, DATA))
    over_devices, replicated = NamedSharding(mesh(2, 1), DATA), NamedSharding(mesh(2, 1), P())
    rows = None, jnp.zeros((4, 1), jnp.int32, device=over_devices)
    shared = None, jnp.ones((1, 1), jnp.int32, device=replicated)
    args = jnp.ones(4, jnp.int32, device=over_devices), shared, rows
    compiled = compile_step(sharded, args, contract)
    result, rows = compiled(*args)
    assert compiled.certificate.holds and (np.asarray(rows[1]) == 1).all() and (np.asarray(result) == 2).all()


@pytest.mark.parametrize("bits", [False, True])
@pytest.mark.parametrize("fill", [0.0, -0.0])
def test_rows_of_other_devices_are_zeros_before_they_are_summed(fill: float, bits: bool) -> None:
    """The fill value is +0.0: the bits of -0.0 are not zero in sums."""
    slots = SlotMap("state", 4, "read", null=False), SlotMap("kept", 1, "write", null=False)
    contract = LaneContract(inputs=(Pool("kept"), Pool("state"), *slots), outputs=(Pool("kept"),))

    def keep(snapshots: Any, rows: Any, read: Any, write: Any) -> Any:
        local = read - lax.axis_index("data") * rows.shape[0]
        row = rows.at[local].get(mode="fill", fill_value=fill, wrap_negative_indices=False)
        if bits:
            row = lax.bitcast_convert_type(lax.psum(lax.bitcast_convert_type(row, jnp.uint32), "data"), jnp.float32)
        else:
            row = lax.psum(row, "data")
        return (snapshots.at[write].set(row, mode="drop", wrap_negative_indices=False),)

    sharded = jax.shard_map(keep, mesh=mesh(2, 1), in_specs=(P(), DATA, P(), P()), out_specs=P())
    scalars = np.zeros(1, np.int32), np.zeros(1, np.int32)
    args = (np.zeros((1, 3), np.float32), np.zeros((4, 3), np.float32), *scalars)
    if np.signbit(fill):
        with pytest.raises(IsolationError, match=ViolationKind.COLLECTIVE):
            prove_isolation(sharded, args, contract)
    else:
        assert prove_isolation(sharded, args, contract).proved


TOKENS, LANES = 8, 4
IDS = LaneContract((Packed(), Packed(role="segment_ids"), Lane()), Packed())
TABLES = LaneContract((Pool("kv"), PageTable("kv", 12), Lane()), (Lane(), Pool("kv")))


def test_packed_tokens_are_not_split_over_devices() -> None:
    """The remedy is to split their channels."""

    def local(x: Any, ids: Any, y: Any) -> Any:
        return x + y.at[ids].get(mode="fill", fill_value=0.0)

    args = np.ones((TOKENS, 2), np.float32), np.zeros(TOKENS, np.int32), np.ones((LANES, 2), np.float32)
    split = jax.shard_map(local, mesh=mesh(2, 1), in_specs=(DATA, DATA, DATA), out_specs=DATA)
    with pytest.raises(IsolationError) as raised:
        prove_isolation(split, args, IDS)
    assert {violation.kind for violation in raised.value.violations} == {ViolationKind.CROSS_LANE}
    parts = P(None, "data")
    channels = jax.shard_map(local, mesh=mesh(2, 1), in_specs=(parts, P(), parts), out_specs=parts)
    prove_isolation(channels, args, IDS)


def test_page_tables_are_not_split_over_devices() -> None:
    def local(pool: Any, table: Any, x: Any) -> Any:
        return pool[table].sum(1) + x, pool.at[table[:, 0]].set(x)

    args = np.ones((12, 2), np.float32), np.ones((LANES, 3), np.int32), np.ones((LANES, 2), np.float32)
    split = jax.shard_map(local, mesh=mesh(2, 1), in_specs=(DATA, DATA, DATA), out_specs=(DATA, DATA))
    with pytest.raises(IsolationError) as raised:
        prove_isolation(split, args, TABLES)
    assert {violation.kind for violation in raised.value.violations} == {ViolationKind.COLLECTIVE}
    parts = P(None, "data")
    channels = jax.shard_map(local, mesh=mesh(2, 1), in_specs=(parts, P(), parts), out_specs=(parts, parts))
    prove_isolation(channels, args, TABLES)


def test_layouts_of_several_ranks_are_no_layout() -> None:
    contract = LaneContract((Packed(), Packed(role="cu_seqlens"), Lane()), Packed())
    args = np.ones((TOKENS, 2), np.float32), np.zeros(2 * (LANES // 2 + 1), np.int32), np.ones((LANES, 2), np.float32)
    with pytest.raises(ContractError, check=lambda error: error.ids == (ContractFault.LANES,)):
        prove_isolation(lambda x, cu, y: x, args, contract)


def test_places_along_axes_of_two_meshes_are_not_taken_for_each_other() -> None:
    """Pick a row by `axis_index`, after an earlier program with `axis_index`."""
    contract = LaneContract((Lane(), Lane()), (Lane(), Lane()))

    def place(x: Any) -> Any:
        return x + lax.axis_index("data").astype(x.dtype)

    def picked(x: Any) -> Any:
        return jnp.broadcast_to(x[lax.axis_index("data")][None], (2, *x.shape[1:]))

    def step(x: Any, y: Any) -> Any:
        first = jax.shard_map(place, mesh=mesh(2, 1), in_specs=DATA, out_specs=DATA)(x)
        return first, jax.shard_map(picked, mesh=mesh(2, 1), in_specs=P(), out_specs=DATA)(y)

    with pytest.raises(IsolationError):
        prove_isolation(step, (np.ones((LANES, 2), np.float32), np.ones((LANES, 2), np.float32)), contract)

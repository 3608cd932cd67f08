"""A contract is bound leaf by leaf; errors name the path."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ir_passes import ContractError, Lane, LaneContract, Opaque, Pool, Shared, SlotMap
from ir_passes.contract.entries import ContractFault
from ir_passes.contract.opaque import donors

N, ROWS = 3, 5


def arguments(rows: int = N):
    """Arrays of the host: nothing is compiled for them as tests are collected."""
    params = {"w": np.ones((2, 2), np.float32), "b": np.ones(2, np.float32)}
    pools = (np.zeros((rows, 4), np.float32), {"ssm": np.zeros((rows, 2, 6), np.float32)})
    return params, pools, np.zeros((N, 1), np.int32), np.ones(N, np.int32)


step = lambda params, pools, tokens, lengths: (tokens[:, 0], pools)
shrink = lambda params, pools, tokens, lengths: (tokens, (pools[0][:, :3], pools[1]))
narrow = lambda params, pools, tokens, lengths: (tokens, (pools[0].astype(jnp.bfloat16), pools[1]))


ROW_POOL = LaneContract(inputs=(Shared(), Pool("state"), Lane(), Lane(role="length")), outputs=(Lane(), Pool("state")))


def test_covers_every_leaf_and_pairs_pools_with_their_successors() -> None:
    bound = ROW_POOL.bind(step, arguments())
    assert bound.lanes == N
    assert [b.path for b in bound.inputs] == [
        "args[0]['b']", "args[0]['w']", "args[1][0]", "args[1][1]['ssm']", "args[2]", "args[3]",
    ]  # fmt: skip
    assert [type(b.entry) for b in bound.inputs] == [Shared, Shared, Pool, Pool, Lane, Lane]
    assert bound.successors == {2: 1, 3: 2}


def test_takes_abstract_arguments_and_a_pytree_of_entries() -> None:
    abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arguments())
    contract = LaneContract(
        inputs=(
            {"w": Shared(), "b": Shared()},
            (Pool("conv", dims=("slot", "tap")), {"ssm": Pool("ssm")}),
            Lane(),
            Lane(),
        ),
        outputs=(Lane(), (Pool("conv", dims=("slot", "tap")), Pool("ssm"))),
    )
    bound = contract.bind(step, abstract)
    assert bound.successors == {2: 1, 3: 2}
    assert bound.inputs[3].dtype == np.float32


def test_a_pool_without_a_successor_is_only_read() -> None:
    contract = LaneContract(inputs=(Shared(), Pool("state"), Lane(), Lane()), outputs=(Lane(),))
    assert contract.bind(lambda params, pools, tokens, lengths: (tokens,), arguments()).successors == {}


def test_a_slot_map_frees_a_pool_from_one_row_per_lane() -> None:
    contract = LaneContract(
        inputs=(Shared(), Pool("state"), Lane(), SlotMap("state", size=ROWS)), outputs=(Lane(), Pool("state"))
    )
    assert contract.bind(step, arguments(ROWS)).lanes == N


S, P, L = Shared(), Pool("state"), Lane()
FAULTS = {
    "an entry for each argument": (step, arguments(), (S, P, L), (L, P), ContractFault.ARGUMENTS, "args[3]"),
    "an entry for each output": (step, arguments(), (S, P, L, L), (L,), ContractFault.PREFIX, "result"),
    "entries that fit the pytree": (step, arguments(), ((S, S, S), P, L, L), (L, P), ContractFault.PREFIX, "args[0]"),
    "nothing but entries": (step, arguments(), (S, P, "lane", L), (L, P), ContractFault.ENTRY, "args[2]"),
    "axes that exist": (step, arguments(), (S, P, Lane(axis=2), L), (L, P), ContractFault.AXIS, "args[2]"),
    "lane axes of one length": (step, arguments(), (S, P, Lane(axis=1), L), (L, P), ContractFault.LANES, ""),
    "at least one lane": (lambda *a: (a[1],), arguments(), (S, P, S, S), (P,), ContractFault.NO_LANES, ""),
    "int32 lengths": (step, (*arguments()[:3], np.ones(N, np.float32)), (S, P, L, Lane(role="length")), (L, P),
        ContractFault.ARRAY, "args[3]"),
    "lengths as inputs": (lambda *a: (a[3], a[1]), arguments(), (S, P, L, L), (Lane(role="length"), P),
        ContractFault.INPUT, "result[0]"),
    "int32 counts of accepted tokens": (lambda *a: (a[3].astype(jnp.float32), a[1]), arguments(), (S, P, L, L),
        (Lane(role="accepted"), P), ContractFault.ARRAY, "result[0]"),
    "one count of accepted tokens for each lane": (lambda *a: (a[2], a[1]), arguments(), (S, P, L, L),
        (Lane(role="accepted"), P), ContractFault.ARRAY, "result[0]"),
    "one row per lane without a slot map": (step, arguments(ROWS), (S, P, L, L), (L, P), ContractFault.ROWS,
        "args[1][0]"),
    "slot maps of known groups": (step, arguments(ROWS), (S, P, L, SlotMap("kv", size=ROWS)), (L, P),
        ContractFault.GROUP, "args[3]"),
    "slot maps of one row or more": (step, arguments(), (S, P, L, SlotMap("state", 0)), (L, P), ContractFault.SIZE,
        "args[3]"),
    "one slot map to write by": (lambda pool, a, b: (pool[a], pool.at[b].set(0.0)),
        (np.zeros((ROWS, 4), np.float32), np.ones(N, np.int32), np.ones(N, np.int32)),
        (P, SlotMap("state", ROWS), SlotMap("state", ROWS)), (L, P), ContractFault.MAPS, "args[2]"),
    "one of two writing slot maps disjoint": (lambda pool, a, b: (pool[a], pool.at[b].set(0.0)),
        (np.zeros((ROWS, 4), np.float32), np.ones(N, np.int32), np.ones(N, np.int32)),
        (P, SlotMap("state", ROWS), SlotMap("state", ROWS, role="write")), (L, P), ContractFault.MAPS, "args[2]"),
    "one array of lengths": (lambda pools, a, b: pools, (arguments()[1], np.ones(N, np.int32), np.ones(N, np.int32)),
        (P, Lane(role="length"), Lane(role="length")), P, ContractFault.ROLE, "args[2]"),
    "slot maps as inputs": (step, arguments(), (S, P, L, L), (SlotMap("state", 3), P), ContractFault.INPUT,
        "result[0]"),
    "a bool mask of active lanes": (step, arguments(), (S, P, L, Lane(role="active")), (L, P), ContractFault.ARRAY,
        "args[3]"),
    "one number of active lanes": (step, arguments(), (S, P, L, Shared("active_count")), (L, P), ContractFault.ARRAY,
        "args[3]"),
    "roles of lanes that there are": (
        step,
        arguments(),
        (S, P, L, Lane(role="lenght")),  # type: ignore[arg-type]  # wrong on purpose
        (L, P),
        ContractFault.ROLE,
        "args[3]",
    ),
    "roles of slot maps that there are": (
        step,
        (*arguments(ROWS)[:3], {"s": np.ones(N, np.int32)}),
        (S, P, L, {"s": SlotMap("state", ROWS, role="reed")}),  # type: ignore[arg-type]  # wrong on purpose
        (L, P),
        ContractFault.ROLE,
        "args[3]['s']",
    ),
    "a name for every dimension": (step, arguments(), (S, Pool("state", dims=("slot", "tap")), L, L), (L, P),
        ContractFault.DIMS, "args[1][1]['ssm']"),
    "successors of the same shape": (shrink, arguments(), (S, P, L, L), (L, P), ContractFault.SUCCESSOR,
        "result[1][0]"),
    "successors of the same dtype": (narrow, arguments(), (S, P, L, L), (L, P), ContractFault.SUCCESSOR,
        "result[1][0]"),
    "donors for every successor": (step, arguments(), (S, S, L, L), (L, P), ContractFault.SUCCESSOR, "group 'state'"),
    "one entry for one result": (lambda *a: a[2], arguments(), (S, P, L, L), (L,), ContractFault.PREFIX, "result"),
}  # fmt: skip


MAP = SlotMap("state", ROWS)
DECLARATIONS = {
    "an Opaque": ((L,), ContractFault.OPAQUE, "opaque 'kernel'"),
    "nothing but entries": (Opaque((L, "lane"), (L,)), ContractFault.ENTRY, "opaque 'kernel', operand 1"),
    "roles that there are": (Opaque((L,), (Lane(role="len"),)), ContractFault.ROLE, "opaque 'kernel', result 0"),  # type: ignore[arg-type]  # wrong on purpose
    "roles that an operation can have": (
        Opaque((Lane(role="accepted"),), (L,)),
        ContractFault.ROLE,
        "opaque 'kernel', operand 0",
    ),
    "lengths as operands": (Opaque((L,), (Lane(role="length"),)), ContractFault.ROLE, "opaque 'kernel', result 0"),
    "axes from 0": (Opaque((Lane(-1),), (L,)), ContractFault.AXIS, "opaque 'kernel', operand 0"),
    "slot maps as operands": (Opaque((P, MAP), (MAP,)), ContractFault.INPUT, "opaque 'kernel', result 0"),
    "a pool for every slot map": (Opaque((MAP,), (L,)), ContractFault.GROUP, "opaque 'kernel', operand 0"),
    "a pool to succeed": (Opaque((L,), (P,)), ContractFault.SUCCESSOR, "opaque 'kernel', result 0"),
    "a pool for each successor": (Opaque((P, MAP), (P, P)), ContractFault.SUCCESSOR, "opaque 'kernel', result 1"),
    "pools that are alike": (
        Opaque((P, MAP), (Pool("state", 1),)),
        ContractFault.SUCCESSOR,
        "opaque 'kernel', result 0",
    ),
    "a slot map to write by": (
        Opaque((P, SlotMap("state", ROWS, role="read")), (P,)),
        ContractFault.MAPS,
        "opaque 'kernel', result 0",
    ),
    "one slot map to write by": (Opaque((P, MAP, MAP), (P,)), ContractFault.MAPS, "opaque 'kernel', result 0"),
    "aliases of operands and results": (Opaque((L,), (L,), {0: 1}), ContractFault.OPAQUE, "opaque 'kernel'"),
    "lanes that begin": (Opaque((L, P), (L,), fresh=1), ContractFault.OPAQUE, "opaque 'kernel'"),
    "scratch by the number of lanes": (
        Opaque((L,), (L,), scratch_bytes=64),  # type: ignore[arg-type]  # wrong on purpose
        ContractFault.OPAQUE,
        "opaque 'kernel'",
    ),
}


@pytest.mark.parametrize(("declaration", "fault", "about"), DECLARATIONS.values(), ids=DECLARATIONS)
def test_declarations_need(declaration, fault: ContractFault, about: str) -> None:
    with pytest.raises(ContractError) as error:
        LaneContract((S, P, L, L), (L, P), opaque={"kernel": declaration}).bind(step, arguments())
    assert [(fault.id, fault.about) for fault in error.value.faults] == [(fault, about)]


@pytest.mark.parametrize("maps", [
    (SlotMap("state", ROWS, role="read"), SlotMap("state", ROWS, role="write")),
    (SlotMap("state", ROWS), SlotMap("state", ROWS, disjoint=True)),
    (SlotMap("state", ROWS), SlotMap("state", ROWS, role="read")),
    (SlotMap("state", ROWS, role="read"), SlotMap("state", ROWS, role="read")),
], ids=["read and write", "disjoint", "read beside", "read twice"])  # fmt: skip
def test_two_slot_maps_of_a_group(maps: tuple[SlotMap, SlotMap]) -> None:
    pool, rows = np.zeros((ROWS, 4), np.float32), np.ones(N, np.int32)
    assert LaneContract((P, *maps), (P,)).bind(lambda pool, a, b: (pool,), (pool, rows, rows)).lanes == N


def test_read_only_pools_come_in_any_place() -> None:
    """The k-th result of a group succeeds its k-th operand, in any order of groups."""
    other = Pool("other")
    declaration = Opaque((other, P, L), (L, P))
    assert donors(declaration) == {1: 1}
    assert LaneContract((S, P, L, L), (L, P), opaque={"kernel": declaration}).bind(step, arguments())


@pytest.mark.parametrize(("fn", "args", "inputs", "outputs", "fault", "about"), FAULTS.values(), ids=FAULTS)
def test_needs(fn, args, inputs, outputs, fault: ContractFault, about: str) -> None:
    with pytest.raises(ContractError) as error:
        LaneContract(inputs, outputs).bind(fn, args)
    assert [(fault.id, fault.about) for fault in error.value.faults] == [(fault, about)]
    assert str(error.value).startswith(about)


def test_errors_keep_their_ids_between_processes() -> None:
    error = ContractError(ContractFault.AXIS.fault("args[0]", "has none"), where="here", advice="give one")
    record = pickle.loads(pickle.dumps(error))  # noqa: S301  # its own
    assert (type(record), str(record), record.ids) == (ContractError, str(error), (ContractFault.AXIS,))

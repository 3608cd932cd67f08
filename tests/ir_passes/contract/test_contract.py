"""A contract is laid out leaf by leaf, and says by path what does not fit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ir_passes import ContractError, Lane, LaneContract, Opaque, Pool, Shared, SlotMap
from ir_passes.contract.opaque import donors

N, ROWS = 3, 5


def arguments(rows: int = N):
    params = {"w": jnp.ones((2, 2)), "b": jnp.ones(2)}
    pools = (jnp.zeros((rows, 4)), {"ssm": jnp.zeros((rows, 2, 6))})
    return params, pools, jnp.zeros((N, 1), jnp.int32), jnp.ones(N, jnp.int32)


def step(params, pools, tokens, lengths):
    return (tokens[:, 0], pools)


ROW_POOL = LaneContract(inputs=(Shared(), Pool("state"), Lane(), Lane(role="length")), outputs=(Lane(), Pool("state")))


def test_covers_every_leaf_and_pairs_pools_with_their_successors() -> None:
    bound = ROW_POOL.bind(step, arguments())
    assert bound.lanes == N
    assert [b.path for b in bound.inputs] == [
        "args[0]['b']",
        "args[0]['w']",
        "args[1][0]",
        "args[1][1]['ssm']",
        "args[2]",
        "args[3]",
    ]
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


def shrink(params, pools, tokens, lengths):
    return (tokens, (pools[0][:, :3], pools[1]))


def narrow(params, pools, tokens, lengths):
    return (tokens, (pools[0].astype(jnp.bfloat16), pools[1]))


S, P, L = Shared(), Pool("state"), Lane()
FAULTS = {
    "an entry for each argument": (
        step,
        arguments(),
        (S, P, L),
        (L, P),
        "args: expected entries for 4 arguments, the contract has 3",
    ),
    "an entry for each output": (
        step,
        arguments(),
        (S, P, L, L),
        (L,),
        "result: .*expected one entry or a tuple of 2, got a tuple of 1",
    ),
    "entries that fit the pytree": (step, arguments(), ((S, S, S), P, L, L), (L, P), r"args\[0\]"),
    "nothing but entries": (step, arguments(), (S, P, "lane", L), (L, P), r"args\[2\]: expected one of"),
    "axes that exist": (step, arguments(), (S, P, Lane(axis=2), L), (L, P), r"args\[2\]: .*axis 2"),
    "lane axes of one length": (step, arguments(), (S, P, Lane(axis=1), L), (L, P), r"args\[2\]: 1, args\[3\]: 3"),
    "at least one lane": (lambda *a: (a[1],), arguments(), (S, P, S, S), (P,), "how many lanes"),
    "int32 lengths": (
        step,
        (*arguments()[:3], jnp.ones(N)),
        (S, P, L, Lane(role="length")),
        (L, P),
        r"args\[3\]: .*int32\[3\], got float32",
    ),
    "lengths as inputs": (
        lambda *a: (a[3], a[1]),
        arguments(),
        (S, P, L, L),
        (Lane(role="length"), P),
        r"result\[0\]: what says which lanes are idle is an input",
    ),
    "int32 counts of accepted tokens": (
        lambda *a: (a[3].astype(jnp.float32), a[1]),
        arguments(),
        (S, P, L, L),
        (Lane(role="accepted"), P),
        r"result\[0\]: .*int32\[3\], got float32",
    ),
    "one count of accepted tokens for each lane": (
        lambda *a: (a[2], a[1]),
        arguments(),
        (S, P, L, L),
        (Lane(role="accepted"), P),
        r"result\[0\]: .*int32\[3\], got int32\(3, 1\)",
    ),
    "one row per lane without a slot map": (
        step,
        arguments(ROWS),
        (S, P, L, L),
        (L, P),
        r"args\[1\]\[0\].*expected 3",
    ),
    "slot maps of known groups": (
        step,
        arguments(ROWS),
        (S, P, L, SlotMap("kv", size=ROWS)),
        (L, P),
        "no pool belongs to group 'kv'; groups: state",
    ),
    "slot maps of one row or more": (step, arguments(), (S, P, L, SlotMap("state", 0)), (L, P), "at least 1, got 0"),
    "slot maps as inputs": (step, arguments(), (S, P, L, L), (SlotMap("state", 3), P), "never an output"),
    "a bool mask of active lanes": (step, arguments(), (S, P, L, Lane(role="active")), (L, P), r"needs bool\[3\], got"),
    "one number of active lanes": (
        step,
        arguments(),
        (S, P, L, Shared("active_count")),
        (L, P),
        r"needs int32\[\], got",
    ),
    "roles of lanes that there are": (
        step,
        arguments(),
        (S, P, L, Lane(role="lenght")),  # type: ignore[arg-type]  # wrong on purpose
        (L, P),
        r"args\[3\]: Lane has no role 'lenght'; expected one of None, 'length', 'active', 'accepted'",
    ),
    "roles of slot maps that there are": (
        step,
        (*arguments(ROWS)[:3], {"s": jnp.ones(N, jnp.int32)}),
        (S, P, L, {"s": SlotMap("state", ROWS, role="reed")}),  # type: ignore[arg-type]  # wrong on purpose
        (L, P),
        r"args\[3\]\['s'\]: SlotMap has no role 'reed'; expected one of 'both', 'read', 'write'",
    ),
    "a name for every dimension": (
        step,
        arguments(),
        (S, Pool("state", dims=("slot", "tap")), L, L),
        (L, P),
        r"args\[1\]\[1\]\['ssm'\]: 2 dims",
    ),
    "successors of the same shape": (shrink, arguments(), (S, P, L, L), (L, P), r"result\[1\]\[0\] succeeds args\[1\]"),
    "successors of the same dtype": (narrow, arguments(), (S, P, L, L), (L, P), "got bfloat16"),
    "donors for every successor": (step, arguments(), (S, S, L, L), (L, P), "2 output pools but only 0 input pools"),
    "one entry for one result": (
        lambda *a: a[2],
        arguments(),
        (S, P, L, L),
        (L,),
        "result: .*an array, got a tuple of 1",
    ),
}


MAP = SlotMap("state", ROWS)
DECLARATIONS = {
    "an Opaque": ((L,), r"opaque 'kernel': expected Opaque\(inputs, outputs\)"),
    "nothing but entries": (Opaque((L, "lane"), (L,)), "opaque 'kernel', operand 1: expected one of"),
    "roles that there are": (Opaque((L,), (Lane(role="len"),)), "result 0: Lane has no role 'len'"),  # type: ignore[arg-type]  # wrong on purpose
    "roles that an operation can have": (
        Opaque((Lane(role="accepted"),), (L,)),
        "operand 0: the one role that a lane can",
    ),
    "lengths as operands": (
        Opaque((L,), (Lane(role="length"),)),
        "result 0: the one role that a lane can have here is 'l",
    ),
    "axes from 0": (Opaque((Lane(-1),), (L,)), "operand 0: axes count from 0"),
    "slot maps as operands": (Opaque((P, MAP), (MAP,)), "result 0: a slot map is an operand"),
    "a pool for every slot map": (Opaque((MAP,), (L,)), "operand 0: no operand is a pool of group 'state'"),
    "a pool to succeed": (Opaque((L,), (P,)), "result 0: .* needs a pool to succeed among the operands, there is none"),
    "a pool for each successor": (Opaque((P, MAP), (P, P)), "result 1: .* there is none"),
    "pools that are alike": (Opaque((P, MAP), (Pool("state", 1),)), "operand 0 is Pool"),
    "a slot map to write by": (
        Opaque((P, SlotMap("state", ROWS, role="read")), (P,)),
        "result 0: .* got maps with the roles 'read'",
    ),
    "one slot map to write by": (Opaque((P, MAP, MAP), (P,)), "result 0: .* got maps with the roles 'both', 'both'"),
    "aliases of operands and results": (Opaque((L,), (L,), {0: 1}), "aliases 0: 1 for 1 operands and 1 results"),
    "lanes that begin": (Opaque((L, P), (L,), fresh=1), "fresh is the index of an operand"),
    "scratch by the number of lanes": (
        Opaque((L,), (L,), scratch_bytes=64),  # type: ignore[arg-type]  # wrong on purpose
        "scratch_bytes is a function of the number of lanes, got 64",
    ),
}


@pytest.mark.parametrize(("declaration", "message"), DECLARATIONS.values(), ids=DECLARATIONS)
def test_declarations_need(declaration, message: str) -> None:
    with pytest.raises(ContractError, match=message):
        LaneContract((S, P, L, L), (L, P), opaque={"kernel": declaration}).bind(step, arguments())


def test_read_only_pools_come_in_any_place() -> None:
    """The k-th result of a group succeeds the k-th operand of it, whatever groups stand before."""
    other = Pool("other")
    declaration = Opaque((other, P, L), (L, P))
    assert donors(declaration) == {1: 1}
    assert LaneContract((S, P, L, L), (L, P), opaque={"kernel": declaration}).bind(step, arguments())


@pytest.mark.parametrize(("fn", "args", "inputs", "outputs", "message"), FAULTS.values(), ids=FAULTS)
def test_needs(fn, args, inputs, outputs, message: str) -> None:
    with pytest.raises(ContractError, match=message):
        LaneContract(inputs, outputs).bind(fn, args)

"""Arrays computed from cu_seqlens have the claimed elements, for every small layout."""

import itertools
import re
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

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
    prove_isolation,
)
from ir_passes.proof import packed_layout

LANES, TOKENS = 3, 4


def layouts() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """cu_seqlens with the lane of each token."""
    for lengths in itertools.product(range(TOKENS + 1), repeat=LANES):
        if sum(lengths) <= TOKENS:
            ids = np.repeat(np.arange(LANES + 1), [*lengths, TOKENS - sum(lengths)])
            yield np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32), ids


def found(ways: packed_layout.Ways) -> Iterator[tuple[np.ndarray, list[np.ndarray]]]:
    """Yield the lane of each token, and the result of each program."""
    cus, ids = (np.stack(each) for each in zip(*layouts(), strict=True))
    computed = jax.jit(jax.vmap(lambda cu: tuple(ways(cu, TOKENS))))(cus)
    for k, lanes in enumerate(ids):
        yield lanes, [np.asarray(each)[k] for each in computed]


@pytest.mark.parametrize("left_out", packed_layout.SEARCHED)
def test_entries_up_to_each_token(left_out: tuple[int, int]) -> None:
    first, missing = left_out
    for (cu, _), (_, computed) in zip(layouts(), found(packed_layout.SEARCHED[left_out]), strict=True):
        entries = cu[first : LANES + 1 - missing]
        expected = (entries[None] <= np.arange(TOKENS)[:, None]).sum(axis=1)
        assert all(each.tolist() == expected.tolist() for each in computed)


def test_starts_from_lengths() -> None:
    for (cu, _), (_, computed) in zip(layouts(), found(packed_layout.starts), strict=True):
        assert all(each.tolist() == cu[: len(each)].tolist() for each in computed)
        assert {len(each) for each in computed} == {LANES, LANES + 1}


X, CU, IDS = jnp.ones((TOKENS, 2)), jnp.zeros(LANES + 1, jnp.int32), jnp.zeros(TOKENS, jnp.int32)


@pytest.mark.parametrize(
    ("inputs", "args"),
    [
        ((Packed(), Lane()), (X, jnp.ones((LANES, 2)))),
        ((Packed(), Packed(role="cu_seqlens"), Lane()), (X, CU[:-1], jnp.ones((LANES, 2)))),
        ((Packed(), Packed(role="cu_seqlens")), (X, CU.astype(jnp.float32))),
        ((Packed(), Packed(role="segment_ids"), Lane()), (X, IDS[:-1], jnp.ones((LANES, 2)))),
        ((Packed(), Packed(role="ids"), Lane()), (X, IDS, jnp.ones((LANES, 2)))),  # type: ignore[arg-type]
        ((Packed(2), Packed(role="cu_seqlens")), (X, CU)),
        ((Pool("p"), PageTable("p", 4), Lane()), (X, jnp.ones((LANES + 1, 2), jnp.int32), jnp.ones((LANES, 2)))),
        ((Pool("p"), PageTable("p", 4), SlotMap("p", 4)), (X, jnp.ones((LANES, 2), jnp.int32), IDS[:LANES])),
        ((Pool("q"), PageTable("p", 4)), (X, jnp.ones((LANES, 2), jnp.int32))),
        ((Pool("p"), PageTable("p", 4, page_size=0)), (X, jnp.ones((LANES, 2), jnp.int32))),
        ((Pool("p"), PageTable("p", 4)), (X, jnp.ones((LANES, 2)))),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) and len(str(value)) < 200 else None,
)
def test_contracts_that_do_not_fit(inputs: tuple, args: tuple) -> None:
    with pytest.raises(ContractError, check=lambda error: len(error.ids) == 1):
        prove_isolation(lambda *args: (args[0],), args, LaneContract(inputs, (inputs[0],)))


def test_what_is_assumed_of_packed_tokens_and_pages_is_said() -> None:
    contract = LaneContract(
        (Packed(), Packed(role="cu_seqlens"), Pool("p"), PageTable("p", TOKENS, role="read")), (Lane(), Pool("p"))
    )
    tables = jnp.zeros((LANES, 2), jnp.int32)
    proof = prove_isolation(lambda x, cu, p, t: (x[cu[1:] - 1] + p[t].sum(1), p), (X, CU, X, tables), contract)
    assert {(statement.id, statement.about) for statement in proof.assumed} == {
        ("packed", "args[1]"),
        ("page-table", "args[3]"),
    }


@pytest.mark.parametrize(("inputs", "args", "entry"), [
    ((Lane(), Pool("p"), SlotMap("p", 4)), (IDS[:LANES], X, jnp.ones((LANES, 2), jnp.int32)), "a PageTable"),
    ((Lane(), Shared(), Pool("p"), SlotMap("p", 4)), (X, CU, X, IDS[:LANES]), "is Packed()"),
], ids=["pages behind a slot map", "tokens taken for lanes"])  # fmt: skip
def test_the_entry_that_is_meant_is_named(inputs: tuple, args: tuple, entry: str) -> None:
    with pytest.raises(ContractError, match=re.escape(entry)):
        prove_isolation(lambda *args: (args[0],), args, LaneContract(inputs, (inputs[0],)))


Q, K = Packed(layout="q"), Packed(layout="k")
CQ, CK = Packed(role="cu_seqlens", layout="q"), Packed(role="cu_seqlens", layout="k")
UNNAMED = Packed(role="cu_seqlens")
KEYS = jnp.ones((TOKENS + 2, 2))


@pytest.mark.parametrize(
    ("inputs", "args"),
    [
        ((Packed(), Packed(), UNNAMED, UNNAMED), (X, X, CU, CU)),
        ((Packed(), Packed(role="segment_ids"), Packed(role="segment_ids"), Lane()), (X, IDS, IDS, CU[:-1])),
        ((Packed(), K, UNNAMED, CQ), (X, X, CU, CU)),
        ((Packed(), Packed(), UNNAMED), (X, KEYS, CU)),
        ((Q, Q, CQ), (X, KEYS, CU)),
        ((Packed(layout=""), Packed(role="cu_seqlens", layout="")), (X, CU)),
        ((Q, CQ, Pool("p"), PageTable("p", 4, role="write", packed=True, layout="k")), (X, CU, X, IDS)),
    ],
    ids=["two cu_seqlens", "two segment ids", "no such layout", "two lengths", "two lengths of one name", "no name",
         "a table of no layout"],
)  # fmt: skip
def test_layouts_are_named(inputs: tuple, args: tuple) -> None:
    with pytest.raises(ContractError) as error:
        prove_isolation(lambda *args: args[0], args, LaneContract(inputs, inputs[0]))
    assert error.value.ids == (ContractFault.PACKED,)


def lane(cu: jax.Array, tokens: int) -> jax.Array:
    return jnp.searchsorted(cu[1:], jnp.arange(tokens), side="right")


def attention(q: jax.Array, k: jax.Array, rows: jax.Array, columns: jax.Array) -> jax.Array:
    weights = jax.nn.softmax(jnp.where(rows[:, None] == columns[None], q @ k.T, -jnp.inf), axis=-1)
    return weights @ jnp.where(jnp.isfinite(k), k, 0.0)


def sum_at_queries(q: jax.Array, k: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
    sums = jax.ops.segment_sum(k, lane(b, TOKENS + 2), LANES)
    return q + sums.at[lane(a, TOKENS)].get(mode="fill", fill_value=0.0)


OF_TWO = {
    "attention of queries to keys": (lambda q, k, a, b: attention(q, k, lane(a, TOKENS), lane(b, TOKENS + 2)), Q),
    "a sum of keys, by query": (sum_at_queries, Q),
    "the last key of each lane": (lambda q, k, a, b: k[b[1:] - 1], Lane()),
}
MIXED_UP = {
    "token t of both": (lambda q, k, a, b: q + k[:TOKENS], Q),
    "queries returned as keys": (lambda q, k, a, b: jnp.pad(q, ((0, 2), (0, 0))), K),
    "keys masked by queries": (lambda q, k, a, b: attention(q, k, lane(a, TOKENS), lane(a, TOKENS + 2)), Q),
    "queries summed by keys": (lambda q, k, a, b: jax.ops.segment_sum(q, lane(b, TOKENS), LANES), Lane()),
    "keys at the last queries": (lambda q, k, a, b: k[a[1:] - 1], Lane()),
}


@pytest.mark.parametrize("name", OF_TWO)
def test_steps_over_two_layouts(name: str) -> None:
    step, output = OF_TWO[name]
    proof = prove_isolation(step, (X, KEYS, CU, CU), LaneContract((Q, K, CQ, CK), output))
    assert [statement.about for statement in proof.assumed if statement.id == "packed"] == ["args[2]", "args[3]"]


@pytest.mark.parametrize("name", MIXED_UP)
def test_layouts_are_not_mixed_up(name: str) -> None:
    step, output = MIXED_UP[name]
    with pytest.raises(IsolationError):
        prove_isolation(step, (X, KEYS, CU, CU), LaneContract((Q, K, CQ, CK), output))


@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 6, 7, 11, 16])
def test_an_associative_scan_of_any_length_begins_anew_at_each_lane(tokens: int) -> None:
    contract = LaneContract((Packed(), Packed(role="cu_seqlens")), Packed())

    def combine(first, right):
        return first[0] | right[0], jnp.where(right[0], right[1], 0.5 * first[1] + right[1])

    def scanned(late: int):
        def step(x, cu):
            index = jnp.arange(tokens)
            ids = jnp.clip((index[:, None] >= cu[None]).sum(1) - 1, 0, LANES - 1)
            return jax.lax.associative_scan(combine, ((index == cu[ids] + late)[:, None], x))[1]

        return step

    args = jnp.ones((tokens, 2)), jnp.zeros(LANES + 1, jnp.int32)
    assert prove_isolation(scanned(0), args, contract).lanes == LANES
    if tokens > 1:
        with pytest.raises(IsolationError):
            prove_isolation(scanned(1), args, contract)

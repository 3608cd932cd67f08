"""Entries are pytree prefixes like the specs of `jax.shard_map`; errors name the place."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

from ir_passes import ContractError, Lane, LaneContract, Pool, Shared, Unspecified, prove_isolation
from ir_passes.contract.faults import ContractFault
from ir_passes.contract.prefix import is_entry, spread

N = 3


class Pair(NamedTuple):
    a: Any
    b: Any


@jax.tree_util.register_dataclass
@dataclass
class Cache:
    k: Any
    v: Any


ENTRY = st.sampled_from([Shared(), Lane(), Lane(axis=1), Pool("s")])


def containers(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(children, max_size=3),
        st.lists(children, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from("abc"), children, max_size=3),
        st.builds(Pair, children, children),
        st.builds(Cache, children, children),
        st.none(),
    )


LEAF = np.zeros((N, N), np.float32)
VALUES = st.recursive(st.just(LEAF), containers, max_leaves=8)
ENTRIES = st.recursive(ENTRY, containers, max_leaves=6)


@st.composite
def fitting(draw: st.DrawFn, value: Any) -> Any:
    """A prefix of a value: containers are cut at random and replaced by an entry."""
    if value is LEAF or draw(st.integers(0, 3)) == 0:
        return draw(ENTRY)
    children, structure = jax.tree.flatten(value, is_leaf=lambda node: node is not value)
    return jax.tree.unflatten(structure, [draw(fitting(child)) for child in children])


def expected(entries: Any, value: Any) -> list[Any] | None:
    """Return the entry of each array by JAX's prefixes; None for no prefix."""
    entries = jax.tree.map(
        lambda node: Unspecified() if node is None else node,
        entries,
        is_leaf=lambda node: node is None or is_entry(node),
    )
    try:
        return jax.tree.leaves(jax.tree.broadcast(entries, value, is_leaf=is_entry), is_leaf=is_entry)
    except ValueError:
        return None


def found(entries: Any, value: Any) -> list[Any] | None:
    try:
        parts = list(spread(entries, value, "x"))
    except ContractError:
        return None
    paths = ["x" + jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(value)]
    assert [path for path, _, _ in parts] == paths
    return [entry for _, entry, _ in parts]


@given(st.data())
def test_a_prefix_is_spread_as_jax_does(data: st.DataObject) -> None:
    value = data.draw(VALUES)
    entries = data.draw(fitting(value))
    spread_by_jax = expected(entries, value)
    assert spread_by_jax is not None and found(entries, value) == spread_by_jax


@given(ENTRIES, VALUES)
def test_any_two_trees_fit_where_they_fit_for_jax(entries: Any, value: Any) -> None:
    assert found(entries, value) == expected(entries, value)


def state() -> Any:
    return nnx.state(nnx.Linear(N, N, rngs=nnx.Rngs(0)))


RESULTS = {
    "one array": (lambda pool, x: x * 2.0, Lane(), ["result"]),
    "a tuple": (lambda pool, x: (x * 2.0, pool + x), (Lane(), Pool("s")), ["result[0]", "result[1]"]),
    "a dict": (lambda pool, x: {"y": x, "s": pool + x}, {"y": Lane(), "s": Pool("s")}, ["result['s']", "result['y']"]),
    "one entry for a dict": (lambda pool, x: {"y": x, "z": x + 1.0}, Lane(), ["result['y']", "result['z']"]),
    "a dataclass": (lambda pool, x: Cache(x, pool + x), Cache(Lane(), Pool("s")), ["result.k", "result.v"]),
    "a named tuple": (lambda pool, x: Pair(x, pool + x), Pair(Lane(), Pool("s")), ["result.a", "result.b"]),
    "a named tuple by a tuple": (lambda pool, x: Pair(x, pool + x), (Lane(), Pool("s")), ["result[0]", "result[1]"]),
    "an nnx.State": (lambda pool, x: nnx.State({"y": x, "s": pool + x}), nnx.State({"y": Lane(), "s": Pool("s")}),
        ["result['s']", "result['y']"]),
}  # fmt: skip


@pytest.mark.parametrize(("fn", "outputs", "paths"), RESULTS.values(), ids=RESULTS)
def test_a_step_may_return(fn: Any, outputs: Any, paths: list[str]) -> None:
    contract = LaneContract((Pool("s"), Lane()), outputs)
    args = jnp.zeros((N, N)), jnp.ones((N, N))
    assert [array.path for array in contract.bind(fn, args).outputs] == paths
    assert prove_isolation(fn, args, contract).lanes == N


def test_an_nnx_state_is_an_argument_as_any_other() -> None:
    contract = LaneContract((Shared(), Lane()), Lane())
    bound = contract.bind(lambda params, x: x @ params["kernel"][...], (state(), jnp.ones((N, N))))
    paths = [array.path for array in bound.inputs]
    assert len(paths) == 3 and paths[0].startswith("args[0]['bias']") and paths[1].startswith("args[0]['kernel']")


def test_one_entry_for_all_arguments() -> None:
    bound = LaneContract(Lane(), Lane()).bind(lambda x, y: x + y["z"], (jnp.ones(N), {"z": jnp.ones(N)}))
    assert [(array.path, array.entry) for array in bound.inputs] == [("args[0]", Lane()), ("args[1]['z']", Lane())]


CACHE = {"cache": Cache(jnp.zeros((N, 2)), jnp.zeros((N, 2)))}
FAULTS = {
    "a name that is not there": ({"cache": Pair(Pool("s"), Pool("s"))}, ContractFault.PREFIX, "args[0]['cache']"),
    "an array": ({"cache": Cache(Pool("s"), (Lane(),))}, ContractFault.PREFIX, "args[0]['cache'].v"),
    "an entry": ({"cache": Cache("lane", Pool("s"))}, ContractFault.ENTRY, "args[0]['cache'].k"),
    "an axis": ({"cache": Cache(Lane(2), Shared())}, ContractFault.AXIS, "args[0]['cache'].k"),
    "keys": ({"other": Lane()}, ContractFault.PREFIX, "args[0]"),
}


@pytest.mark.parametrize(("entries", "fault", "about"), FAULTS.values(), ids=FAULTS)
def test_errors_name_the_place(entries: Any, fault: ContractFault, about: str) -> None:
    with pytest.raises(ContractError) as error:
        LaneContract((entries,), Lane()).bind(lambda cache: cache["cache"].k, (CACHE,))
    assert [(fault.id, fault.about) for fault in error.value.faults] == [(fault, about)]


def test_an_argument_with_two_entries_is_refused() -> None:
    def step(x: jax.Array, *, other: jax.Array) -> jax.Array:
        return x + other

    def by_position(x: jax.Array, other: jax.Array) -> jax.Array:
        return step(x, other=other)

    x = jnp.ones((N, 2))
    contract = LaneContract((Lane(), Lane()), Lane(), keywords={"other": Shared()})
    with pytest.raises(ContractError, match=r"kwargs\['other'\].*Lane.*by position and Shared"):
        prove_isolation(by_position, (x,), contract, kwargs={"other": x})
    named = LaneContract((Lane(),), Lane(), keywords={"other": Lane()})
    assert prove_isolation(step, (x,), named, kwargs={"other": x})

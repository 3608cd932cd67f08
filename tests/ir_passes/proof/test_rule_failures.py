"""A failing rule is a violation at the user's line; forms that made rules fail."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from ir_passes import IsolationError, Lane, LaneContract, Packed, prove_isolation
from ir_passes.proof import lane_proof
from ir_passes.proof.registry import RULES
from ir_passes.proof.violations import ViolationKind

X = jnp.ones((3, 6))
LANES = LaneContract((Lane(),), Lane())


def fails(*_: Any) -> Any:
    raise KeyError("axis 7")


def in_a_loop(x: jax.Array) -> jax.Array:
    return lax.fori_loop(0, 2, lambda _, y: jnp.tanh(y), x)


@pytest.mark.parametrize(("step", "line"), [(lambda x: jnp.tanh(x), 0), (in_a_loop, 1)], ids=["plain", "in a loop"])
def test_a_rule_that_fails_is_a_violation(step: Any, line: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RULES, "tanh", fails)
    with pytest.raises(IsolationError) as error:
        prove_isolation(step, (X,), LANES)
    (violation,) = error.value.violations
    assert (violation.kind, violation.primitive) == (ViolationKind.UNKNOWN, "tanh")
    assert violation.source == f"{__file__}:{step.__code__.co_firstlineno + line}"
    assert "KeyError" in violation.message and violation.concerned == ("lanes 0 to 2",)
    assert isinstance(error.value.__cause__, KeyError)


def test_a_failure_outside_of_the_rules_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_proof, "outputs", fails)
    with pytest.raises(IsolationError) as error:
        prove_isolation(jnp.tanh, (X,), LANES)
    assert [violation.kind for violation in error.value.violations] == [ViolationKind.UNKNOWN]
    assert isinstance(error.value.__cause__, KeyError)


def test_masked_weights_that_are_summed_over_rows_too_are_refused() -> None:
    """Each token would see the sum over all pairs of tokens."""

    def step(q: jax.Array, v: jax.Array, cu: jax.Array) -> jax.Array:
        lane = jnp.searchsorted(cu[1:], jnp.arange(9), side="right")
        weights = jnp.where(lane[:, None] == lane[None, :], q @ q.T, 0.0)
        values = jnp.broadcast_to(jnp.where(jnp.isfinite(v), v, 0.0)[None], (9, 9, 4))
        return jnp.broadcast_to(lax.dot_general(weights, values, (((0, 1), (0, 1)), ((), ()))), (9, 4))

    contract = LaneContract((Packed(), Packed(), Packed(role="cu_seqlens")), Packed())
    with pytest.raises(IsolationError) as error:
        prove_isolation(step, (jnp.ones((9, 4)), jnp.ones((9, 4)), jnp.array([0, 4, 5, 7], jnp.int32)), contract)
    assert {violation.kind for violation in error.value.violations} == {ViolationKind.CROSS_LANE}


@pytest.mark.parametrize("axis_type", [jax.sharding.AxisType.Explicit, jax.sharding.AxisType.Auto])
@pytest.mark.parametrize("looped", [False, True], ids=["plain", "in a loop"])
def test_a_transposing_reshape_in_a_shard_map(axis_type: Any, looped: bool) -> None:
    def local(x: jax.Array) -> jax.Array:
        y = x.reshape(3, 2, 3, order="F").sum(2)
        return lax.fori_loop(0, 2, lambda _, z: z.reshape(3, 2, 1, order="F").sum(2), y) if looped else y

    mesh = jax.make_mesh((1,), ("x",), axis_types=(axis_type,))
    with jax.set_mesh(mesh):
        proof = prove_isolation(lambda x: jax.shard_map(local, in_specs=P(), out_specs=P())(x), (X,), LANES)
    assert proof.lanes == 3

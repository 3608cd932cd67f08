"""Schedules of collectives: bytes in a ring, loops, and constants."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P
from traced_programs import schedule
from zoo.meshes.sharded import mesh

from ir_passes.jaxpr.collectives import _RING, OPERATIONS, Collective, bytes_sent


@pytest.mark.parametrize(
    ("operation", "sent"),
    [
        ("psum", 2 * 3 * 25), ("pmax", 150), ("pmin", 150), ("reduce_scatter", 3 * 25), ("all_gather", 3 * 100),
        ("all_to_all", 3 * 25), ("ragged_all_to_all", 75), ("ppermute", 100), ("pbroadcast", 100),
    ],
)  # fmt: skip
def test_bytes_that_go_round_a_ring(operation: str, sent: int) -> None:
    """Four devices exchange a hundred bytes each."""
    collective = Collective(operation, ("model",), 4, "float32", 100, 3, "here:1")
    assert collective.sent == sent
    assert bytes_sent([collective, dataclasses.replace(collective, times=1)]) == 4 * sent
    assert bytes_sent([collective, dataclasses.replace(collective, times=None)]) is None
    assert set(OPERATIONS.values()) == set(_RING)


def test_bytes_are_not_fewer_than_pieces() -> None:
    assert Collective("psum", ("model",), 8, "float32", 4, 1, "").sent == 7


@pytest.mark.parametrize(
    ("length", "unroll", "times"), [(7, 2, [3, 3, 1]), (5, 1, [5]), (4, 4, [1] * 4), (3, 9, [1] * 3)]
)
def test_collectives_of_loops_stand_as_often_as_in_the_compiled_program(length: int, unroll: int, times: list[int]):
    def local(x):
        turn = lambda carry, _: (lax.psum(carry * x, "model"), None)
        looped = lax.scan(turn, jnp.ones_like(x), None, length=length, unroll=unroll)[0]
        return lax.while_loop(lambda y: y.sum() < 9, lambda y: y + lax.pmax(y * x, "model"), looped)

    run = jax.shard_map(local, mesh=mesh(2, 2), in_specs=P("data"), out_specs=P("data"))
    results = [item.collective for item in schedule(run, jnp.ones((4, 2)))]
    assert [item.times for item in results if item.operation == "psum"] == times
    assert [item.times for item in results if item.operation == "pmax"] == [None]
    assert "as often as a loop goes round" in str(results[-1])


def test_values_that_depend_on_an_input_or_a_device_are_no_constants() -> None:
    def exchange(x):
        table = lax.psum(jnp.ones(4), "model") + lax.psum(lax.axis_index("model").astype(jnp.float32), "model")
        return (
            x * table[None]
            + lax.psum(x, "model")
            + lax.fori_loop(0, 2, lambda _, x: lax.psum(x, "model"), jnp.zeros(4))[None]
        )

    split = P(None, "model")
    run = jax.shard_map(exchange, mesh=mesh(2, 4), in_specs=split, out_specs=split, check_vma=False)
    assert sorted(item.constant for item in schedule(run, jnp.ones((8, 16)))) == [False, False, False, True]

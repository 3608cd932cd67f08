"""Collectives of constants, possibly computed locally by XLA, and of complex numbers."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import Array, lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from ir_passes import Certificate, Lane, LaneContract, Pool, compile_step

CONTRACT = LaneContract((Pool("p"), Lane()), (Pool("p"), Lane()))
SPLIT = P(None, "model")


def mesh() -> jax.sharding.Mesh:
    return jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def step_of(exchange: Callable[[Array], Array]) -> Callable[..., Any]:
    def step(pool, x):
        return pool + 1, jax.shard_map(exchange, mesh=mesh(), in_specs=SPLIT, out_specs=SPLIT, check_vma=False)(x)

    return step


def certificate(exchange: Callable[[Array], Array], dtype: Any = jnp.float32) -> Certificate:
    place = NamedSharding(mesh(), SPLIT)
    args = tuple(jax.ShapeDtypeStruct((8, 16), type, sharding=place) for type in (jnp.float32, dtype))
    return compile_step(step_of(exchange), args, CONTRACT).certificate


@pytest.mark.parametrize("exchange", [
    lambda x: x * lax.psum(jnp.ones(x.shape), "model"),
    lambda x: x * lax.psum(jnp.float32(1), "model"),
    lambda x: x * lax.psum(lax.psum(jnp.ones(x.shape), "model"), "data"),
    lambda x: x * lax.pmax(jnp.ones(x.shape), "model"),
    lambda x: x * lax.all_gather(jnp.ones(8), "model").sum(0)[:, None],
    lambda x: lax.fori_loop(0, 3, lambda _, x: x * lax.psum(jnp.ones(x.shape), "model"), x),
], ids=["array", "number", "over two axes", "maximum", "gathered", "in a loop"])  # fmt: skip
def test_collectives_of_constants_may_be_missing(exchange: Callable[[Array], Array]) -> None:
    assert certificate(exchange).holds


@pytest.mark.parametrize("exchange", [
    lambda x: lax.psum(x, "model"), lambda x: lax.all_gather(x, "model", axis=1, tiled=True)[:, :4],
], ids=["psum", "all_gather"])  # fmt: skip
def test_complex_numbers_are_exchanged(exchange: Callable[[Array], Array]) -> None:
    contents = certificate(exchange, jnp.complex64)
    assert contents.holds and [collective.dtype for collective in contents.collectives] == ["complex64"]


@pytest.mark.parametrize("axes", [("data", "model"), ("model", "data")])
def test_devices_are_gathered_in_the_order_of_the_axes(axes: tuple[str, ...]) -> None:
    assert certificate(lambda x: lax.all_gather(x, axes, axis=1, tiled=True)[:, :4]).holds


def test_devices_are_gathered_in_the_order_of_their_groups() -> None:
    groups = [[3, 0], [2, 1]]
    contents = certificate(lambda x: lax.all_gather(x, "model", axis=1, tiled=True, axis_index_groups=groups)[:, :4])
    assert contents.holds

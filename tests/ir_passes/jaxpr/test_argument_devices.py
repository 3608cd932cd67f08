"""The device of arguments: of the first one with a place."""

import jax
import jax.numpy as jnp

from ir_passes.jaxpr.placement import device_of


def test_the_device_of_the_first_placed_argument_is_taken() -> None:
    class Device:
        id = 3

    class Place:
        device_set = frozenset({Device()})

    class Argument:
        sharding = Place()

    abstract = jax.sharding.NamedSharding(jax.sharding.AbstractMesh((2,), ("data",)), jax.sharding.PartitionSpec())
    arguments = (1.0, jax.ShapeDtypeStruct((2,), jnp.float32, sharding=abstract), Argument())
    assert device_of(arguments[:2]) is None and device_of((jnp.ones(1),)) == jax.devices()[0]
    assert isinstance(device_of(arguments), Device)
    second = jax.sharding.SingleDeviceSharding(jax.devices()[1])
    assert device_of((jax.ShapeDtypeStruct((2,), jnp.float32, sharding=second),)) == jax.devices()[1]

"""Equal programs have one fingerprint, however often JAX passed over them; other computations have another."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.custom_batching import custom_vmap
from jax.experimental import pallas as pl
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from traced_programs import hashes_of_traces

from ir_passes import Lane, LaneContract, Pool, SlotMap
from ir_passes.jaxpr.bodies import computing_params
from ir_passes.jaxpr.fingerprint import fingerprint

X = jnp.ones((4, 3))


@jax.custom_jvp
def with_tangent(x):
    return x * 2


with_tangent.defjvp(lambda primals, tangents: (primals[0] * 2, tangents[0] * 2))


@jax.custom_jvp
def tripled_with_tangent(x):
    return x * 3


tripled_with_tangent.defjvp(lambda primals, tangents: (primals[0] * 2, tangents[0] * 2))


@jax.custom_vjp
def with_cotangent(x):
    return x * 2


with_cotangent.defvjp(lambda x: (x * 2, x), lambda residual, cotangent: (cotangent * 2,))


@custom_vmap
def with_batch(x):
    return x * 2


@with_batch.def_vmap
def _with_batch(axis_size, in_batched, x):
    return x * 2, in_batched[0]


def doubled_by_kernel(x):
    def kernel(source, target):
        target[...] = source[...] * 2

    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)


def over_devices(x):
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    return jax.shard_map(lambda x: lax.psum(x, "data"), mesh=mesh, in_specs=P("data"), out_specs=P())(x)


def scanned(x, factor=2.0):
    return lax.scan(lambda carry, row: (carry * factor + row, carry), x[0], x)


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "scan": scanned,
    "scan in scan": lambda x: lax.scan(lambda carry, row: (carry + scanned(x)[0], row), x[0], x),
    "while": lambda x: lax.while_loop(lambda x: jnp.all(x < 10), lambda x: x + 1, x),
    "fori_loop": lambda x: lax.fori_loop(0, 3, lambda _, x: x * 2, x),
    "cond": lambda x: lax.cond(x[0, 0] > 0, lambda x: x * 2, lambda x: x + 1, x),
    "platforms": lambda x: lax.platform_dependent(x, cpu=lambda x: x * 2, default=lambda x: x + 1),
    "jit": lambda x: jax.jit(lambda x: x * 2)(x),
    "custom_jvp": with_tangent,
    "custom_vjp": with_cotangent,
    "custom_vmap": with_batch,
    "checkpoint": lambda x: jax.checkpoint(jnp.sin, policy=jax.checkpoint_policies.dots_saveable)(x),
    "shard_map": over_devices,
    "kernel": doubled_by_kernel,
    "callback": lambda x: jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x),
    "scatter": lambda x: x.at[0].max(2.0),
    "reduction": lambda x: lax.reduce(x, 0.0, lax.add, (0,)),
    "searchsorted": lambda x: jnp.searchsorted(x[0], x[1]),
    "linear solve": lambda x: lax.custom_linear_solve(lambda y: y * 2.0, x, lambda _, y: y / 2.0),
}


FORMS: dict[str, Callable[[Any], Any]] = {
    "once": lambda function: function,
    "in jit": jax.jit,
    "in a loop": lambda function: lambda x: lax.scan(lambda turn, _: (turn + 1, function(x)), 0, None, length=2),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_traces_and_passes_of_jax_keep_the_fingerprint(name: str, form: str) -> None:
    assert list(map(len, hashes_of_traces(FORMS[form](PROGRAMS[name]), X))) == [1, 1]


OTHER: list[Callable[[Any], Any]] = [
    lambda x: x + 1.0,
    lambda x: x + 2.0,
    lambda x: x * 2.0,
    lambda x: (x + 1.0)[::-1],
    lambda x: x - jnp.sin(x),
    lambda x: jnp.sin(x) - x,
    lambda x: x.sum(1),
    lambda x: (x, x),
    lambda x: x + np.eye(4, 3, dtype=np.float32),
    lambda x: x + np.eye(4, 3, 1, dtype=np.float32),
    lambda x: scanned(x, 3.0),
    lambda x: lax.scan(lambda carry, row: (carry * 2.0 + row, carry), x[0], x, reverse=True),
    # Scans with three results each, of one carry and of two.
    lambda x: lax.scan(lambda carry, row: (carry, (row, row)), x[0], x),
    lambda x: lax.scan(lambda carry, row: (carry, row), (x[0], x[1]), x),
    tripled_with_tangent,
    jax.checkpoint(jnp.cos),
]


def test_other_computations_have_other_fingerprints() -> None:
    programs = [*PROGRAMS.values(), *OTHER]
    assert len({fingerprint(jax.make_jaxpr(program)(X)) for program in programs}) == len(programs)
    assert fingerprint(jax.make_jaxpr(OTHER[0])(X)) != fingerprint(jax.make_jaxpr(OTHER[0])(jnp.ones((4, 5))))


def test_a_scan_is_written_with_its_numbers_of_constants_and_carries() -> None:
    eqn = jax.make_jaxpr(scanned)(X, 2.0).eqns[-1]
    assert {"num_consts": 1, "num_carry": 1, "length": 4}.items() <= computing_params(eqn).items()
    assert not {"ft_in", "ft_out"} & computing_params(eqn).keys()


def test_fingerprint_of_a_contract_sees_every_entry() -> None:
    step = lambda pool, slots, x: (pool.at[slots].set(x), x)
    args = (jnp.zeros((8, 4)), jnp.arange(1, 4, dtype=jnp.int32), jnp.ones((3, 4)))
    bound = lambda pool, slots: fingerprint(LaneContract((pool, slots, Lane()), (pool, Lane())).bind(step, args))
    item = bound(Pool("s"), SlotMap("s", 8))
    rest = [
        bound(Pool("s"), SlotMap("s", 7)),
        bound(Pool("t"), SlotMap("t", 8)),
        bound(Pool("s", dims=("slot", "x")), SlotMap("s", 8)),
        bound(Pool("s"), SlotMap("s", 8, role="write")),
    ]
    assert bound(Pool("s"), SlotMap("s", 8)) == item
    assert len({item, *rest}) == 5

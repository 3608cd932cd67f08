"""Reshapes that transpose become transposes, wherever they are."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ir_passes.contract.normal_form import row_major
from ir_passes.jaxpr import ir


def nested(x: Array) -> Array:
    """Reshapes that transpose in a loop, a branch, a custom_jvp call and a jitted call."""

    @jax.custom_jvp
    def turned(y: Array) -> Array:
        return y.ravel(order="F")

    turned.defjvp(lambda primals, tangents: (turned(*primals), turned(*tangents)))

    def body(carry: Array, _: None) -> tuple[Array, Array]:
        carry = lax.cond(carry.sum() > 0, lambda y: y.reshape(carry.shape, order="F"), lambda y: 2 * y, carry)
        return carry, turned(carry)

    carry, ys = lax.scan(body, x, None, length=3)
    return jax.jit(lambda y: y.reshape(-1, 2, order="F"))(carry).sum(1) + jax.checkpoint(jnp.sum)(ys)


def test_the_normal_form_computes_the_same() -> None:
    x = np.arange(24, dtype=np.float32).reshape(4, 6) - 7
    program = ir.trace(nested, x)
    new = row_major(program)
    ir.check(new)

    def transposing(jaxpr: ir.ClosedJaxpr) -> int:
        eqns = [eqn for eqn in ir.all_eqns(jaxpr.jaxpr) if eqn.primitive.name == "reshape"]
        return sum(eqn.params["dimensions"] is not None for eqn in eqns)

    assert (transposing(program) >= 3, transposing(new)) == (True, 0)
    assert row_major(new) is new
    for result, other in zip(ir.as_function(program)(x), ir.as_function(new)(x), strict=True):
        np.testing.assert_array_equal(result, other)
    sources = Counter(ir.source_of(eqn) for eqn in ir.all_eqns(new.jaxpr) if eqn.primitive.name == "transpose")
    assert all(source.startswith(__file__) for source in sources)

"""Instances of calls, branches and loops with small bodies."""

from typing import Any

import jax
import jax.numpy as jnp
from instances.elementwise import Builder
from instances.operands import Layout, Operands
from jax import Array, lax


@jax.custom_jvp
def _with_jvp(x: Array, y: Array) -> Array:
    return jnp.sin(x) * y


_with_jvp.defjvp(lambda primals, tangents: (_with_jvp(*primals), tangents[0]))


@jax.custom_vjp
def _with_vjp(x: Array, y: Array) -> Array:
    return x + jnp.flip(y, 0)


_with_vjp.defvjp(lambda x, y: (_with_vjp(x, y), None), lambda _, g: (g, g))


@jax.custom_batching.custom_vmap
def _with_vmap(x: Array, y: Array) -> Array:
    return x - 2 * y


@_with_vmap.def_vmap
def _with_vmap_rule(size: int, batched: Any, x: Array, y: Array) -> tuple[Array, bool]:
    return _with_vmap(x, y), batched[0]


def _pair(operands: Operands) -> tuple[list[Array], Layout]:
    layout = operands.layout(pool=False)
    return operands.alike(layout, "float32", "float32"), layout


def _call(function: Any) -> Builder:
    """Inside a loop, where calls are not replaced by their bodies before the proof."""

    def build(operands: Operands) -> Array:
        return lax.map(
            lambda pair: function(*pair), tuple(operands.alike(operands.layout(minimum=2), "float32", "float32"))
        )

    return build


def _mixing(operands: Operands, x: Array, y: Array) -> Array:
    """Some operation on two arrays of one shape, most often one that keeps lanes apart."""
    axis = operands.below(x.ndim) if x.ndim else 0
    ways = [lambda: x + y, lambda: x * 2, lambda: jnp.where(x > y, x, y), lambda: y, lambda: x]
    if x.ndim and operands.chance(0.3):
        ways += [lambda: jnp.flip(x, axis), lambda: x + x.sum(axis, keepdims=True), lambda: x.at[:1].set(y[:1])] * 2
    return operands.one_of(*ways)()


def _cond(operands: Operands) -> list[Array]:
    (x, y), _ = _pair(operands)
    choice = operands.one_of(operands.ids[0], operands.ids[1] % 3, operands.own[operands.below(operands.lanes), 0])
    if operands.chance(0.1):
        choice = operands.own[:, 0].sum()
    if operands.chance(0.3):
        return [lax.cond(choice > 0, lambda x, y: _mixing(operands, x, y), lambda x, y: _mixing(operands, x, y), x, y)]
    branches = [lambda x, y: (_mixing(operands, x, y), _mixing(operands, y, x)) for _ in range(operands.below(4, 2))]
    return list(lax.switch(choice, branches, x, y))


def _while(operands: Operands) -> list[Array]:
    (x, y), _ = _pair(operands)
    count = operands.one_of(
        jnp.int32(2), jnp.clip(operands.ids[0], 0, 3), jnp.clip(operands.own[operands.below(operands.lanes), 0], 0, 3)
    )

    def body(state: tuple[Array, ...]) -> tuple[Array, ...]:
        i, x, y = state
        return i + 1, _mixing(operands, x, y), _mixing(operands, y, x)

    # A count that is a separate operand may be any number.
    return list(lax.while_loop(lambda state: state[0] < jnp.minimum(count, 3), body, (jnp.int32(0), x, y)))


def _scan(operands: Operands) -> list[Array]:
    """Scan lanes or another axis in either direction, with carries and constants."""
    layout = operands.layout(operands.below(4, 1), pool=False)
    if operands.chance(0.5):
        order = [layout.axis, *(axis for axis in range(len(layout.shape)) if axis != layout.axis)]
        layout = Layout(tuple(layout.shape[axis] for axis in order), 0, layout.rows, layout.inner)
    xs = operands.alike(layout, "float32", "float32")
    count = layout.shape[0]
    slices = Layout(layout.shape[1:], layout.axis - 1, layout.rows, layout.inner)
    separate = bool(slices.shape) and layout.axis > 0
    start = operands.array(slices) if separate and operands.chance(0.6) else jnp.zeros(slices.shape)
    table = operands.array(Layout((operands.lanes, 2), 0, operands.lanes), kind=operands.one_of("lanes", "shared"))
    turns = jnp.arange(count)

    def body(carry: tuple[Array, Array], item: tuple[Array, ...]) -> tuple[Any, Any]:
        (saved, rows), (i, x, y) = carry, item
        new = _mixing(operands, saved, operands.one_of(x, y))
        result = table[i, 0] if operands.chance(0.3) else jnp.float32(1.0)
        if operands.chance(0.3):
            rows = rows.at[i].add(x.reshape(-1)[0])
        if operands.chance(0.3):
            result = result + operands.pool[operands.slots[i % operands.lanes], 0]
        return (new, rows), (_mixing(operands, x, saved), _mixing(operands, x, y) * result, i * 2)

    carry, ys = lax.scan(body, (start, jnp.zeros(count)), (turns, *xs), reverse=operands.chance(0.4))
    return [*carry, *ys]


def _rows_loop(operands: Operands) -> list[Array]:
    """Loop over a pool's rows or layers, with writes by slot."""
    slots = operands.slots
    body = lambda i, pool: pool.at[slots[i]].set(operands.x[i] + pool[slots[i]])
    return [lax.fori_loop(0, operands.lanes, body, operands.pool)]


def _layers(operands: Operands) -> list[Array]:
    pool = jnp.moveaxis(operands.pool.reshape(-1, 4, 24), 1, 0)

    def body(_: Any, layer: Array) -> tuple[Any, Array]:
        rows = layer[operands.slots] * 2
        return _, layer.at[operands.slots].set(rows) if operands.chance(0.7) else layer

    return [lax.scan(body, 0, pool)[1]]


def _either(*builders: Builder) -> Builder:
    return lambda operands: operands.one_of(*builders)(operands)


BUILDERS: dict[str, Builder] = {
    "cond": _cond,
    "while": _either(_while, _while, _while, _rows_loop),
    "scan": _either(_scan, _scan, _scan, _scan, _layers, _rows_loop),
    "jit": lambda o: _call(jax.jit(lambda x, y: _mixing(o, x, y)))(o),
    "custom_jvp_call": _call(_with_jvp),
    "custom_vjp_call": _call(_with_vjp),
    "custom_vmap_call": _call(_with_vmap),
    "checkpoint": _call(jax.checkpoint(lambda x, y: jnp.cos(x) + y)),
}

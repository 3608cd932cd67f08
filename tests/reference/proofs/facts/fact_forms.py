"""Small programs around each primitive, for operands of every shape and dtype of `fact_world`."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from facts.dtype_values import INTEGERS
from facts.fact_operands import SHAPES
from facts.fact_world import N
from instances.elementwise import PRIMITIVES
from jax import lax

from ir_passes.jaxpr import ir
from ir_passes.jaxpr.primitives import COMBINING, CUMULATIVE, ELEMENTWISE, IDENTITIES, REDUCTIONS

PRECISE = "cbrt cos cosh exp exp2 expm1 log log1p log2 logistic rsqrt sin sinh sqrt tan tanh".split()
PARAMETERS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(PRECISE, {"accuracy": None}),
    "integer_pow": {"y": 3},
    "mul": {"out_dtype": None},
    "reduce_precision": {"exponent_bits": 5, "mantissa_bits": 2},
    "round": {"rounding_method": lax.RoundingMethod.TO_NEAREST_EVEN},
    "name": {"name": "x"},
}


class Form(NamedTuple):
    """A program of one primitive.

    Attributes:
        name: of the primitive.
        run: the program.
        operands: dtype and shape of each operand.
    """

    name: str
    run: Callable[..., Any]
    operands: tuple[tuple[str, tuple[int, ...]], ...]


V, M, SCALAR = (N,), (N, N), ()
PLACES = ("int32", V), ("int32", SCALAR)


def forms(dtype: str, rest: tuple[str, ...]) -> Iterator[Form]:
    """Yield the forms that JAX traces.

    Args:
        dtype: of the operands.
        others: dtypes of the results of conversions.
    """
    for form in (*_elementwise(dtype, rest), *_moves(dtype), *_along_axes(dtype), *_indexed(dtype)):
        shapes = [jax.ShapeDtypeStruct(shape, jnp.dtype(kind)) for kind, shape in form.operands]
        try:
            names = {eqn.primitive.name for eqn in ir.trace(form.run, *shapes).jaxpr.eqns}
        except Exception:  # another number of operands, another dtype
            continue
        if form.name in names:
            yield form


def _elementwise(dtype: str, rest: tuple[str, ...]) -> Iterator[Form]:
    alike = [(V,), (M,), (V, V), (M, M), (V, SCALAR), (SCALAR, V), ((N, 1), (1, N)), (V, V, V), (SCALAR, V, SCALAR)]
    for name, shapes in product(sorted({*ELEMENTWISE, *IDENTITIES} & {*PRIMITIVES}), alike):
        if name == "convert_element_type":
            for other in rest if len(shapes) == 1 else ():
                run = partial(
                    lax.convert_element_type_p.bind, new_dtype=jnp.dtype(other), weak_type=False, sharding=None
                )
                yield Form(name, run, ((dtype, shapes[0]),))
        elif name != "select_n":
            run = partial(PRIMITIVES[name].bind, **PARAMETERS.get(name, {}))
            yield Form(name, run, tuple((dtype, shape) for shape in shapes))
    for shape, decides in ((V, V), (M, M), (V, SCALAR), (M, SCALAR), (SCALAR, SCALAR)):
        yield Form("select_n", lax.select_n, (("bool", decides), (dtype, shape), (dtype, shape)))
    yield Form("select_n", lax.select_n, (("int32", V), (dtype, V), (dtype, V), (dtype, V)))


def _moves(dtype: str) -> Iterator[Form]:
    for shape in SHAPES:
        for final in (V, M, (N, 1), (1, N), (2, 2), (N, 2, 2), (N, N, 1), (N, 1, N), (16,), (8, 2), (1, N, N), ()):
            yield Form("reshape", partial(jnp.reshape, shape=final), ((dtype, shape),))
        for final, axes in ((V, ()), (M, ()), (M, (0,)), (M, (1,)), ((N, 3), (0,)), ((3, N), (1,)), ((2, N, N), (1, 2)),
                            (M, (0, 1)), ((N, 1, N), (0, 2))):  # fmt: skip
            yield Form("broadcast_in_dim", partial(lax.broadcast_in_dim, shape=final, broadcast_dimensions=axes),
                       ((dtype, shape),))  # fmt: skip
    item = ((dtype, V),), ((dtype, M),)
    yield Form("transpose", partial(jnp.transpose, axes=(1, 0)), item[1])
    yield Form("squeeze", partial(lax.squeeze, dimensions=(1,)), ((dtype, (N, 1)),))
    yield Form(
        "bitcast_convert_type",
        partial(lax.bitcast_convert_type, new_dtype=f"uint{8 * jnp.dtype(dtype).itemsize}"),
        item[0],
    )
    yield Form("tile", partial(lax.tile, reps=(2,)), item[0]) if hasattr(lax, "tile") else Form("tile", jnp.tile, ())
    for operands, rank in zip(item, (1, 2), strict=True):
        for axis in range(rank):
            yield Form("rev", partial(lax.rev, dimensions=(axis,)), operands)
            yield Form("split", partial(lax.split, sizes=(1, 3), axis=axis), operands)
            yield Form("concatenate", lambda x, y, axis=axis: lax.concatenate([x, y], axis), operands * 2)
            for low, high, inner in ((0, 1, 0), (1, 0, 0), (-1, 0, 0), (0, -2, 0), (0, 0, 1), (1, -1, 0)):
                config = [(low, high, inner) if k == axis else (0, 0, 0) for k in range(rank)]
                yield Form("pad", partial(lax.pad, padding_config=config), (*operands, (dtype, SCALAR)))
            for start, stop, step in ((0, 2, 1), (1, 4, 1), (0, 4, 2), (3, 4, 1), (0, 1, 1)):
                yield Form(
                    "slice",
                    partial(lax.slice_in_dim, start_index=start, limit_index=stop, stride=step, axis=axis),
                    operands,
                )
    parts = ((dtype, (N, 1)),) * N
    yield Form("concatenate", lambda *parts: lax.concatenate(parts, 1), parts)
    yield Form("slice", lambda *parts: lax.concatenate(parts, 1)[:, 2:3], parts)
    yield Form("scan", lambda x: lax.scan(lambda carry, row: (carry, row), 0, x)[1], item[1])
    yield Form("scan", lambda x, y: lax.scan(lambda carry, row: (row, carry), x, y)[0], (*item[0], *item[1]))
    yield Form("cond", lambda yes, x, y: lax.cond(yes, lambda: x, lambda: y), (("bool", SCALAR), *item[0] * 2))
    yield Form("while", lambda x: lax.while_loop(lambda x: x[0] != x[0], lambda x: x[::-1], x), item[0])
    yield Form("jit", jax.jit(lambda x: x), item[0])


def _along_axes(dtype: str) -> Iterator[Form]:
    for shape, axis in ((V, 0), (M, 0), (M, 1)):
        operand = ((dtype, shape),)
        for name in REDUCTIONS - {"argmax", "argmin"}:
            yield Form(name, lambda x, name=name, axis=axis: getattr(lax, name)(x, (axis,)), operand)
        for name in ("argmax", "argmin"):
            index = dtype if dtype in INTEGERS else "int32"
            yield Form(name, lambda x, name=name, axis=axis, index=index: getattr(lax, name)(x, axis, index), operand)
        for name, reverse in product(CUMULATIVE, (False, True)):
            yield Form(
                name, lambda x, name=name, axis=axis, reverse=reverse: getattr(lax, name)(x, axis, reverse), operand
            )
        yield Form("sort", lambda x, axis=axis: lax.sort(x, axis), operand)
        yield Form("top_k", lambda x, axis=axis: lax.top_k(x, 2, axis=axis), operand)
    for count, keys in ((2, 1), (3, 1), (2, 2)):
        yield Form("sort", lambda *x, keys=keys: lax.sort(x, num_keys=keys), ((dtype, V),) * count)
    yield Form("sort", lambda x: lax.sort((x, jnp.arange(N)), num_keys=1), ((dtype, V),))
    for contract, batch in ((((1,), (0,)), ((), ())), (((1,), (1,)), ((0,), (0,))), (((0,), (1,)), ((), ()))):
        yield Form("dot_general", lambda x, y, d=(contract, batch): lax.dot_general(x, y, d), ((dtype, M),) * 2)


def _indexed(dtype: str) -> Iterator[Form]:
    operand, index = (dtype, V), dtype if dtype in INTEGERS else "int32"
    for mode in ("fill", "clip", "promise_in_bounds"):
        for shape in (V, SCALAR, (N, 1)):
            yield Form(
                "gather",
                lambda x, i, mode=mode: x.at[i].get(mode=mode, wrap_negative_indices=False),
                (operand, (index, shape)),
            )
        yield Form(
            "gather",
            lambda x, i, mode=mode: x.at[i].get(mode=mode, wrap_negative_indices=False),
            ((dtype, M), (index, V)),
        )
        yield Form(
            "gather",
            lambda x, i, mode=mode: x.at[:, i].get(mode=mode, wrap_negative_indices=False),
            ((dtype, M), (index, SCALAR)),
        )
    yield Form(
        "gather",
        lambda x, i: x.at[i].get(mode="fill", fill_value=1, wrap_negative_indices=False),
        (operand, (index, V)),
    )
    yield Form("dynamic_slice", lambda x, i: lax.dynamic_slice(x, (i,), (2,)), (operand, (index, SCALAR)))
    yield Form("dynamic_slice", lambda x, i: lax.dynamic_slice(x, (i,), (1,)), (operand, (index, SCALAR)))
    yield Form(
        "dynamic_update_slice",
        lambda x, y, i: lax.dynamic_update_slice(x, y[:2], (i,)),
        (operand, operand, (index, SCALAR)),
    )
    yield Form("dynamic_update_slice", lambda x, y: lax.dynamic_update_slice(x, y, (0,)), (operand, operand))
    for mode in ("drop", "clip"):
        yield Form(
            "scatter",
            lambda x, i, y, mode=mode: x.at[i].set(y, mode=mode, wrap_negative_indices=False),
            (operand, (index, V), operand),
        )
        for name in COMBINING:
            verb = {"scatter-add": "add", "scatter-mul": "multiply", "scatter-min": "min", "scatter-max": "max"}.get(
                name, "subtract"
            )
            yield Form(name, partial(_combined, verb=verb, mode=mode), (operand, (index, V), operand))


def _combined(x: jax.Array, index: jax.Array, updates: jax.Array, verb: str, mode: str) -> jax.Array:
    return getattr(x.at[index], verb)(updates, mode=mode, wrap_negative_indices=False)


OFTEN = ("bool", "int4", "int8", "uint8", "int32", "float8_e4m3fn", "bfloat16", "float32")

"""Instances of contractions, convolutions and decompositions."""

from typing import Any

import jax.numpy as jnp
from instances.elementwise import PRIMITIVES, Builder
from instances.operands import Layout, Operands
from jax import Array, lax


def _dot(operands: Operands) -> Array:
    """Any batch and contracted dimensions, with lanes in any of them."""
    batch, summed = operands.below(3), operands.below(3)
    sizes = [operands.lanes if operands.chance(0.4) else operands.below(4, 1) for _ in range(batch + summed)]
    sides, numbers = [], []
    dtype = operands.one_of("float32", "float32", "int32", "int8")
    for _ in range(2):
        free = [operands.lanes if operands.chance(0.3) else operands.below(4, 1) for _ in range(operands.below(3))]
        dims = [*sizes, *free]
        order = operands.some(len(dims), len(dims))
        shape = tuple(dims[d] for d in order)
        places = [order.index(d) for d in range(batch + summed)]
        numbers.append((tuple(places[batch:]), tuple(places[:batch])))
        lanes = [axis for axis, size in enumerate(shape) if size == operands.lanes]
        if lanes and operands.chance(0.75):
            separate = [axis for axis in lanes if axis not in numbers[-1][0]]
            axis = operands.one_of(*(separate or lanes)) if operands.chance(0.8) else operands.one_of(*lanes)
            layout = Layout(shape, axis, operands.lanes)
            sides.append(operands.array(layout, dtype, operands.one_of("lanes", "lanes", "ordered", "one", "mixed")))
        else:
            sides.append(operands.array(Layout(shape, 0, operands.lanes), dtype, operands.one_of("shared", "one")))
    (a_sum, a_batch), (b_sum, b_batch) = numbers
    preferred = jnp.int32 if dtype == "int8" else None
    dims = ((a_sum, b_sum), (a_batch, b_batch))
    return lax.dot_general(sides[0], sides[1], dims, preferred_element_type=preferred)


def _ragged(operands: Operands) -> Array:
    """Rows of lanes, sorted or not, with shared, own or counted sizes."""
    inner, width, groups = operands.one_of(1, 2), operands.below(4, 1), operands.below(4, 1)
    count = operands.lanes * inner
    layout = Layout((count, width), 0, operands.lanes, inner)
    matrices = operands.array(
        Layout((groups, width, operands.below(4, 1)), 0, operands.lanes),
        kind=operands.one_of("shared", "shared", "one"),
    )
    keys = jnp.clip(operands.own[:, :inner].reshape(-1), 0, groups - 1)
    sizes = operands.one_of(
        operands.array(Layout((groups,), 0, operands.lanes), "int32", "shared"),
        operands.array(Layout((groups,), 0, operands.lanes), "int32", "one"),
        jnp.bincount(keys, length=groups).astype(jnp.int32),
        jnp.bincount(keys, length=groups).astype(jnp.int32),
    )
    if operands.chance(0.5):
        rows = operands.array(layout)[jnp.argsort(keys)]
    else:
        rows = operands.array(layout, kind=operands.one_of("lanes", "ordered", "one", "mixed"))
    if operands.chance(0.15):
        return lax.ragged_dot_general(rows, matrices[0, :count], sizes, _contracting())
    return lax.ragged_dot(rows, matrices, sizes)


def _contracting() -> Any:
    return lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), (0,), ())


def _convolution(operands: Operands) -> Array:
    """Any layout of dimensions, groups of features or of the batch, strides, padding and dilations."""
    spatial = operands.below(3, 1)
    features, groups = operands.below(4, 1), operands.one_of(1, 1, 2)
    per_batch = operands.one_of(1, 1, 1, 2) if groups == 1 else 1
    batch = operands.lanes * operands.one_of(1, 2)
    size = {"N": batch, "C": features * groups, **{str(d): operands.below(6, 3) for d in range(spatial)}}
    kernel = {
        "I": features,
        "O": groups * per_batch * operands.below(3, 1),
        **{str(d): operands.below(4, 1) for d in range(spatial)},
    }
    specs = []
    for names in (size, kernel, {"N": 0, "C": 0, **{str(d): 0 for d in range(spatial)}}):
        order = list(names)
        specs.append("".join(order[k] for k in operands.some(len(order), len(order))))
    shape = tuple(size[name] for name in specs[0])
    if operands.chance(0.75):
        layout = Layout(shape, specs[0].index("N"), operands.lanes, batch // operands.lanes)
        x = operands.array(layout, kind=operands.one_of("lanes", "lanes", "ordered", "one", "mixed"))
    else:
        axes = [axis for axis, length in enumerate(shape) if length == operands.lanes]
        x = operands.array(
            Layout(shape, operands.one_of(*axes or [0]), operands.lanes), kind="lanes" if axes else "one"
        )
    shape = tuple(kernel[name] for name in specs[1])
    axes = [axis for axis, length in enumerate(shape) if length == operands.lanes]
    layout = Layout(shape, operands.one_of(*axes or [0]), operands.lanes)
    w = operands.array(
        layout, kind="lanes" if axes and operands.chance(0.3) else operands.one_of("shared", "shared", "one")
    )
    return lax.conv_general_dilated(
        x,
        w,
        window_strides=[operands.below(3, 1) for _ in range(spatial)],
        padding=[(operands.below(2), operands.below(3)) for _ in range(spatial)],
        lhs_dilation=[operands.one_of(1, 1, 2) for _ in range(spatial)],
        rhs_dilation=[operands.one_of(1, 1, 2) for _ in range(spatial)],
        dimension_numbers=tuple(specs),
        feature_group_count=groups,
        batch_group_count=per_batch,
    )


def _batch(operands: Operands) -> tuple[tuple[int, ...], Layout]:
    """Leading dimensions; lanes among them, or in the matrix behind them."""
    layout = operands.layout(operands.below(3, 1), pool=False, inner=1)
    return layout.shape, layout


def _matrices(operands: Operands, rows: int, columns: int | None, layout: Layout, kind: str) -> Array:
    tail = (rows,) if columns is None else (rows, columns)
    return operands.array(Layout((*layout.shape, *tail), layout.axis, layout.rows, layout.inner), kind=kind)


def _square(operands: Operands) -> tuple[Array, Layout, str]:
    """Square matrices that can be factored; at times lanes are their rows."""
    layout = operands.layout(operands.below(3, 1), pool=False, inner=1)
    kind = operands.kind(layout)
    if operands.chance(0.2):
        n = operands.lanes
        x = operands.array(Layout((n, n), operands.below(2), n))
        return x + n * 2 * jnp.eye(n), layout, kind
    n = operands.below(4, 2)
    x = _matrices(operands, n, n, layout, kind)
    return x + jnp.broadcast_to(8 * jnp.eye(n), x.shape), layout, kind


def _symmetric(operands: Operands) -> Array:
    x = _square(operands)[0]
    return x + jnp.swapaxes(x, -1, -2)


def _bound(name: str, **params: Any) -> Builder:
    return lambda operands: PRIMITIVES[name].bind(_square(operands)[0], **params)


def _rectangle(operands: Operands) -> Array:
    layout = operands.layout(operands.below(3, 1), pool=False, inner=1)
    return _matrices(operands, operands.below(4, 1), operands.below(4, 1), layout, operands.kind(layout))


def _fft(operands: Operands) -> Array:
    x, _ = operands.any(pool=False)
    count = operands.below(min(3, x.ndim)) + 1
    if operands.chance(0.5):
        return lax.fft(x, lax.FftType.RFFT, x.shape[-count:])
    return lax.fft(lax.complex(x, x * 2), operands.one_of(lax.FftType.FFT, lax.FftType.IFFT), x.shape[-count:])


def _triangular(operands: Operands) -> Array:
    a, layout, kind = _square(operands)
    like = Layout(a.shape[:-2], layout.axis, layout.rows) if a.ndim > 2 else None
    rest, n, k = operands.chance(0.5), a.shape[-1], operands.below(4, 1)
    tail = (n, k) if rest else (k, n)
    b = (
        _matrices(operands, *tail, like, operands.one_of(kind, "shared"))
        if like
        else operands.array(Layout(tail, operands.below(2), operands.lanes), kind="one")
    )
    return lax.linalg.triangular_solve(
        a, b, left_side=rest, lower=operands.chance(0.5), transpose_a=operands.chance(0.3)
    )


def _pivots(operands: Operands) -> Array:
    _, pivots, _ = lax.linalg.lu(_square(operands)[0])
    return lax.linalg.lu_pivots_to_permutation(pivots, pivots.shape[-1] + 1)


def _householder(operands: Operands) -> Array:
    layout = operands.layout(operands.below(3, 1), pool=False, inner=1)
    kind = operands.kind(layout)
    return lax.linalg.householder_product(
        _matrices(operands, 3, 2, layout, kind), _matrices(operands, 2, None, layout, operands.one_of(kind, "shared"))
    )


def _tridiagonal_solve(operands: Operands) -> Array:
    layout = operands.layout(operands.below(3, 1), pool=False, inner=1)
    kind = operands.kind(layout)
    low, middle, high = (_matrices(operands, 3, None, layout, operands.one_of(kind, "shared")) for _ in range(3))
    return lax.linalg.tridiagonal_solve(
        low.at[..., 0].set(0), middle + 8, high.at[..., -1].set(0), _matrices(operands, 3, 2, layout, kind)
    )


BUILDERS: dict[str, Builder] = {
    "dot_general": _dot,
    "ragged_dot_general": _ragged,
    "conv_general_dilated": _convolution,
    "fft": _fft,
    "triangular_solve": _triangular,
    "cholesky": lambda o: lax.linalg.cholesky(_symmetric(o), symmetrize_input=False),
    "eigh": lambda o: list(lax.linalg.eigh(_symmetric(o), symmetrize_input=False)),
    "eig": lambda o: list(lax.linalg.eig(_square(o)[0])),
    "svd": lambda o: list(lax.linalg.svd(_rectangle(o), full_matrices=o.chance(0.5))),
    "qr": lambda o: list(lax.linalg.qr(_rectangle(o), full_matrices=o.chance(0.5))),
    "lu": lambda o: list(lax.linalg.lu(_square(o)[0])),
    "lu_pivots_to_permutation": _pivots,
    "householder_product": _householder,
    "schur": lambda o: list(lax.linalg.schur(_square(o)[0])),
    "tridiagonal": lambda o: list(lax.linalg.tridiagonal(_symmetric(o))),
    "tridiagonal_solve": _tridiagonal_solve,
}

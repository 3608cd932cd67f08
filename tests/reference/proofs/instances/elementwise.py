"""Instances of elementwise operations."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from installed_primitives import primitives
from instances.operands import INTEGERS, Layout, Operands
from jax import Array, lax
from jax.ad_checkpoint import checkpoint_name

PRIMITIVES = {primitive.name: primitive for primitive in primitives()}
ANY = ("float32", "float32", *INTEGERS)
BITS = ("bool", *INTEGERS)
Result = Array | list[Array]
Builder = Callable[[Operands], Any]

ONE_FLOAT = """
acos acosh asin asinh atan atanh bessel_i0e bessel_i1e cbrt ceil cos cosh digamma erf erf_inv erfc exp exp2 expm1
floor is_finite lgamma log log1p log2 logistic rsqrt sin sinh sqrt tan tanh one_minus_square
""".split()
TWO_FLOATS = "add_any atan2 igamma igamma_grad_a igammac nextafter polygamma zeta".split()
ONE = {
    "abs": ("float32", "int32", "int8", "int16"), "neg": ANY, "sign": ANY, "square": ANY, "not": BITS, "clz": INTEGERS,
    "population_count": INTEGERS,
}  # fmt: skip
TWO = dict.fromkeys(("add", "sub", "mul", "div", "rem", "max", "min", "eq", "ne", "lt", "le", "gt", "ge"), ANY)
TWO |= dict.fromkeys(("and", "or", "xor"), BITS)
TWO |= dict.fromkeys(("shift_left", "shift_right_arithmetic", "shift_right_logical", "mulhi"), INTEGERS)
TWO |= dict.fromkeys(("eq_to", "le_to", "lt_to"), ("float32",))
KINDS = ("shared", "counting", "slots", "one")


def _alike(operands: Operands, layout: Layout, dtype: str, count: int) -> list[Array]:
    """Arrays of one shape, or with unit axes; integers may be counts or rows."""
    arrays = operands.alike(layout, *[dtype] * count)
    for k, array in enumerate(arrays):
        if dtype != "bool" and np.issubdtype(np.dtype(dtype), np.integer) and operands.chance(0.25):
            arrays[k] = operands.array(layout, dtype, operands.one_of(*KINDS))
        elif count > 1 and operands.chance(0.08):
            axis = operands.below(array.ndim)
            arrays[k] = lax.slice_in_dim(array, 0, 1, axis=axis)
    return arrays


def _bound(name: str, count: int, dtypes: tuple[str, ...]) -> Builder:
    return lambda operands: PRIMITIVES[name].bind(
        *_alike(operands, operands.layout(), operands.one_of(*dtypes), count), **_accuracy(name)
    )


def _accuracy(name: str) -> dict[str, Any]:
    precise = "cbrt cos exp exp2 expm1 log log1p log2 logistic rsqrt sin sqrt tan tanh".split()
    return {"accuracy": None} if name in precise else {}


def _clamp(operands: Operands) -> Array:
    layout, dtype = operands.layout(), operands.one_of(*ANY)
    low, x, high = _alike(operands, layout, dtype, 3)
    if operands.chance(0.6):
        return lax.clamp(np.dtype(dtype).type(operands.below(3)), x, np.dtype(dtype).type(operands.below(8)))
    return lax.clamp_p.bind(low, x, high)


def _select(operands: Operands) -> Array:
    layout, count = operands.layout(), operands.one_of(2, 2, 3)
    cases = operands.alike(layout, *[operands.one_of(*ANY)] * count)
    if operands.chance(0.2):
        cases = [cases[0]] * count
    choice = operands.alike(layout, "bool" if count == 2 else "int32")[0]
    if operands.chance(0.2):
        choice = operands.alike(Layout(layout.shape, layout.axis, layout.rows, layout.inner), "float32")[0] > 0
    if operands.chance(0.2):
        choice = (operands.ids[operands.below(3)] > 1) if count == 2 else operands.ids[0]
    return lax.select_n(choice if count == 2 else lax.clamp(0, choice.astype("int32"), 2), *cases)


def _convert(operands: Operands) -> Array:
    initial, final = operands.one_of("float32", "bool", *INTEGERS), operands.one_of("float16", "float32", *BITS)
    array = _alike(operands, operands.layout(), initial, 1)[0]
    new = lax.convert_element_type(array, final)
    return lax.convert_element_type(new, initial) if operands.chance(0.3) else new


def _bitcast(operands: Operands) -> Array:
    initial, final = operands.one_of("float32", *INTEGERS), operands.one_of("float32", *INTEGERS)
    ratio = np.dtype(final).itemsize // np.dtype(initial).itemsize
    if ratio < 2:
        return lax.bitcast_convert_type(operands.alike(operands.layout(), initial)[0], final)
    layout = operands.layout()
    if operands.chance(0.5) and layout.shape[-1] % ratio == 0:
        return lax.bitcast_convert_type(
            operands.array(layout, initial, operands.kind(layout)).reshape(layout.shape[:-1] + (-1, ratio)), final
        )
    joined = Layout((*layout.shape, ratio), layout.axis, layout.rows, layout.inner)
    if layout.rows == ratio and operands.chance(0.5):
        joined = Layout((2, ratio), 1, ratio)
    return lax.bitcast_convert_type(operands.array(joined, initial, operands.kind(joined)), final)


def _words(name: str, count: int) -> Builder:
    return lambda operands: PRIMITIVES[name].bind(*operands.alike(operands.layout(), *["uint32"] * count))


def _three(name: str) -> Builder:
    return lambda operands: PRIMITIVES[name].bind(*operands.alike(operands.layout(), *["float32"] * 3))


def _complex(operands: Operands) -> Array:
    return lax.complex(*operands.alike(operands.layout(), "float32", "float32"))


def _barrier(operands: Operands) -> list[Array]:
    return list(jax.lax.optimization_barrier(tuple(operands.alike(operands.layout(), "float32", "int32"))))


def _named(operands: Operands) -> Array:
    return checkpoint_name(operands.any()[0], "named")


BUILDERS: dict[str, Builder] = {
    **{name: _bound(name, 1, ("float32",)) for name in ONE_FLOAT},
    **{name: _bound(name, 2, ("float32",)) for name in TWO_FLOATS},
    **{name: _bound(name, 1, dtypes) for name, dtypes in ONE.items()},
    **{name: _bound(name, 2, dtypes) for name, dtypes in TWO.items()},
    "clamp": _clamp,
    "select_n": _select,
    "convert_element_type": _convert,
    "bitcast_convert_type": _bitcast,
    "complex": _complex,
    "conj": lambda o: lax.conj(_complex(o)),
    "real": lambda o: lax.real(_complex(o)),
    "imag": lambda o: lax.imag(_complex(o)),
    "integer_pow": lambda o: lax.integer_pow(_alike(o, o.layout(), o.one_of(*ANY), 1)[0], o.below(4, 2)),
    "pow": lambda o: lax.pow(*o.alike(o.layout(), "float32", "float32")),
    "polynomial": lambda o: PRIMITIVES["polynomial"].bind(*o.alike(o.layout(), *["float32"] * 3)),
    "reduce_precision": lambda o: lax.reduce_precision(o.any()[0], exponent_bits=5, mantissa_bits=4),
    "round": lambda o: lax.round(o.any()[0], o.one_of(*lax.RoundingMethod)),
    "threefry2x32": _words("threefry2x32", 4),
    "threefry4x32": _words("threefry4x32", 8),
    "philox2x32": _words("philox2x32", 3),
    "philox4x32": _words("philox4x32", 6),
    "copy": lambda o: lax.copy_p.bind(o.any()[0]),
    "stop_gradient": lambda o: lax.stop_gradient(o.any()[0]),
    "optimization_barrier": _barrier,
    "name": _named,
}  # fmt: skip

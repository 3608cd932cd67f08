"""Facts outlive operations only where they hold: each fact, elementwise primitive and dtype."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from facts.dtype_values import DTYPES, FLOATS, INTEGERS, every, has, numbers, sampled
from facts.fact_world import packed_prover
from instances.elementwise import PRIMITIVES
from jax import lax

from ir_passes import LaneContract, Packed, Pool, SlotMap
from ir_passes.jaxpr import ir, primitives
from ir_passes.proof.numbering import Leaf, Number
from ir_passes.proof.owners import COMMON, LaneRows
from ir_passes.proof.rules import survival
from ir_passes.proof.rules.all import RULES
from ir_passes.proof.site import Site
from ir_passes.proof.values import (
    Fact,
    Finite,
    MaskedOut,
    OneHot,
    SlotEntry,
    UnchangedRows,
    Value,
)


def bits_of(array: Any) -> np.ndarray:
    """Return the bytes of each element, or the value of small floats and integers."""
    array = np.asarray(array)
    if jnp.issubdtype(array.dtype, jnp.floating) and jnp.finfo(array.dtype).bits >= 8:
        return array.view(f"uint{8 * array.itemsize}")
    wide = array.astype(np.float64 if jnp.issubdtype(array.dtype, jnp.floating) else array.dtype)
    return wide.view(np.uint64) if wide.dtype == np.float64 else wide.astype(np.int64 if wide.itemsize < 8 else None)


TOKENS, DRAWS = 4, 64
CONTRACT = LaneContract((Packed(), Packed(role="cu_seqlens"), Pool("s"), SlotMap("s", 120)), (Packed(), Pool("s")))
ARGS = jnp.ones((TOKENS, 2)), jnp.array([0, 2, 4], jnp.int32), jnp.ones((120, 2)), jnp.array([1, 2], jnp.int32)
OUTSIDE = np.broadcast_to(np.kron(np.eye(2), np.ones((2, 2))) == 0, (DRAWS, TOKENS, TOKENS))
"""Tokens 0 and 1 are of lane 0, tokens 2 and 3 of lane 1."""
ROWS, COLUMNS = LaneRows(1, packed="tokens"), LaneRows(2, packed="tokens")
ONE_HOT = np.broadcast_to(np.eye(TOKENS), OUTSIDE.shape)
FACTS: dict[str, Fact] = {
    "zero outside": MaskedOut(ROWS, COLUMNS, zero=True),
    "minus infinity outside": MaskedOut(ROWS, COLUMNS, zero=False),
    "finite": Finite(),
    "one-hot": OneHot(Number(1007), 1, 2),
}
PRECISE = "cbrt cos cosh exp exp2 expm1 log log1p log2 logistic rsqrt sin sinh sqrt tan tanh".split()
PARAMETERS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(PRECISE, {"accuracy": None}),
    "integer_pow": {"y": 3},
    "reduce_precision": {"exponent_bits": 5, "mantissa_bits": 2},
    "round": {"rounding_method": lax.RoundingMethod.TO_NEAREST_EVEN},
    "name": {"name": "x"},
}
NAMES = sorted(
    {*primitives.ELEMENTWISE, "select_n", "copy", "stop_gradient", "name", "bitcast_convert_type"} & {*PRIMITIVES}
)
OFTEN = ("bool", "int8", "uint8", "int32", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "bfloat16", "float32")


def applied(fn: Any, arrays: list[Any], values: list[Value], **state: Any) -> list[Value]:
    """The results of the rule of the one equation that a function is traced to."""
    jaxpr = ir.trace(fn, *arrays).jaxpr
    (eqn,) = jaxpr.eqns
    prover = packed_prover(CONTRACT.bind(lambda x, cu, pool, slots: (x, pool), ARGS), **state)
    env = dict(zip(jaxpr.invars, values, strict=True))
    return Site(prover, eqn, jaxpr, 0, env, ir.shapes(eqn.invars)).apply(values)


def forms(dtype: str, other_dtypes: tuple[str, ...]) -> Iterator[tuple[str, Any, int]]:
    """(primitive, function, number of operands) of all primitives that take this dtype."""
    x = jax.ShapeDtypeStruct(OUTSIDE.shape, jnp.dtype(dtype))
    for name in NAMES:
        if name == "convert_element_type":
            for other in other_dtypes:
                if other == dtype:
                    continue
                yield name, partial(lax.convert_element_type_p.bind, new_dtype=jnp.dtype(other), weak_type=False,
                                    sharding=None), 1  # fmt: skip
            continue
        for count in (1, 2, 3):
            form = partial(PRIMITIVES[name].bind, **PARAMETERS.get(name, {}))
            if name == "bitcast_convert_type":
                form = partial(lax.bitcast_convert_type, new_dtype=f"uint{8 * jnp.dtype(dtype).itemsize}")
            try:
                eqns = ir.trace(form, *[x] * count).jaxpr.eqns
            except Exception:  # another number of operands, or another dtype
                continue
            if [eqn.primitive.name for eqn in eqns] == [name] and ir.shape_of(eqns[0].outvars[0]) == OUTSIDE.shape:
                yield name, form, count


def holding(fact: Fact, dtype: str, rng: np.random.Generator) -> np.ndarray | None:
    """Return an array with a fact and otherwise arbitrary values; None without such array."""
    values = rng.choice(every(dtype), OUTSIDE.shape)
    match fact:
        case MaskedOut(_, _, zero):
            number = 0.0 if zero else -np.inf
            return np.where(OUTSIDE, np.array(number).astype(values.dtype), values) if has(dtype, number) else None
        case Finite():
            finite = np.isfinite(numbers(values))
            return np.where(finite, values, np.array(1).astype(values.dtype)) if dtype in FLOATS else None
        case _:
            return ONE_HOT.astype(values.dtype) if has(dtype, 0) and has(dtype, 1) else None


def holds(fact: Fact, array: np.ndarray) -> bool:
    result = numbers(array)
    match fact:
        case MaskedOut(_, _, zero):
            padding = result[OUTSIDE]
            return bool((np.isnan(padding) | (padding == (0 if zero else -np.inf))).all())
        case Finite():
            return bool(np.isfinite(result).all())
        case _:
            return bool((result == ONE_HOT).all())


@pytest.mark.slow
@pytest.mark.parametrize("dtype", sampled(DTYPES, "int8", "float8_e4m3fn", "float32"))
def test_facts_of_elementwise_results(dtype: str) -> None:
    rng, tried, intact = np.random.default_rng(0), set[str](), set[tuple[str, str]]()
    with jax.enable_x64(True):
        for name, form, count in forms(dtype, OFTEN if dtype in OFTEN else tuple(DTYPES)):
            tried.add(name)
            for label, fact in FACTS.items():
                array = holding(fact, dtype, rng)
                if array is None:
                    continue
                operands = [rng.choice(every(dtype), OUTSIDE.shape) for _ in range(count - 1)]
                operands = [np.where(OUTSIDE, other[:, :, :1], other) for other in operands]
                values = applied(
                    form, [array, *operands], [Value(ROWS, Number(1002), fact=fact), *[Value(ROWS)] * (count - 1)]
                )
                for index, value in enumerate(values):
                    if isinstance(value.fact, MaskedOut | Finite | OneHot):
                        intact.add((label, name))
                        result = np.asarray(jax.tree.leaves(jax.jit(form)(array, *operands))[index])
                        assert holds(value.fact, result), (label, name, dtype, result.dtype)
    assert len(tried) >= (20 if dtype in FLOATS else 10), tried
    if dtype == "float32":
        masked = {("zero outside", name) for name in ("mul", "div", "convert_element_type", "copy")}
        masked |= {("minus infinity outside", name) for name in ("sub", "exp", "exp2", "convert_element_type")}
        assert intact >= masked | {("finite", "convert_element_type"), ("one-hot", "convert_element_type")}


@pytest.mark.parametrize("dtype", sampled(DTYPES, "int8", "float8_e4m3fn", "float32"))
def test_kept_rows_are_the_same_bits(dtype: str) -> None:
    """Bits of nan in floats of 16 bits or less are not compared."""
    rng, row = np.random.default_rng(0), UnchangedRows(Leaf(2))
    array = rng.choice(every(dtype), OUTSIDE.shape)
    with jax.enable_x64(True):
        for name, form, count in forms(dtype, OFTEN):
            other_arrays = [rng.choice(every(dtype), OUTSIDE.shape) for _ in range(count - 1)]
            operand = Value(LaneRows(1), Number(1002), intact=row)
            for operands, values in (
                ([array, *other_arrays], [operand, *[Value(LaneRows(1))] * (count - 1)]),
                ([array] * count, [operand] * count),
            ):
                for value in applied(form, operands, values, idle="length"):
                    if value.intact != row:
                        continue
                    result = np.asarray(jax.jit(form)(*operands))
                    if jnp.issubdtype(result.dtype, np.integer):  # equal numbers, in a dtype that has them
                        assert (result.astype(np.int64) == array.astype(np.int64)).all(), (name, dtype)
                        continue
                    equal = bits_of(result) == bits_of(array)
                    nan = np.isnan(numbers(array)) & (array.itemsize <= 2)
                    assert result.dtype == array.dtype and (equal | nan).all(), (name, dtype)


@pytest.mark.parametrize("source", DTYPES)
def test_kept_rows_after_two_conversions(source: str) -> None:
    array, row = np.zeros((2, 2), jnp.dtype(source)), UnchangedRows(Leaf(2))
    with jax.enable_x64(True):
        for target in DTYPES:
            if target == source:
                continue
            forward = partial(lax.convert_element_type, new_dtype=jnp.dtype(target))
            backward = partial(lax.convert_element_type, new_dtype=jnp.dtype(source))
            (value,) = applied(forward, [array], [Value(LaneRows(0), Number(1002), intact=row)], idle="length")
            (returned,) = applied(backward, [np.zeros((2, 2), jnp.dtype(target))], [value], idle="length")
            assert value.intact != row or (source in INTEGERS and target in INTEGERS)
            is_wider = source in INTEGERS and target in INTEGERS
            if is_wider:
                old, new = jnp.iinfo(source), jnp.iinfo(target)
                is_wider = new.min <= old.min and old.max <= new.max
            assert (returned.intact == row) == is_wider, (source, target)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", sampled(["int8", "uint8", "int16", "int32"], "int8"))
def test_rows_of_slots_do_not_wrap(dtype: str) -> None:
    """Slot map entries in a narrow dtype are rows of the entry, or unknown."""
    intact = set[str]()
    for size in (20, 120):
        slots = np.arange(size).astype(dtype)
        for name, form, count in forms(dtype, ("int8", "uint8", "int16", "int32")):
            for number in (0, 1, 2, 3, 64, 100) if count == 2 else (0,):
                other = np.full(size, number, dtype)
                values = [Value(LaneRows(0), Number(1002), (0, size - 1), SlotEntry(Leaf(3)))]
                values += [Value(COMMON, Number(1003), (number, number))] * (count - 1)
                for order in (1, -1) if count == 2 else (1,):
                    (value,) = applied(form, [slots, *[other] * (count - 1)][::order], values[::order])
                    if (
                        not isinstance(value.fact, SlotEntry)
                        or value.fact.alternatives
                        or value.fact.offset is not None
                    ):
                        continue
                    intact.add(name)
                    result = np.asarray(jax.jit(form)(*[slots, *[other] * (count - 1)][::order])).astype(np.int64)
                    assert (result // value.fact.stride == slots).all(), (name, number, value)
                    assert (result % value.fact.stride <= value.fact.spare).all(), (name, number, value)
    assert intact >= {"mul", "convert_element_type"}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", sampled(["int4", "uint4", "int8", "uint8"], "int4"))
def test_bounds_of_integers_that_wrap(dtype: str) -> None:
    """All pairs of numbers of the dtype, against the rule's results for some bounds."""
    rng, samples = np.random.default_rng(0), every(dtype).astype(np.int64)
    x, y = (each.astype(jnp.dtype(dtype)) for each in np.meshgrid(samples, samples, indexing="ij"))
    for name, form, count in forms(dtype, tuple(INTEGERS)):
        if count > 2:
            continue
        try:
            result = np.asarray(jax.jit(form)(*(x, y)[:count])).astype(np.int64)
        except Exception:  # XLA's CPU compiler has not every operation in 4 bits
            continue
        for _ in range(8):
            (a, b), (c, d) = np.sort(rng.integers(0, len(samples), (2, 2)))
            pairs = ((int(samples[a]), int(samples[b])), (int(samples[c]), int(samples[d])))
            (value, *_) = applied(form, [x, y][:count], [Value(LaneRows(0), range=pair) for pair in pairs][:count])
            part = result[a : b + 1, c : d + 1]
            if value.range is not None:
                assert value.range[0] <= part.min() and part.max() <= value.range[1], (name, pairs, value.range)


def test_every_entry_of_the_table_is_about_a_primitive_with_a_rule() -> None:
    assert {name for _, name in survival._TABLE} <= {*RULES} & {*primitives.ELEMENTWISE}
    assert not {*primitives.IDENTITIES} & {name for _, name in survival._TABLE}

"""Run a jaxpr in numpy, many runs at once, without compilation.

Every value has a leading axis of independent runs, which no rule mixes.

More than 300 lines: one table of rules.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
from numpy_indexing import COMBINE, dynamic_slice, dynamic_update_slice, gather, scatter

from ir_passes.jaxpr import ir, primitives, rewriting

Value = np.ndarray
Params = dict[str, Any]
Observe = Callable[[ir.JaxprEqn, list[Value], Value], None]
"""Called with every equation of a body each time it runs, its results, and [run] whether that run is in this turn."""

MAX_TURNS = 100
"""A loop of the programs has a turn for each of a few tokens or blocks."""


WIDE: ContextVar[bool] = ContextVar("WIDE", default=False)


@contextmanager
def float64() -> Iterator[None]:
    """Run float32 programs in float64: every float32 value is a float64 one instead."""
    token = WIDE.set(True)
    try:
        yield
    finally:
        WIDE.reset(token)


def _kept(dtype: Any) -> Any:
    return np.dtype(np.float64) if WIDE.get() and dtype == np.float32 else dtype


class NotInNumpy(NotImplementedError):
    """A primitive that has no rule here."""


def _logistic(x: Value) -> Value:
    return 1 / (1 + np.exp(-x))


def _divide(a: Value, b: Value) -> Value:
    """As XLA: an integer divided by zero has all bits set."""
    if np.issubdtype(a.dtype, np.integer):
        return np.where(b == 0, np.array(-1).astype(a.dtype), np.trunc(np.divide(a, np.where(b == 0, 1, b))))
    return np.divide(a, b)


def _remainder(a: Value, b: Value) -> Value:
    """As XLA: the remainder of an integer by zero is the integer."""
    if np.issubdtype(a.dtype, np.integer):
        return np.where(b == 0, a, np.fmod(a, np.where(b == 0, 1, b)))
    return np.fmod(a, b)


def _select(value: Value, *cases: Value) -> Value:
    value, *rest = _level((value, *cases))
    return np.where(value == 0, *rest) if len(rest) == 2 else np.choose(value.astype(np.int64), rest, mode="clip")


def _clamp(low: Value, x: Value, high: Value) -> Value:
    return np.minimum(np.maximum(x, low), high)


def _level(values: Sequence[Value]) -> list[Value]:
    """Scalars next to arrays get dimensions of size one."""
    rank = max(x.ndim for x in values)
    return [x if x.ndim == rank else x.reshape(x.shape + (1,) * (rank - x.ndim)) for x in values]


ELEMENTWISE: dict[str, Callable[..., Value]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": _divide, "rem": _remainder, "neg": np.negative,
    "max": np.maximum, "min": np.minimum, "pow": np.power, "abs": np.abs, "sign": np.sign, "floor": np.floor,
    "exp": np.exp, "exp2": np.exp2, "log": np.log, "log1p": np.log1p, "expm1": np.expm1, "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x), "square": np.square, "tanh": np.tanh, "sin": np.sin, "cos": np.cos,
    "logistic": _logistic, "is_finite": np.isfinite, "and": np.bitwise_and, "or": np.bitwise_or, "not": np.invert,
    "xor": np.bitwise_xor, "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
    "lt_to": np.less, "le_to": np.less_equal,  # of integers
    "gt": np.greater, "ge": np.greater_equal, "clamp": _clamp, "select_n": _select, "round": np.round,
    "ceil": np.ceil, "add_any": np.add,
}  # fmt: skip
IDENTITY = {
    "stop_gradient", "copy", "copy_p", "pvary", "optimization_barrier", "name", "sharding_constraint",
    "layout_constraint",
}  # fmt: skip


def _broadcast(p: Params, x: Value) -> Value:
    shape = [1] * len(p["shape"])
    for dim, size in zip(p["broadcast_dimensions"], x.shape[1:], strict=True):
        shape[dim] = size
    return np.broadcast_to(x.reshape(len(x), *shape), (len(x), *p["shape"]))


def _reshape(p: Params, x: Value) -> Value:
    """Put the axes in the order of `dimensions`, then reshape."""
    if p["dimensions"] is not None:
        x = x.transpose(0, *(axis + 1 for axis in p["dimensions"]))
    return x.reshape(len(x), *p["new_sizes"])


def _dot(p: Params, a: Value, b: Value) -> Value:
    if a.dtype != b.dtype:
        raise NotInNumpy("dot_general of two dtypes, which XLA converts to the dtype of the product")
    (ca, cb), (ba, bb) = p["dimension_numbers"]
    names_a, names_b, fresh = [-1] * (a.ndim - 1), [-1] * (b.ndim - 1), 1
    for i, j in [*zip(ba, bb, strict=True), *zip(ca, cb, strict=True)]:
        names_a[i] = names_b[j] = fresh
        fresh += 1
    for names in (names_a, names_b):
        for i, name in enumerate(names):
            if name < 0:
                names[i], fresh = fresh, fresh + 1
    contracted = {names_a[i] for i in ca}
    batch = [names_a[i] for i in ba]
    rest = [n for n in (*names_a, *names_b) if n not in contracted and n not in batch]
    return np.einsum(a, [0, *names_a], b, [0, *names_b], [0, *batch, *rest])


def _slice(p: Params, x: Value) -> Value:
    strides = p["strides"] or (1,) * (x.ndim - 1)
    return x[(slice(None), *map(slice, p["start_indices"], p["limit_indices"], strides))]


def _pad(p: Params, x: Value, fill: Value) -> Value:
    """Negative sizes leave out entries at the ends; `inner` entries come between two neighbours."""
    config = p["padding_config"]
    places = [low + np.arange(size) * (1 + inner) for (low, _, inner), size in zip(config, x.shape[1:], strict=True)]
    sizes = [
        low + size + max(size - 1, 0) * inner + high
        for (low, high, inner), size in zip(config, x.shape[1:], strict=True)
    ]
    shape = (len(x), *sizes)
    new = np.broadcast_to(fill.reshape(-1, *[1] * (x.ndim - 1)), shape).astype(x.dtype)
    saved = [np.flatnonzero((place >= 0) & (place < size)) for place, size in zip(places, sizes, strict=True)]
    into = [place[contents] for place, contents in zip(places, saved, strict=True)]
    runs = np.arange(len(x))
    new[np.ix_(runs, *into)] = x[np.ix_(runs, *saved)]
    return new


def _sort(p: Params, *operands: Value) -> list[Value]:
    axis = p["dimension"] + 1
    order = np.lexsort(operands[: p["num_keys"]][::-1], axis=axis)
    return [np.take_along_axis(x, order, axis) for x in operands]


def _top_k(p: Params, x: Value) -> list[Value]:
    axis = p["axis"] % (x.ndim - 1) + 1
    order = np.argsort(-x, axis=axis, kind="stable").take(range(p["k"]), axis=axis)
    return [np.take_along_axis(x, order, axis), order]


def _ragged_dot(p: Params, rows: Value, weights: Value, sizes: Value) -> Value:
    numbers = p["ragged_dot_dimension_numbers"]
    form = (rows.ndim, weights.ndim, tuple(numbers.lhs_ragged_dimensions), tuple(numbers.rhs_group_dimensions))
    if form != (3, 4, (0,), (0,)):
        raise NotInNumpy("ragged_dot_general in another form than [m, k] x [g, k, n]")
    ends = np.cumsum(np.maximum(sizes, 0), axis=1)[:, :, None]
    row = np.arange(rows.shape[1])
    mask = (row < ends) & (row >= ends - np.maximum(sizes, 0)[:, :, None])
    products = np.einsum("rmk,rgkn->rgmn", rows, weights)
    return np.where(mask[..., None], products, 0).sum(axis=1, dtype=products.dtype)


def _cumulative(function: Any) -> Callable[..., Value]:
    def rule(p: Params, x: Value) -> Value:
        axis = p["axis"] + 1
        return np.flip(function(np.flip(x, axis), axis=axis), axis) if p["reverse"] else function(x, axis=axis)

    return rule


def _reduce(function: Any) -> Callable[..., Value]:
    def rule(p: Params, x: Value) -> Value:
        if not x.size:
            raise NotInNumpy("the greatest and the least of nothing")
        return function(x, axis=tuple(axis + 1 for axis in p["axes"]))

    return rule


def _iota(p: Params) -> Value:
    shape = [1] * (len(p["shape"]) + 1)
    shape[p["dimension"] + 1] = -1
    return np.broadcast_to(np.arange(p["shape"][p["dimension"]]).reshape(shape), (1, *p["shape"]))


def _callback(p: Params, *operands: Value) -> list[Value]:
    """The host's function, called for each run by itself."""
    return [np.stack(each) for each in zip(*(p["callback"](*run) for run in zip(*operands, strict=True)), strict=True)]


RULES: dict[str, Callable[..., Any]] = {
    "pure_callback": _callback, "broadcast_in_dim": _broadcast, "dot_general": _dot, "slice": _slice, "pad": _pad,
    "sort": _sort, "top_k": _top_k, "ragged_dot_general": _ragged_dot, "gather": gather, "dynamic_slice": dynamic_slice,
    "dynamic_update_slice": dynamic_update_slice, "iota": _iota,
    "integer_pow": lambda p, x: x ** p["y"],
    "convert_element_type": lambda p, x: x,
    "reshape": _reshape,
    "squeeze": lambda p, x: np.squeeze(x, tuple(dim + 1 for dim in p["dimensions"])),
    "transpose": lambda p, x: x.transpose(0, *(dim + 1 for dim in p["permutation"])),
    "concatenate": lambda p, *xs: np.concatenate(xs, p["dimension"] + 1),
    "stack": lambda p, *xs: np.stack(xs, p["axis"] + 1),
    "tile": lambda p, x: np.tile(x, (1, *p["reps"])),
    "split": lambda p, x: np.split(x, np.cumsum(p["sizes"])[:-1], p["axis"] + 1),
    "unstack": lambda p, x: list(np.moveaxis(x, p["axis"] + 1, 0)),
    "rev": lambda p, x: np.flip(x, tuple(dim + 1 for dim in p["dimensions"])),
    "argmax": lambda p, x: np.argmax(x, axis=p["axes"][0] + 1),
    "argmin": lambda p, x: np.argmin(x, axis=p["axes"][0] + 1),
    "cumsum": _cumulative(np.cumsum), "cumprod": _cumulative(np.cumprod), "cummax": _cumulative(np.maximum.accumulate),
    "reduce_sum": _reduce(np.sum), "reduce_max": _reduce(np.max), "reduce_min": _reduce(np.min),
    "reduce_prod": _reduce(np.prod), "reduce_and": _reduce(np.bitwise_and.reduce),
    "reduce_or": _reduce(np.bitwise_or.reduce), "reduce_xor": _reduce(np.bitwise_xor.reduce),
}  # fmt: skip


def _scan(eqn: ir.JaxprEqn, values: Sequence[Value], observe: Observe | None) -> list[Value]:
    consts, carried = ir.scan_counts(eqn)
    body = ir.closed(eqn.params["jaxpr"])
    fixed, carry, xs = values[:consts], list(values[consts : consts + carried]), values[consts + carried :]
    steps = range(eqn.params["length"])
    ys: list[list[Value]] = []
    for i in reversed(steps) if eqn.params["reverse"] else steps:
        results = evaluate(body, [*fixed, *carry, *(x[:, i] for x in xs)], observe)
        carry = results[:carried]
        ys.append(results[carried:])
    if eqn.params["reverse"]:
        ys.reverse()
    return [*carry, *(np.stack(y, axis=1) for y in zip(*ys, strict=True))]


def _while(eqn: ir.JaxprEqn, values: Sequence[Value], observe: Observe | None) -> list[Value]:
    """Runs that have ended keep their carry while the others go on."""
    p = eqn.params
    test, body = ir.closed(p["cond_jaxpr"]), ir.closed(p["body_jaxpr"])
    split = p["cond_nconsts"], p["cond_nconsts"] + p["body_nconsts"]
    carry = list(values[split[1] :])
    for _ in range(MAX_TURNS):
        going = evaluate(test, [*values[: split[0]], *carry])[0]
        if not going.any():
            return carry

        def in_turn(eqn: ir.JaxprEqn, results: list[Value], runs: Value, going: Value = going) -> None:
            # Mapped by vmap, a loop ends for each entry separately: ended entries have no claims.
            if observe is not None and going.ndim == 1:
                observe(eqn, results, runs & going)

        new = evaluate(body, [*values[split[0] : split[1]], *carry], in_turn)
        carry = [_select(going, a, b) for a, b in zip(carry, new, strict=True)]
    raise NotInNumpy(f"a loop of more than {MAX_TURNS} turns")


def _cond(eqn: ir.JaxprEqn, values: Sequence[Value], observe: Observe | None) -> list[Value]:
    """All branches, then the chosen one for each run."""
    programs = eqn.params["branches"]
    index = np.clip(values[0].astype(np.int64), 0, len(programs) - 1)

    def in_branch(number: int) -> Observe | None:
        # claims inside a branch are about the runs that take it
        if observe is None:
            return None
        outer = observe
        return lambda eqn, results, runs: outer(eqn, results, runs & (index == number))

    branches = [evaluate(ir.closed(branch), values[1:], in_branch(k)) for k, branch in enumerate(programs)]
    return [_select(index, *results) for results in zip(*branches, strict=True)]


CONTROL = {"scan": _scan, "while": _while, "cond": _cond}


def in_numpy(name: str) -> bool:
    """True if numpy has a rule for the primitive and parameters."""
    return any(name in table for table in (ELEMENTWISE, IDENTITY, COMBINE, RULES, CONTROL, primitives.CALLS))


def apply(eqn: ir.JaxprEqn, values: Sequence[Value], observe: Observe | None = None) -> list[Value]:
    """The results of one equation.

    Args:
        eqn: the equation.
        values: of its operands, [run, ...].
        observe: of the equations inside it.

    Raises:
        NotInNumpy: there is no rule for its primitive.
    """
    name = eqn.primitive.name
    count = max((len(value) for value in values), default=1)
    body = ir.body_of(eqn)
    if body is not None:
        return evaluate(body, values, observe)
    if name not in ELEMENTWISE:
        values = [np.broadcast_to(x, (count, *x.shape[1:])) if len(x) != count else x for x in values]
    if name in CONTROL:
        return CONTROL[name](eqn, values, observe)
    if name in ELEMENTWISE:
        results = ELEMENTWISE[name](*_level(values))
    elif name in IDENTITY:
        results = list(values)
    elif name in COMBINE and (name != "scatter" or eqn.params["update_jaxpr"] is None):
        results = scatter(name, eqn.params, *values)
    elif name in RULES:
        results = RULES[name](eqn.params, *values)
    elif name == "call_hi_primitive":  # searchsorted, as jax 0.12 has it
        runs = [rewriting.eval_eqn(eqn, *(value[run] for value in values)) for run in range(count)]
        results = [np.stack(each) for each in zip(*runs, strict=True)]
    else:
        raise NotInNumpy(name)
    results = results if isinstance(results, list | tuple) else [results]
    typed = []
    for result, var in zip(results, eqn.outvars, strict=True):
        aval: Any = var.aval
        typed.append(np.asarray(result).astype(_kept(aval.dtype), copy=False))
        if typed[-1].shape[1:] != aval.shape:
            raise AssertionError(f"{name}: {typed[-1].shape} where the jaxpr says {aval}")
    return typed


def literal(atom: ir.Literal) -> Value:
    aval: Any = atom.aval
    return np.asarray(atom.val, _kept(aval.dtype))[None]


def evaluate(program: ir.ClosedJaxpr, args: Sequence[Value], observe: Observe | None = None) -> list[Value]:
    """Evaluate a traced program on a leading axis of runs."""
    env: dict[Any, Value] = {}
    for var, value in zip(program.jaxpr.constvars, program.consts, strict=True):
        env[var] = np.asarray(value)[None]
    env.update(zip(program.jaxpr.invars, args, strict=True))
    read = lambda atom: literal(atom) if isinstance(atom, ir.Literal) else env[atom]
    with np.errstate(all="ignore"):
        for eqn in program.jaxpr.eqns:
            results = apply(eqn, [read(atom) for atom in eqn.invars], observe)
            if observe is not None:
                observe(eqn, results, np.ones(1, bool))
            env.update(zip(eqn.outvars, results, strict=True))
    return [read(atom) for atom in program.jaxpr.outvars]

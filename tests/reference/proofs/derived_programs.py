"""Programs that JAX itself makes of an operation: batched over any axis, differentiated and transposed.

An operation of a random instance (`instances.catalogue`) becomes a function of its operands. Mapped by `vmap` over the
lanes, along any axis of each operand and result, it keeps lanes apart, and so do its derivatives. The whole instance
mapped over an axis of heads has its lanes where they were.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from instances.catalogue import MISFITS, instance
from zoo.program import Program

from ir_passes import Lane, LaneContract, Shared
from ir_passes.jaxpr import ir, rewriting

LANES, HEADS = 3, 2
"""Sizes of derived programs; instances have 2 to 4 lanes."""
Function = Callable[..., Any]


def _equation(name: str, seed: int) -> tuple[ir.ClosedJaxpr, Any] | None:
    """The inlined trace and its equation of the primitive, or None without one.

    A branch that returns its operands has no equation: JAX forwards them.
    """
    source = instance(name, seed)
    program = ir.inline(ir.trace(source.step, *source.args()))
    out = [eqn for eqn in program.jaxpr.eqns if eqn.primitive.name == name]
    if (
        not out
        or all(isinstance(var, ir.DropVar) for var in out[-1].outvars)
        or any(jnp.issubdtype(atom.aval.dtype, jax.dtypes.extended) for atom in (*out[-1].invars, *out[-1].outvars))
    ):
        return None
    return program, out[-1]


def mapped_over_lanes(name: str, seed: int) -> Iterator[Program]:
    """An operation, its derivative and its transpose, each mapped over lanes by `vmap`."""
    result = _equation(name, seed)
    if result is None:
        return
    program, eqn = result
    rng = np.random.default_rng((seed, *name.encode()))
    operands = [atom for atom in eqn.invars if not isinstance(atom, ir.Literal)]

    def single(*values: Any) -> list[Any]:
        given = iter(values)
        return rewriting.eval_eqn(eqn, *(None if isinstance(atom, ir.Literal) else next(given) for atom in eqn.invars))

    arguments = ir.as_function(_with_results(program, operands))
    source = instance(name, seed)

    def draw(rng: np.random.Generator) -> list[list[np.ndarray]]:
        """[operand][lane]: as the instance has them for other arguments."""
        drawn = [arguments(*source.draw(np.random.default_rng(rng.integers(1 << 31)))) for _ in range(LANES)]
        return [[np.asarray(lane[k]) for lane in drawn] for k in range(len(operands))]

    shapes = ir.shapes(operands)
    varied = [bool(rng.random() < 0.8) for _ in operands]
    if operands and not any(varied):
        varied[0] = True
    axes = [int(rng.integers(len(shape) + 1)) if is_varied else None
            for shape, is_varied in zip(shapes, varied, strict=True)]  # fmt: skip
    floats = [k for k, atom in enumerate(operands) if jnp.issubdtype(atom.aval.dtype, jnp.inexact)]
    if all(axis is None for axis in axes):
        return
    yield _mapped(f"{name} {seed}", single, axes, draw, rng)
    for kind, function in {"jvp": _pushed(single, floats), "vjp": _pulled(single, floats)}.items():
        with contextlib.suppress(*MISFITS):  # JAX has no derivative of it
            yield _mapped(f"{name} {seed} {kind}", function, axes, draw, rng)


def _with_results(program: ir.ClosedJaxpr, results: Sequence[Any]) -> ir.ClosedJaxpr:
    return ir.ClosedJaxpr(
        program.jaxpr.replace(outvars=list(results), debug_info=program.jaxpr.debug_info.with_unknown_names()),
        program.consts,
    )


def _pushed(function: Function, floats: Sequence[int]) -> Function:
    """Its derivative along its own operands."""

    def pushed(*operands: Any) -> Any:
        of = lambda *some: function(*_put(operands, floats, some))
        chosen = [operands[k] for k in floats]
        return [each for each in jax.jvp(of, chosen, chosen)[1] if each.dtype != jax.dtypes.float0]

    return pushed


def _pulled(function: Function, floats: Sequence[int]) -> Function:
    """The transpose of its derivative, at its own results."""

    def pulled(*operands: Any) -> Any:
        def of(*some: Any) -> Any:
            results = function(*_put(operands, floats, some))
            return [each for each in results if jnp.issubdtype(each.dtype, jnp.inexact)]

        results, result = jax.vjp(of, *(operands[k] for k in floats))
        return result(results)

    return pulled


def _put(operands: Sequence[Any], places: Sequence[int], values: Sequence[Any]) -> list[Any]:
    changed = dict(zip(places, values, strict=True))
    return [changed.get(k, operand) for k, operand in enumerate(operands)]


def _mapped(name: str, function: Function, axes: Sequence[int | None], draw: Any, rng: np.random.Generator) -> Program:
    types = [jax.ShapeDtypeStruct(lanes[0].shape, lanes[0].dtype) for lanes in draw(np.random.default_rng(0))]
    results = jax.eval_shape(function, *types)
    if not results:
        raise TypeError(f"{name}: nothing to differentiate")
    out_axes = [int(rng.integers(len(result.shape) + 1)) for result in results]

    def step(*operands: Any) -> Any:
        as_tuple = lambda *args: tuple(function(*args))
        return jax.vmap(as_tuple, in_axes=tuple(axes), out_axes=tuple(out_axes))(*operands)

    def stacked(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        return tuple(
            lanes[0] if axis is None else np.stack(lanes, axis) for lanes, axis in zip(draw(rng), axes, strict=True)
        )

    contract = LaneContract(
        tuple(Shared() if axis is None else Lane(axis) for axis in axes), tuple(map(Lane, out_axes))
    )
    return Program(name, step, contract, stacked)


def mapped_over_heads(name: str, seed: int) -> Program:
    """An instance mapped over heads, after the lanes and pool rows."""
    source = instance(name, seed)
    rng = np.random.default_rng((seed, *name.encode()))
    # shared arrays may have the heads anywhere; of lanes, own integers, words and rows the heads come second
    places = [0, None, 1, None, None, 1, None]
    axes = tuple(axis if k == 2 or rng.random() < 0.7 else None for k, axis in enumerate(places))
    step = lambda *args: jax.vmap(source.step, in_axes=axes, out_axes=1)(*args)

    def draw(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        first, second = source.draw(rng), source.draw(rng)
        pairs = zip(first, second, axes, strict=True)
        return tuple(a if axis is None else np.stack([a, b], axis) for a, b, axis in pairs)

    return Program(f"{name} {seed} over heads", step, source.contract, draw)

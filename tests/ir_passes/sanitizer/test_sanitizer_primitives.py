"""The sanitizer follows lanes through every elementwise primitive, and through moves, when it executes them."""

from collections.abc import Callable
from functools import partial
from typing import Any

import installed_primitives
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array, lax
from jax.experimental.layout import Layout, with_layout_constraint
from labelled_steps import LabelledSteps

from hybridlm.compiler import host
from ir_passes import Lane, LaneContract, Pool, SlotMap
from ir_passes.jaxpr import ir, primitives
from ir_passes.sanitizer.interpreter import Interpreter
from ir_passes.sanitizer.judge import Judge
from ir_passes.sanitizer.tags import UNKNOWN, Tags, along, computed
from ir_passes.sanitizer.verdict import LabelFault, SanitizerError

N, WIDTH = 3, 2
INSTALLED = {primitive.name: primitive for primitive in installed_primitives.primitives()}
PARAMETERS: dict[str, list[dict[str, Any]]] = {
    "integer_pow": [{"y": 3}],
    "reduce_precision": [{"exponent_bits": 5, "mantissa_bits": 2}],
    "round": [{"rounding_method": lax.RoundingMethod.TO_NEAREST_EVEN}],
    "convert_element_type": [{"new_dtype": jnp.dtype("float16"), "weak_type": False, "sharding": None}],
}
COUNTS = {"philox2x32": (3,), "threefry2x32": (4,), "philox4x32": (6,), "threefry4x32": (8,)}
SLOW = "igamma igamma_grad_a igammac philox2x32 philox4x32 polygamma threefry2x32 threefry4x32 zeta".split()


def watched() -> Interpreter:
    nothing = jnp.zeros((N, 4), jnp.int32)
    return Interpreter(Judge(host.Expected(nothing, nothing), {}, frozenset()))


def equation_of(name: str) -> ir.ClosedJaxpr:
    """Return a program of one elementwise equation on arrays [N, WIDTH]."""
    for params in PARAMETERS.get(name, [{"accuracy": None}, {}]):
        for dtype in ("float32", "int32", "uint32", "bool", "complex64"):
            for count in COUNTS.get(name, (1, 2, 3)):
                operands = [jax.ShapeDtypeStruct((N, WIDTH), dtype)] * count
                if name == "select_n":
                    operands = [jax.ShapeDtypeStruct((N, WIDTH), "bool"), *operands[1:], *operands[1:]][:3]
                try:
                    program = ir.trace(partial(INSTALLED[name].bind, **params), *operands)
                    jax.jit(ir.as_function(program)).lower(*operands)
                except Exception:  # another dtype, number of operands or parameter
                    continue
                if [eqn.primitive.name for eqn in program.jaxpr.eqns] == [name]:
                    return program
    raise AssertionError(f"no operands fit {name}")


def draw(program: ir.ClosedJaxpr, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [(rng.uniform(0.1, 0.9, (N, WIDTH)) * 4).astype(var.aval.dtype) for var in program.jaxpr.invars]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name
        for name in sorted(primitives.ELEMENTWISE & {*INSTALLED})
    ],
)
def test_lanes_go_through_elementwise_primitives(name: str) -> None:
    """Every result has the lanes of its operands, and only these lanes change with them."""
    program = equation_of(name)
    first, other = draw(program, 0), draw(program, 1)
    changed = [np.where(np.arange(N)[:, None] == 1, new, old) for old, new in zip(first, other, strict=True)]
    operands = [computed(along(N, 0, 2), derived=True)] * len(first)
    results, tags = watched().run(program, first, operands)
    repeat, _ = watched().run(program, changed, operands)
    assert len(results) == len(tags) > 0
    for old, new, tag in zip(results, repeat, tags, strict=True):
        assert tag is not None and tag.derived
        lanes = np.broadcast_to(np.asarray(tag.lanes), old.shape)
        np.testing.assert_array_equal(lanes, np.broadcast_to(np.arange(N)[:, None], old.shape))
        np.testing.assert_array_equal(np.asarray(old)[lanes != 1], np.asarray(new)[lanes != 1])


MEETING: dict[str, Callable[[Array, Array], Any]] = {
    "complex": lax.complex,
    "complex numbers": lambda x, y: lax.complex(x, x) + lax.complex(y, y),
    "igamma": lax.igamma,
    "pow": lax.pow,
}


@pytest.mark.parametrize("name", MEETING)
def test_lanes_that_meet_are_a_fault(name: str) -> None:
    x = jnp.ones((N, WIDTH))
    lanes = computed(along(N, 0, 2), derived=True)
    rest = computed(np.roll(along(N, 0, 2), 1, axis=0), derived=True)
    run = watched()
    run.judge.expected = host.Expected(jnp.ones((N, 4), jnp.int32), jnp.ones((N, 4), jnp.int32))
    run.run(ir.trace(MEETING[name], x, x), [x, x], [lanes, rest])
    assert (np.asarray(run.judge.verdict.code) > 0).all()


def bits(x: Array, dtype: str) -> Array:
    return lax.bitcast_convert_type(x, jnp.dtype(dtype))


MOVED: dict[str, Callable[[Array], Array]] = {
    "same bits": lambda x: bits(bits(x, "int32"), "float32"),
    "bytes": lambda x: bits(bits(x, "uint8"), "float32"),
    "half of the bytes": lambda x: bits(bits(x, "uint16")[:, ::-1][:, ::-1], "float32"),
    "several arrays on a device": lambda x: jax.device_put((x[0], x))[1],
    "layout": lambda x: with_layout_constraint(x, Layout((1, 0))),
    "barrier": lambda x: lax.optimization_barrier((x[0], x))[1],
    "rounded": lambda x: lax.reduce_precision(x, 8, 10),
    "copy": jnp.copy,
}


@pytest.mark.parametrize("name", MOVED)
def test_lanes_and_rows_go_through_moves(name: str) -> None:
    x = jnp.broadcast_to(jnp.arange(N, dtype=jnp.float32)[:, None], (N, WIDTH))
    rows = np.broadcast_to(np.arange(N, dtype=np.int32)[:, None, None], (N, 1, 5))
    (value,), (tag,) = watched().run(ir.trace(MOVED[name], x), [x], [Tags(along(N, 0, 2), rows, (0,))])
    assert tag is not None and tag.rows is not None and tag.pools == (0,)
    np.testing.assert_array_equal(np.broadcast_to(tag.lanes, value.shape), value)
    np.testing.assert_array_equal(np.broadcast_to(tag.rows[..., 0], value.shape), value)


def test_elements_of_several_lanes_in_one_belong_to_no_lane() -> None:
    x = jnp.zeros((2, 4), jnp.uint8)
    lanes = np.array([[0, 0, 1, 1], [2, 2, 2, 2]], np.int32)
    _, (tag,) = watched().run(ir.trace(lambda x: bits(x, "float32"), x), [x], [computed(lanes)])
    assert tag is not None and tag.lanes.tolist() == [UNKNOWN, 2]


def test_every_move_is_followed() -> None:
    """Moves with a change of shape have a rule for tags; the others keep them."""
    from ir_passes.sanitizer.tags import _MOVES

    keep_shape = {"convert_element_type", "reduce_precision"}
    assert primitives.MOVES - primitives.IDENTITIES - keep_shape <= set(_MOVES)


def test_a_row_read_as_bits_keeps_its_label() -> None:
    """A foreign row is found even if it is read as integers."""

    def step(state: Array, slots: Array, x: Array) -> tuple[Array, Array]:
        row = bits(bits(state[slots], "int32"), "float32")
        return row[::-1] * x, state.at[slots].set(row + 1.0)

    contract = LaneContract((Pool("state"), SlotMap("state", 5), Lane()), (Lane(), Pool("state")))
    args = (jnp.ones((5, WIDTH)), jnp.array([1, 2, 3], jnp.int32), jnp.ones((N, WIDTH)))
    steps = LabelledSteps(step, args, contract)
    with pytest.raises(SanitizerError, check=lambda error: LabelFault.OWNER in error.ids):
        for position in range(2):
            steps.take(args, [(owner, position, 1) for owner in (4, 5, 6)])

"""Random small kernels, right and wrong, over lanes and chunks, per machine."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import triton as plgpu
from zoo.program import LANES, VALUE, Program, normal

from ir_passes import Lane, LaneContract, Pool
from ir_passes.jaxpr import ir

CHUNK, CHUNKS = 2, 3
CONTRACT = LaneContract(inputs=(Pool("rows"), Lane(), Lane()), outputs=(Lane(), Pool("rows")))
ONE = pl.Squeezed()


class Refs:
    """The memory of a kernel's step, by name, and where the step is."""

    def __init__(self, lanes_axis: int, refs: tuple[Any, ...]):
        self.lengths, self.x, self.row, self.out, self.new, self.state = refs
        self.lane, self.chunk = pl.program_id(lanes_axis), pl.program_id(1 - lanes_axis)
        self.length = self.lengths[self.lane]


def _when(condition: Callable[[Refs], Any], then: Callable[[Refs], None]) -> Callable[[Refs], None]:
    def statement(refs: Refs) -> None:
        pl.when(condition(refs))(lambda: then(refs))

    return statement


def _begin(refs: Refs) -> None:
    refs.state[...] = refs.row[...]


def _zero(refs: Refs) -> None:
    refs.state[...] = jnp.zeros_like(refs.state[...])


def _half(refs: Refs) -> None:
    refs.state[:2] = refs.row[:2]


def _rest(refs: Refs) -> None:
    refs.state[2:] = refs.x[0][2:]


def _advance(refs: Refs) -> None:
    for token in range(CHUNK):
        refs.state[...] = refs.state[...] * 0.5 + refs.x[token]
        refs.out[token] = refs.state[...]


def _advance_in_a_loop(refs: Refs) -> None:
    def token(t: Any, total: Any) -> Any:
        total = total * 0.5 + refs.x[t]
        refs.out[t] = total
        return total

    refs.state[...] = lax.fori_loop(0, CHUNK, token, refs.state[...])


def _add(refs: Refs) -> None:
    refs.state[...] = refs.state[...] + refs.x[0]


def _show(refs: Refs) -> None:
    refs.out[...] = refs.x[...] * refs.state[...][None]


def _show_tokens(refs: Refs) -> None:
    refs.out[...] = refs.x[...] - jnp.mean(refs.x[...], axis=0, keepdims=True)


def _show_one(refs: Refs) -> None:
    refs.out[0] = refs.x[1]


def _show_as_long(refs: Refs) -> None:
    index = refs.chunk * CHUNK + lax.broadcasted_iota(jnp.int32, (CHUNK, VALUE), 0)
    refs.out[...] = jnp.where(index < refs.length, refs.x[...], 0.0)


def _end(refs: Refs) -> None:
    refs.new[...] = refs.state[...]


def _end_by_row(refs: Refs) -> None:
    refs.new[...] = refs.row[...] + jnp.sum(refs.x[...], axis=0)


def _keep(refs: Refs) -> None:
    refs.new[...] = refs.row[...]


STATEMENTS: tuple[Callable[[Refs], None], ...] = (
    _begin,
    _half,
    _rest,
    _add,
    _show_one,
    _when(lambda r: r.chunk == 0, _begin),
    _when(lambda r: r.chunk == 0, _zero),
    _when(lambda r: r.lane == 0, _begin),
    _when(lambda r: r.lane + r.chunk == 0, _begin),
    _when(lambda r: r.chunk == 1, _begin),
    _advance,
    _advance_in_a_loop,
    _when(lambda r: r.length > 0, _advance),
    _when(lambda r: r.chunk * CHUNK < r.length, _add),
    _show,
    _show_tokens,
    _show_as_long,
    _when(lambda r: r.chunk == CHUNKS - 1, _end),
    _when(lambda r: r.length > 0, _end_by_row),
    _when(lambda r: r.x[0, 0] > 0, _keep),
    _end,
    _end_by_row,
    _keep,
)
TOKENS: tuple[Callable[[Any, Any], tuple[Any, ...]], ...] = (
    *[lambda lane, chunk: (lane, chunk, 0)] * 6,
    lambda lane, chunk: (lane, 0, 0),
    lambda lane, chunk: ((lane + 1) % LANES, chunk, 0),
    lambda lane, chunk: (0, chunk, 0),
    lambda lane, chunk: (jnp.minimum(lane, 2), chunk, 0),
)
ROWS: tuple[Callable[[Any, Any], tuple[Any, ...]], ...] = (
    *[lambda lane, chunk: (lane, 0)] * 8,
    lambda lane, chunk: (LANES - 1 - lane, 0),
    lambda lane, chunk: (chunk, 0),
)
MACHINES: tuple[Any, ...] = (
    None,
    pltpu.CompilerParams(),
    pltpu.CompilerParams(),
    pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
    plgpu.CompilerParams(),
)


def random_kernel(seed: int) -> Program:
    """A step of one random kernel."""
    rng = np.random.default_rng(seed)
    one_of = lambda choices: choices[rng.integers(len(choices))]
    lanes_axis = 0 if rng.random() < 0.92 else 1
    picked = sorted(rng.choice(len(STATEMENTS), size=rng.integers(2, 7), replace=False))
    if rng.random() < 0.2:
        picked = list(rng.permutation(picked))
    statements = [STATEMENTS[k] for k in picked]
    read, row, params, alias = one_of(TOKENS), one_of(ROWS), one_of(MACHINES), rng.random() < 0.6

    def body(*refs: Any) -> None:
        actual = Refs(lanes_axis, refs)
        for statement in statements:
            statement(actual)

    index = lambda of: lambda *ids: of(ids[lanes_axis], ids[1 - lanes_axis])

    def step(rows: Array, lengths: Array, x: Array) -> Any:
        tokens = pl.BlockSpec((ONE, CHUNK, VALUE), index(TOKENS[0]))
        call = pl.pallas_call(
            body,
            grid=(LANES, CHUNKS) if lanes_axis == 0 else (CHUNKS, LANES),
            in_specs=[
                pl.BlockSpec(memory_space=pl.ANY),
                pl.BlockSpec((ONE, CHUNK, VALUE), index(read)),
                pl.BlockSpec((ONE, VALUE), index(row)),
            ],
            out_specs=[tokens, pl.BlockSpec((ONE, VALUE), index(row))],
            out_shape=[jax.ShapeDtypeStruct(array.shape, array.dtype) for array in (x, rows)],
            scratch_shapes=[pltpu.VMEM((VALUE,), jnp.float32)],
            input_output_aliases={2: 1} if alias else {},
            compiler_params=params,
            interpret=True,
        )
        return call(lengths, x, rows)

    return Program(f"random kernel {seed}", step, CONTRACT, _draw)


def aliased(program: Program) -> bool:
    """True if a step may read its predecessor's write; machines differ."""
    eqns = ir.all_eqns(ir.trace(program.step, *program.args()).jaxpr)
    (eqn,) = (eqn for eqn in eqns if eqn.primitive.name == "pallas_call")
    return bool(eqn.params["input_output_aliases"])


def _draw(rng: np.random.Generator) -> tuple[Any, ...]:
    lengths = rng.integers(0, CHUNK * CHUNKS + 1, LANES).astype(np.int32)
    return normal(rng, LANES, VALUE), lengths, normal(rng, LANES, CHUNK * CHUNKS, VALUE)

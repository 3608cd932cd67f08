"""The plain form of Pallas kernels: results, unreadable kernels, declared kernels."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from isolation_oracle import leaks
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from zoo.kernels import grid_kernels, shared_blocks, whole_kernels
from zoo.kernels import read_kernels as zoo
from zoo.program import LANES, VALUE, Program

from ir_passes import Assumption, IsolationError, Lane, LaneContract, Note, Opaque, Pool, ViolationKind, prove_isolation
from ir_passes.jaxpr import ir
from ir_passes.kernels import program as kernel_programs
from ir_passes.kernels import read_kernels
from ir_passes.kernels.guesses import guesses_of

PROGRAMS = zoo.PROGRAMS + whole_kernels.PROGRAMS + grid_kernels.PROGRAMS + shared_blocks.PROGRAMS


def read(step: Any, *args: Any) -> Any:
    return read_kernels(ir.trace(step, *args), keep=lambda eqn: False)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_plain_form_and_kernel_compute_the_same(program: Program):
    for seed in range(4):
        args = program.args(seed)
        if any(np.ndim(arg) == 1 and np.asarray(arg).dtype == np.int32 and (arg == 0).sum() > 1 for arg in args):
            continue  # several lanes on the null row: its content is arbitrary
        plain = read(program.step, *args)
        assert len(plain.read) == 1 and not plain.unread
        for item, other in zip(ir.as_function(plain.program)(*args), program.step(*args), strict=True):
            np.testing.assert_allclose(item, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_right_kernels_are_proved_and_listed(program: Program):
    proof = prove_isolation(program.step, program.args(), program.contract)
    (note,) = [note for note in proof.notes if note.id == Note.KERNEL_READ.value]
    assert "body at " in note.about and "/zoo/kernels/" in note.about
    assert not any(statement.id.startswith(Assumption.OPAQUE.value) for statement in proof.assumed)
    assert not leaks(program.step, program.contract, program.draw, seeds=range(2))


@pytest.mark.parametrize("lanes", [1, 2, 33, 40])
def test_any_number_of_lanes(lanes: int):
    """Beyond the number of steps that are written out, too."""

    def step(rows, x):
        tokens = pl.BlockSpec((zoo.ONE, zoo.CHUNK, VALUE), lambda lane, chunk: (lane, chunk, 0))
        row = pl.BlockSpec((zoo.ONE, VALUE), lambda lane, chunk: (lane, 0))
        return pl.pallas_call(
            zoo.prefill_body(), grid=(lanes, zoo.CHUNKS), in_specs=[tokens, row], out_specs=[tokens, row],
            out_shape=zoo.like(x, rows), scratch_shapes=[pltpu.VMEM((VALUE,), jnp.float32)],
            compiler_params=pltpu.CompilerParams(), interpret=True,
        )(x, rows)  # fmt: skip

    args = jnp.ones((lanes, VALUE)), jnp.ones((lanes, zoo.CHUNK * zoo.CHUNKS, VALUE))
    assert prove_isolation(step, args, zoo.PREFILL)


def test_a_kernel_mapped_over_lanes_is_read():
    token = lambda row, x: pl.pallas_call(_double, out_shape=zoo.like(x, row), interpret=True)(row, x)
    args = jnp.ones((LANES, VALUE)), jnp.ones((LANES, VALUE))
    step = jax.vmap(token)
    proof = prove_isolation(step, args, LaneContract((Pool("rows"), Lane()), (Lane(), Pool("rows"))))
    assert any(note.id == Note.KERNEL_READ.value for note in proof.notes)


def _double(row: Any, x: Any, out: Any, new: Any) -> None:
    out[...] = x[...] + row[...]
    new[...] = row[...] * 2.0


def test_a_kernel_inside_of_a_loop_is_read():
    def step(rows, x):
        def once(rows, _):
            (new,) = pl.pallas_call(_sum, out_shape=zoo.like(rows), interpret=True)(rows, x)
            return new, None

        return jax.lax.scan(once, rows, length=3)[:1]

    args = jnp.ones((LANES, VALUE)), jnp.ones((LANES, VALUE))
    assert prove_isolation(step, args, LaneContract((Pool("rows"), Lane()), (Pool("rows"),)))


def _sum(rows: Any, x: Any, new: Any) -> None:
    new[...] = rows[...] + x[...]


def test_a_declaration_is_believed():
    program = zoo.PROGRAMS[-1]
    declared = Opaque((Pool("rows"), Lane(), zoo.WINDOW.inputs[2]), (Lane(), Pool("rows")), aliases={0: 1})
    contract = LaneContract(program.contract.inputs, program.contract.outputs, opaque={"window_body": declared})
    proof = prove_isolation(program.step, program.args(), contract)
    assert not any(note.id == Note.KERNEL_READ.value for note in proof.notes)
    assert any(statement.id == Assumption.OPAQUE.value for statement in proof.assumed)


def copied(x: Any, out: Any) -> None:
    pltpu.sync_copy(x, out)


def with_semaphore(x: Any, out: Any) -> None:
    def copy(semaphore: Any) -> None:
        result = pltpu.make_async_copy(x, out, semaphore)
        result.start()
        result.wait()

    pl.run_scoped(copy, pltpu.SemaphoreType.DMA)


def plain(x: Any, out: Any) -> None:
    out[...] = x[...]


HBM = pl.BlockSpec(memory_space=pl.ANY)
UNREADABLE = {
    "copy": ({"in_specs": [HBM], "out_specs": HBM}, copied, "dma_start|semaphore"),
    "semaphore": ({"in_specs": [HBM], "out_specs": HBM}, with_semaphore, "semaphore"),
    "one block by all": ({"grid": (3,)}, plain, "3 steps of grid axis 0 write one block"),
    "ragged blocks": (
        {
            "grid": (2,),
            "in_specs": [pl.BlockSpec((3, VALUE), lambda i: (i, 0))],
            "out_specs": pl.BlockSpec((3, VALUE), lambda i: (i, 0)),
        },
        plain,
        "blocks of 3 along a dimension of 4",
    ),
    "other kinds of blocks": (
        {
            "grid": (LANES,),
            "in_specs": [pl.BlockSpec((pl.Element(1), VALUE), lambda i: (i, 0))],
            "out_specs": pl.BlockSpec((1, VALUE), lambda i: (i, 0)),
        },
        plain,
        "Element",
    ),
}


@pytest.mark.parametrize(("changes", "body", "reason"), UNREADABLE.values(), ids=UNREADABLE)
def test_a_kernel_without_a_plain_form_wants_a_declaration(changes: dict[str, Any], body: Any, reason: str):
    step = lambda x: (pl.pallas_call(body, out_shape=zoo.like(x)[0], **changes)(x),)
    with pytest.raises(IsolationError, match=reason) as error:
        prove_isolation(step, (jnp.ones((LANES, VALUE)),), LaneContract((Lane(),), (Lane(),)))
    assert {violation.kind for violation in error.value.violations} == {ViolationKind.OPAQUE}
    assert all("opaque={" in violation.remedy for violation in error.value.violations)


def test_faults_stand_at_the_kernels_own_line():
    def body(x: Any, out: Any) -> None:
        out[...] = x[...] - jnp.max(x[...], axis=0, keepdims=True)

    step = lambda x: (pl.pallas_call(body, out_shape=zoo.like(x)[0], interpret=True)(x),)
    with pytest.raises(IsolationError) as error:
        prove_isolation(step, (jnp.ones((LANES, VALUE)),), LaneContract((Lane(),), (Lane(),)))
    (violation,) = error.value.violations
    line = body.__code__.co_firstlineno + 1
    assert violation.source.endswith(f"test_kernel_program.py:{line}") and violation.kind is ViolationKind.CROSS_LANE


def test_a_masked_load_that_names_no_other_value_reads_anything():
    def body(x: Any, out: Any, other: Any = None) -> None:
        out[...] = pltpu.load(x, mask=x[...] > 0) if other is None else x[...]

    step = lambda body, x: (pl.pallas_call(body, out_shape=zoo.like(x)[0], interpret=True)(x),)
    contract, args = LaneContract((Lane(),), (Lane(),)), (jnp.ones((LANES, VALUE)),)
    with pytest.raises(IsolationError) as error:
        prove_isolation(partial(step, body), args, contract)
    assert {violation.kind for violation in error.value.violations} == {ViolationKind.UNINITIALIZED}
    assert prove_isolation(partial(step, partial(body, other=0)), args, contract)


@pytest.mark.parametrize("guess", [
    {("result", 0): ((0, 0),)}, {("result", 0): ((1, 0),)}, {("operand", 0): ((0, 0), (1, 0))},
], ids=["steps in parallel", "no multiple", "one step for two dimensions"])  # fmt: skip
def test_a_wrong_guess_of_blocks_is_refused(guess: Any, monkeypatch: pytest.MonkeyPatch):
    """Guesses are not trusted: the kernel's program checks them."""

    def body(x: Any, out: Any) -> None:
        out[pl.program_id(0)] = x[pl.program_id(0)] * 2

    call = pl.pallas_call(body, grid=(LANES,), out_shape=jax.ShapeDtypeStruct((LANES, VALUE + 1), jnp.float32))
    guesses = {array: [cut] for array, cut in guess.items()}
    monkeypatch.setattr(kernel_programs, "guesses_of", lambda kernel: dict.fromkeys(guesses_of(kernel), []) | guesses)
    plain = read(lambda x: (call(x),), jnp.ones((LANES, VALUE + 1)))
    (reason,) = plain.unread.values()
    assert not plain.read and "cannot be cut" in reason

"""Kernels, callbacks and custom calls: a declaration never covers two programs."""

import functools
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from any_programs import LANES, ROW, STEPS, WIDTH, on_tpu, pipelined_kernel, row_kernel, scoped_kernel
from jax import lax
from jax.experimental import io_callback
from jax.experimental import pallas as pl

from ir_passes import (
    ContractError,
    IsolationError,
    Lane,
    LaneContract,
    Opaque,
    Shared,
    ViolationKind,
    compile_step,
    prove_isolation,
)
from ir_passes.contract.opaque_names import exact_name
from ir_passes.contract.statements import Assumption
from ir_passes.jaxpr import primitives

HERE = Path(__file__).name
X = jnp.ones((LANES, WIDTH))
F32 = jax.ShapeDtypeStruct((LANES, WIDTH), jnp.float32)
ROWS = Opaque((Lane(),), (Lane(),))
SINK = Opaque((Lane(),), ())


def contract(**opaque: Opaque) -> LaneContract:
    return LaneContract((Lane(),), (Lane(),), opaque=opaque)


def line_of(function: Any) -> int:
    return function.__code__.co_firstlineno


def faults(step: Any, con: LaneContract, kind: ViolationKind = ViolationKind.OPAQUE) -> IsolationError:
    with pytest.raises(IsolationError) as error:
        prove_isolation(step, (X,), con)
    assert {violation.kind for violation in error.value.violations} == {kind}
    return error.value


def mixing_kernel(x_ref, out_ref):
    out_ref[...] = x_ref[...] - x_ref[...].mean(0, keepdims=True)


def call(kernel: Any, **options: Any) -> Any:
    return pl.pallas_call(kernel, out_shape=F32, **options)


def call_twice(x):
    first = call(row_kernel)(x)
    return (call(row_kernel)(first),)


def call_two(x):
    first = call(row_kernel)(x)
    return (call(mixing_kernel)(first),)


def test_a_kernel_is_known_by_its_function_and_each_call_is_assumed_with_its_line() -> None:
    proof = prove_isolation(call_twice, (X,), contract(row_kernel=ROWS))
    assert len(proof.assumed) == 2
    for certificate, index in zip(proof.assumed, (1, 2), strict=True):
        assert certificate.id == Assumption.OPAQUE
        match = re.fullmatch(rf"row_kernel at \S+any_programs\.py:\d+, called at \S+{HERE}:(\d+)", certificate.about)
        assert match and int(match[1]) == line_of(call_twice) + index


def test_a_kernel_of_another_function_is_not_covered() -> None:
    """The kernel's program is read instead."""
    error = faults(call_two, contract(row_kernel=ROWS), ViolationKind.CROSS_LANE)
    assert {int(violation.source.rpartition(":")[2]) for violation in error.violations} == {line_of(mixing_kernel) + 1}
    assert all(violation.callers[0].endswith(f"{HERE}:{line_of(call_two) + 2}") for violation in error.violations)


@pytest.mark.parametrize("name", sorted(primitives.OPAQUE))
def test_the_name_of_a_primitive_is_refused_with_the_names_that_are_there(name) -> None:
    with pytest.raises(ContractError) as error:
        prove_isolation(call_two, (X,), contract(**{name: ROWS}))
    named = [f"{f.__name__} at {f.__code__.co_filename}:{line_of(f)}" for f in (row_kernel, mixing_kernel)]
    assert all((item in str(error.value)) == (name == "pallas_call") for item in named)


def namesakes() -> tuple[Any, Any]:
    def row_wise() -> Any:
        def same_name(x_ref, out_ref):
            out_ref[...] = x_ref[...] * 2

        return same_name

    def reversing() -> Any:
        def same_name(x_ref, out_ref):
            out_ref[...] = x_ref[...][::-1]

        return same_name

    return row_wise(), reversing()


def test_two_kernels_of_one_name_are_refused_and_told_apart_by_their_place() -> None:
    first, second = namesakes()

    def step(x):
        first_result = call(first)(x)
        return (call(second)(first_result),)

    error = faults(step, contract(same_name=ROWS), ViolationKind.AMBIGUOUS)
    (violation,) = error.violations
    assert violation.source.endswith(f"{HERE}:{line_of(step) + 2}")
    exact = [f"same_name at {__file__}:{line_of(item)}" for item in (first, second)]
    assert all(repr(item) in violation.remedy and item in violation.message for item in exact)
    assert prove_isolation(step, (X,), contract(**dict.fromkeys(exact, ROWS)))
    assert prove_isolation(
        step, (X,), contract(**{f"same_name at {HERE}:{line_of(item)}": ROWS for item in (first, second)})
    )
    fields = {exact[0]: ROWS, f"same_name at other_{HERE}:{line_of(second)}": ROWS}
    error = faults(step, contract(**fields), ViolationKind.CROSS_LANE)  # the second is not declared, and read
    assert error.violations[0].source.endswith(f"{HERE}:{line_of(second) + 1}")


def of_factory(operation: Any) -> Any:
    def made(x_ref, out_ref):
        out_ref[...] = operation(x_ref[...])

    return made


SAME, OTHER = (lambda x: x * 2), (lambda x: x[::-1])
TILES = pl.BlockSpec((2, WIDTH), lambda i: (i, 0))


@pytest.mark.parametrize(("item", "other", "alike"), [
    (call(of_factory(SAME)), call(of_factory(SAME)), True),
    (call(of_factory(SAME)), call(of_factory(OTHER)), False),
    (call(row_kernel, name="made"), call(row_kernel, name="made"), True),
    (call(row_kernel, name="made"), call(mixing_kernel, name="made"), False),
    (call(row_kernel, grid=(2,), in_specs=[TILES], out_specs=TILES), call(row_kernel), False),
    (call(row_kernel, grid=(LANES,), in_specs=[ROW], out_specs=ROW),
        call(row_kernel, grid=(LANES,), in_specs=[ROW], out_specs=pl.BlockSpec((1, WIDTH), lambda i: (3 - i, 0))),
        False),
], ids=["closures alike", "closures that differ", "one name", "names of two", "blocks", "index maps"])  # fmt: skip
def test_closures_block_specs_and_index_maps_belong_to_the_body_of_a_kernel(item, other, alike) -> None:
    def step(x):
        return (other(item(x)),)

    con = contract(made=ROWS, row_kernel=ROWS)
    if alike:
        assert prove_isolation(step, (X,), con)
        return
    faults(step, con, ViolationKind.AMBIGUOUS)


@pytest.mark.parametrize("other", [lambda x: x * 3, lambda x: x[::-1], lambda x: x - x.mean(0, keepdims=True)])
def test_closures_of_one_function_at_two_shapes_are_told_apart(other) -> None:
    """Values that a closure holds stand in its program, lengths of arrays aside."""

    def step(first, second, names, x):
        wide = jnp.concatenate([x, x], axis=1)
        shape = jax.ShapeDtypeStruct(wide.shape, wide.dtype)
        result = pl.pallas_call(of_factory(second), out_shape=shape, name=names[1])(wide)
        return (call(of_factory(first), name=names[0])(x) + result[:, :WIDTH],)

    function = functools.partial(step, SAME, other, (None, None))
    faults(function, contract(made=ROWS), ViolationKind.AMBIGUOUS)
    named = functools.partial(step, SAME, other, ("first", "second"))
    assert prove_isolation(named, (X,), contract(first=ROWS, second=ROWS))
    assert prove_isolation(functools.partial(step, SAME, lambda x: x * 2, (None, None)), (X,), contract(made=ROWS))


def test_the_same_kernel_in_loops_and_branches_is_one_thing() -> None:
    def step(x):
        y = lax.scan(lambda c, _: (call(row_kernel)(c), None), x, None, length=2)[0]
        y = lax.cond(x.shape[0] > 0, call(row_kernel), lambda z: z, y)
        return (lax.while_loop(lambda c: c[1] < 2, lambda c: (jax.jit(call(row_kernel))(c[0]), c[1] + 1), (y, 0))[0],)

    assert prove_isolation(step, (X,), contract(row_kernel=ROWS))
    second = lambda x: lax.scan(lambda c, _: (call(mixing_kernel, name="row_kernel")(c), None), x, None, length=2)[0]
    faults(lambda x: (second(step(x)[0]),), contract(row_kernel=ROWS), ViolationKind.AMBIGUOUS)


@pytest.mark.parametrize(("kernel", "step"), [
    (scoped_kernel, "kernel run_scoped"),
    (pipelined_kernel, "kernel emit_pipeline"),
    (row_kernel, "kernel on cores"),
])  # fmt: skip
def test_kernels_with_programs_inside_are_taken_by_their_declaration(kernel, step) -> None:
    run = lambda x: (STEPS[step](x),)
    proof = prove_isolation(run, (X,), contract(**{kernel.__name__: ROWS}))
    assert [statement.id for statement in proof.assumed] == [Assumption.OPAQUE]
    if kernel is scoped_kernel:
        assert not prove_isolation(run, (X,), contract()).assumed, "it is read"
        return
    assert kernel.__name__ in faults(run, contract()).violations[0].remedy


def test_pipelines_over_other_blocks_are_other_bodies() -> None:
    """The difference is inside the kernel's pipeline."""
    everywhere = pl.BlockSpec(memory_space=pl.ANY)

    def step(x):
        with on_tpu():
            return (
                call(pipelined_kernel, in_specs=[everywhere], out_specs=everywhere)(x)
                + call(row_kernel, name="pipelined_kernel")(x),
            )

    faults(step, contract(pipelined_kernel=ROWS), ViolationKind.AMBIGUOUS)


def doubled(x: Any) -> Any:
    return np.asarray(x) * 2


def pure(function: Any) -> Any:
    return lambda x: jax.pure_callback(function, F32, x)


def effectful(function: Any) -> Any:
    return lambda x: io_callback(function, F32, x, ordered=True)


def one_after_other(first: Any, second: Any) -> Any:
    return lambda x: (second(first(x)),)


def debugged(function: Any) -> Any:
    def run(x):
        jax.debug.callback(function, x)
        return x

    return run


@pytest.mark.parametrize("by", [pure, effectful, debugged])
def test_callbacks_are_their_functions(by) -> None:
    entry = SINK if by is debugged else ROWS
    con = contract(**{"doubled": entry, "<lambda>": entry, "multiply": entry})
    repeat = functools.partial(np.multiply, np.float32(2)), functools.partial(np.multiply, np.float32(2))
    for item, other in ((doubled, doubled), repeat):
        assert prove_isolation(one_after_other(by(item), by(other)), (X,), con)
    thrice = functools.partial(np.multiply, np.float32(3))
    for item, other in ((lambda x: x, lambda x: x[::-1]), (repeat[0], thrice)):
        faults(one_after_other(by(item), by(other)), con, ViolationKind.AMBIGUOUS)


def test_callbacks_made_in_a_loop_over_equal_values_are_one_thing() -> None:
    def step(x, factors):
        for factor in factors:
            x = jax.pure_callback(lambda y, factor=factor: np.asarray(y) * factor, F32, x)
        return (x,)

    con = contract(**{"<lambda>": ROWS})
    assert prove_isolation(lambda x: step(x, (2.0, 2.0)), (X,), con)
    faults(lambda x: step(x, (2.0, 3.0)), con, ViolationKind.AMBIGUOUS)


def foreign(**attributes: Any) -> Any:
    return lambda x: jax.ffi.ffi_call("any_target", F32)(x, **attributes)


def test_custom_calls_are_their_target_with_its_attributes() -> None:
    equal = lambda x: (foreign(stride=np.int32(2))(foreign(stride=np.int32(2))(x)),)
    other = lambda x: (foreign(stride=np.int32(2))(foreign(stride=np.int32(3))(x)),)
    assert prove_isolation(equal, (X,), contract(any_target=ROWS))
    (violation,) = faults(other, contract(any_target=ROWS), ViolationKind.AMBIGUOUS).violations
    assert all(f"'any_target(stride={stride})'" in violation.remedy for stride in (2, 3))
    assert prove_isolation(other, (X,), contract(**{f"any_target(stride={k})": ROWS for k in (2, 3)}))


def test_prints_are_their_format() -> None:
    """A print returns nothing and needs no declaration; a declared one is assumed."""

    def step(x):
        jax.debug.print("x = {x}", x=x)
        jax.debug.print("y = {x}", x=x)
        return (x,)

    for declared, notes in ((("x = {x}", "y = {x}"), 0), (("x = {x}",), 1), ((), 2)):
        proof = prove_isolation(step, (X,), contract(**dict.fromkeys(declared, SINK)))
        assert len(proof.assumed) == len(declared)
        assert [note.id for note in proof.notes].count("debug-callback") == notes


def test_a_kernel_keeps_its_name_under_vmap() -> None:
    (eqn,) = jax.make_jaxpr(jax.vmap(call(row_kernel)))(jnp.ones((2, LANES, WIDTH))).eqns
    assert exact_name(eqn) == f"row_kernel at {row_kernel.__code__.co_filename}:{line_of(row_kernel)}"


def test_a_kept_proof_is_not_one_of_a_step_with_other_bodies(tmp_path) -> None:
    """The programs differ only in the functions of their calls."""

    def step(first, second):
        return lambda x: (pure(second)(pure(first)(x)),)

    item, other = (lambda x: x + 1), (lambda x: x[::-1])
    con = contract(**{"<lambda>": ROWS})
    assert compile_step(step(item, item), (X,), con, certificates=tmp_path).certificate.holds
    assert compile_step(step(item, item), (X,), con, certificates=tmp_path).certificate.reused
    with pytest.raises(IsolationError):
        compile_step(step(item, other), (X,), con, certificates=tmp_path)


def test_a_certificate_names_every_call() -> None:
    def step(x):
        y = pure(doubled)(x)
        return (pure(doubled)(y),)

    (statement,) = compile_step(step, (X,), contract(doubled=ROWS)).certificate.assumed
    place = f"{__file__}:{line_of(pure) + 1}"
    about = f"doubled at {__file__}:{line_of(doubled)}, called at {place} (2 calls)"
    assert (statement.id, statement.about) == (Assumption.OPAQUE, about)


def test_a_shared_declaration_is_no_row_wise_one() -> None:
    faults(lambda x: (call(row_kernel)(x),), contract(row_kernel=Opaque((Shared(),), (Lane(),))))

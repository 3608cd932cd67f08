"""Live ranges of small functions, written as tables: name, bytes, first and last equation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arena_programs import PROGRAMS
from jax.sharding import PartitionSpec as P

from ir_passes.scratch.liveness import Liveness, liveness

X = jax.ShapeDtypeStruct((4, 8), np.float32)  # 128 bytes


def table(live: Liveness) -> str:
    """One line per temporary: name, bytes, first and last equation."""
    return "\n".join(f"{v.name} {v.bytes} {v.start}-{v.end}" for v in live.scratch)


def chain(x):
    a = x + 1
    b = a * 2
    return b - jnp.sin(a)


def viewed(x):
    a = jnp.exp(x)
    b = a.reshape(8, 4)[None].squeeze(0)
    c = jnp.sin(x)
    return jnp.cos(c).reshape(-1) + b.reshape(-1)


def output_viewed(x):
    a = jnp.exp(x)
    return a.reshape(-1), jnp.sin(a)


def output_passed_on(x):
    a = jnp.exp(x)
    return a, jnp.sin(a) + 1, x


def dead(x):
    jnp.exp(x)
    return jnp.sin(x)


input_viewed = lambda x: jnp.sin(x.reshape(-1)) + 1
called = lambda x: jax.jit(lambda x: jnp.sin(x) * 2)(x) + 1


def bits(x):
    a = x + 1
    return jax.lax.bitcast_convert_type(a, jnp.int32) + 1


def moved(x):
    a = x + 1
    return a.T + 1


def permuted_reshape(x):
    a = x + 1
    return jax.lax.reshape(a, (32,), dimensions=(1, 0)) + 1


TABLES = {
    "operands live until their last reader, both ends included": (chain, "add.0 128 0-2\nmul.1 128 1-3\nsin.2 128 2-3"),
    "a view extends its base": (viewed, "exp.0 128 0-8\nsin.4 128 4-5\ncos.5 128 5-8"),
    "an output holds the bytes that it is a view of": (output_viewed, ""),
    "outputs are held": (output_passed_on, "sin.1 128 1-2"),
    "dead values need bytes while they are computed": (dead, "exp.0 128 0-0"),
    "a view of an input is held": (input_viewed, "sin.1 128 1-2"),
    "a bitcast is a view": (bits, "add.0 128 0-2"),
    "a transpose is none": (moved, "add.0 128 0-1\ntranspose.1 128 1-2"),
    "nor is a reshape that permutes": (permuted_reshape, "add.0 128 0-1\nreshape.1 128 1-2"),
    "calls are inlined": (called, "sin.0 128 0-1\nmul.1 128 1-2"),
}


@pytest.mark.parametrize(("fn", "expected"), TABLES.values(), ids=TABLES)
def test_live_ranges(fn, expected: str) -> None:
    assert table(liveness(fn, (X,))) == expected


def test_the_lower_bound_is_the_most_that_is_live_at_once() -> None:
    live = liveness(chain, (X,))
    assert live.profile == (128, 256, 384, 256, 0)
    assert live.lower_bound == 384
    assert liveness(lambda x: x, (X,)).lower_bound == 0


def test_a_scan_has_the_scratch_of_one_iteration() -> None:
    live = liveness(PROGRAMS["layers"].fn, PROGRAMS["layers"].args(4))
    assert table(live) == "scan.0.0 64 0-1"
    (body,) = live.bodies[0]
    # The body's results are the carry and the state: both live to its end.
    assert table(body) == "dot_general.0 64 0-1\nadd.1 64 1-2\ntanh.2 64 2-5\nmul.3 64 3-4\nadd.4 64 4-5"
    assert body.lower_bound == 192
    assert live.profile[0] == 64 + 192


def test_a_while_has_the_scratch_of_condition_and_body() -> None:
    live = liveness(PROGRAMS["loop"].fn, PROGRAMS["loop"].args(4))
    (loop,) = live.bodies
    condition, body = live.bodies[loop]
    assert live.block_bytes(loop) == condition.lower_bound + body.lower_bound
    assert condition.lower_bound == 1


def test_only_one_branch_of_a_cond_runs() -> None:
    live = liveness(PROGRAMS["branch"].fn, PROGRAMS["branch"].args(4))
    ((equation, branches),) = live.bodies.items()
    assert len(branches) == 3
    assert live.block_bytes(equation) == max(branch.lower_bound for branch in branches)
    assert any(branch.bodies for branch in branches), "the scan in a branch has a body of its own"


def test_a_shard_map_has_the_scratch_of_one_device() -> None:
    mesh = jax.make_mesh((2,), ("lanes",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])
    inner = jax.shard_map(lambda x: jnp.sin(x) * 2 + 1, mesh=mesh, in_specs=P("lanes"), out_specs=P("lanes"))
    live = liveness(lambda x: inner(x) + 1, (X,))
    (body,) = next(iter(live.bodies.values()))
    assert [v.bytes for v in body.scratch if v.bytes >= 64] == [64, 64, 64]


def test_scalar_combinators_have_no_scratch() -> None:
    fn = lambda x, i: jax.lax.reduce_max(x.at[i].add(1.0), axes=(0,)) + jnp.argmax(x, axis=0).astype(jnp.float32)
    assert liveness(fn, (X, jax.ShapeDtypeStruct((2,), np.int32))).bodies == {}

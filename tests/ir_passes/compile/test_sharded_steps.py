"""Compiled steps over a mesh: collectives follow the program, pools stay in place.

Eight virtual devices.
"""

import dataclasses
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exchanged import collectives_in
from jax import Array, lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from traced_programs import check_schedule_fingerprint, schedule
from zoo.catalogue import PROGRAMS
from zoo.meshes.sharded import mesh
from zoo.meshes.sharded_rows import COPY_SPECS, SPLIT

from hybridlm.compiler import stages, xla_audit
from ir_passes import AuditError, Certificate, CompiledStep, FindingKind, Lane, LaneContract, Pool, compile_step
from ir_passes.compile.exported import ExportError, load_exported
from ir_passes.compile.inspect_page import inspect_page
from ir_passes.compile.planned_step import plan_step

CUBE = ("data", "model", "expert")
ROWS = LaneContract(inputs=(Pool("p"), Lane()), outputs=(Pool("p"), Lane()))


def cube() -> Mesh:
    return jax.make_mesh((2, 2, 2), CUBE, axis_types=(AxisType.Auto,) * 3)


def placed(args: tuple[Any, ...], specs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments on two by two devices, in donatable bytes that no NumPy array shares."""
    split = [NamedSharding(mesh(2, 2), spec) for spec in specs]
    return tuple(jax.device_put(jnp.array(arg, copy=True), place) for arg, place in zip(args, split, strict=True))


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_a_pool_that_does_not_lie_on_the_mesh_is_named_with_its_spec(kind: AxisType) -> None:
    """The suggested remedy passes the audit; JAX's own check stops at the first argument."""
    devices = jax.make_mesh((2,), ("data",), axis_types=(kind,), devices=jax.devices()[:2])

    def local(pool: Array, x: Array) -> Any:
        new = pool * 0.5 + x
        return new, new.sum(1)

    step = jax.shard_map(local, mesh=devices, in_specs=P("data"), out_specs=P("data"))
    pool, x = jnp.zeros((4, 6)), jnp.ones((4, 6))
    with pytest.raises(stages.PlacementError) as raised:
        compile_step(step, (pool, x), ROWS)
    first = raised.value.arguments[0]
    assert (first.path, first.name, first.type) == ("args[0]", "pool", "float32[4,6]")
    spec = eval(first.spec, {"P": P})
    assert spec[0] == "data" and f"jax.NamedSharding(mesh, jax.{first.spec})" in str(raised.value)
    rows = [jax.device_put(item, NamedSharding(devices, spec)) for item in (pool, x)]
    assert compile_step(step, tuple(rows), ROWS).certificate.holds


@pytest.fixture(scope="module")
def copied() -> CompiledStep:
    program = PROGRAMS["sharded rows copied"]
    return compile_step(program.step, placed(program.args(), COPY_SPECS[:-1]), program.contract)


def test_rows_are_copied_between_devices_in_place(copied: CompiledStep) -> None:
    target, source, read, write = PROGRAMS["sharded rows copied"].args(1)
    expected = target.copy()
    expected[write] = source[read]
    initial = target
    for _ in range(2):
        array = placed((initial, source, read, write), COPY_SPECS[:-1])
        places = [shard.data.unsafe_buffer_pointer() for shard in array[0].addressable_shards]
        (final,) = copied(*array)
        assert [shard.data.unsafe_buffer_pointer() for shard in final.addressable_shards] == places
        assert array[0].is_deleted() and not array[1].is_deleted()
        assert final.sharding.spec == SPLIT
        np.testing.assert_array_equal(np.asarray(final)[1:], expected[1:])
        initial = np.asarray(final)


def test_certificate_lists_the_collectives(copied: CompiledStep) -> None:
    certificate = copied.certificate
    assert certificate.holds and certificate.copies == ()
    (exchange,) = certificate.collectives
    assert (exchange.operation, exchange.axes, exchange.devices) == ("psum", ("data",), 2)
    assert (exchange.dtype, exchange.bytes, exchange.times) == ("float32", 4 * 3 * 4, 1)
    assert "sharded_rows.py:" in exchange.source
    check_schedule_fingerprint(certificate)
    assert certificate.sent == 48, "half of it, and half of the sum"
    line = "1 x psum over data of 48 bytes (float32) by each of 2 devices"
    assert line in certificate.report() and line in inspect_page("copy", copied)
    assert Certificate.from_json(certificate.to_json()) == certificate
    changed = json.loads(certificate.to_json())
    changed["collectives"][0]["bytes"] = "48"
    with pytest.raises(ValueError, match=r"collectives\[0\]\.bytes"):
        Certificate.from_json(json.dumps(changed))


def test_bytes_match_one_device(copied: CompiledStep) -> None:
    shard = 3 * 3 * 4 + 4 * 3 * 4 + 2 * 4 * 4
    assert copied.certificate.memory.arguments == shard
    assert copied.certificate.memory.aliased == 3 * 3 * 4
    assert copied.plan.size == plan_step_of("sharded rows copied").plan.size
    assert all(placement.bytes <= 4 * 3 * 4 for placement in copied.plan.placements)


def plan_step_of(name: str) -> Any:
    program = PROGRAMS[name]
    return plan_step(program.step, program.args(), program.contract)


def test_shapes_with_shardings_are_enough(copied: CompiledStep) -> None:
    program = PROGRAMS["sharded rows copied"]
    array = placed(program.args(), COPY_SPECS[:-1])
    types = tuple(jax.ShapeDtypeStruct(item.shape, item.dtype, sharding=item.sharding) for item in array)
    compiled = compile_step(program.step, types, program.contract)
    assert compiled.certificate.fingerprints == copied.certificate.fingerprints
    assert plan_step_of("sharded rows copied").collectives == copied.certificate.collectives


def test_export_keeps_where_arrays_lie(copied: CompiledStep, tmp_path: Path) -> None:
    exported = copied.export()
    assert exported.signature.devices == 4 and exported.signature.arguments[0].donated
    assert exported.text is not None and "tf.aliasing_output" in exported.text and "num_partitions = 4" in exported.text
    assert '[{"data"}, {"model"}]' in exported.text.split("%arg0: ")[1].split("%arg1")[0]
    exported.save(tmp_path / "step.zip")
    assert load_exported(tmp_path / "step.zip").certificate == copied.certificate
    with pytest.raises(ExportError, match="an executable over 4 devices cannot be exported"):
        copied.export("executable")


def many(x: Array, narrow: Array) -> tuple[Array, ...]:
    """Every operation, alike ones and equal ones among them, in loops and branches."""
    first, second = lax.psum(x, "model"), lax.psum(x * 2, "model")
    total = lax.psum(x, "model")
    pair = lax.psum(x + 1, ("expert", "model"))
    narrow = lax.psum(narrow, "model").astype(jnp.float32)
    greatest, smallest = lax.pmax(x, "model"), lax.pmin(jnp.tanh(x), "expert")
    gathered = lax.all_gather(x, "model", axis=1, tiled=True, to="invarying")[:, : x.shape[1]]
    swapped = lax.psum(lax.all_to_all(x, "model", 0, 1, tiled=True).reshape(x.shape), "model")
    passed = lax.psum(lax.ppermute(x, "model", [(0, 1), (1, 0)]), "model")
    pieces = lax.all_gather(lax.psum_scatter(x * 3, "expert", tiled=True), "expert", tiled=True, to="invarying")
    turn = lambda carry, _: (carry + lax.psum(jnp.tanh(carry) * x, "model"), None)
    looped = lax.scan(turn, jnp.zeros_like(first), None, length=7, unroll=2)[0]
    branch = lax.cond(greatest.sum() > 0, lambda: lax.psum(x - 1, "model"), lambda: first)
    return (first + second + total, pair, narrow, greatest, smallest, gathered, swapped, passed, pieces, looped, branch)


def run_many(pool: Array, x: Array) -> tuple[Array, Array]:
    def local(pool, x):
        full = lax.pcast(x, ("model", "expert"), to="varying") + lax.axis_index("model").astype(x.dtype)
        results = many(full, (full * 5).astype(jnp.bfloat16))
        return pool, functools.reduce(jnp.add, [lax.pmax(lax.pmax(result, "model"), "expert") for result in results])

    return jax.shard_map(local, mesh=cube(), in_specs=(P("data"), P("data")), out_specs=(P("data"), P("data")))(pool, x)


@pytest.fixture(scope="module")
def busy() -> tuple[jax.stages.Compiled, Any, Any]:
    args = jnp.ones((8, 4)), jnp.ones((8, 4))
    compiled = jax.jit(run_many, donate_argnums=0).lower(*args).compile()
    return compiled, ROWS.bind(run_many, args), schedule(run_many, *args)


def test_every_collective_is_found_in_the_program_of_xla(busy: Any) -> None:
    compiled, bound, scheduled = busy
    report = xla_audit.audit(compiled, bound, mesh=cube(), scheduled=scheduled)
    assert [finding for finding in report.findings if finding.kind is FindingKind.COLLECTIVE] == []
    assert sorted(map(str, report.schedule)) == sorted(str(item.collective) for item in scheduled)
    sums = [item for item in scheduled if item.collective.operation in ("psum", "pmax", "pmin")]
    assert (compiled.as_text() or "").count(" all-reduce(") < len(sums), "none combined"
    kinds = {item.operation for item in report.schedule}
    assert kinds == {"psum", "pmax", "pmin", "all_gather", "all_to_all", "ppermute", "reduce_scatter"}
    assert any(array.dtype == "bfloat16" for array in report.schedule)
    assert [turn.times for turn in [item for item in report.schedule if item.times != 1]] == [3, 3]


def otherwise(scheduled: tuple[Any, ...], **changes: Any) -> tuple[Any, ...]:
    """The first of them with something else in it."""
    first = scheduled[0]
    parts = {name: value for name, value in changes.items() if name in ("count", "groups")}
    rest = {name: value for name, value in changes.items() if name not in parts}
    return (
        dataclasses.replace(first, collective=dataclasses.replace(first.collective, **rest), **parts),
        *scheduled[1:],
    )


@pytest.mark.parametrize("changes", [
    {"operation": "pmax"},
    {"count": 1},
    {"dtype": "int32"},
    {"groups": frozenset({(0, 1), (2, 3), (4, 5), (6, 7)})},
])  # fmt: skip
def test_another_collective_than_the_programs_is_found(busy: Any, changes: dict[str, Any]) -> None:
    compiled, bound, scheduled = busy
    findings = xla_audit.audit(compiled, bound, mesh=cube(), scheduled=otherwise(scheduled, **changes)).findings
    kinds = [finding.kind for finding in findings]
    assert [kinds.count(kind) for kind in (FindingKind.COLLECTIVE, FindingKind.MISSING_COLLECTIVE)] == [1, 1]


def test_one_collective_too_few_or_too_many_is_found(busy: Any) -> None:
    compiled, bound, scheduled = busy
    small, count = scheduled[1:], (scheduled[0], *scheduled)
    for wrong, kind in ((small, FindingKind.COLLECTIVE), (count, FindingKind.MISSING_COLLECTIVE)):
        assert [f.kind for f in xla_audit.audit(compiled, bound, mesh=cube(), scheduled=wrong).findings].count(
            kind
        ) == 1


def decode(pool: Array, x: Array) -> tuple[Array, Array]:
    """Lanes by themselves."""
    rows = 0.5 * pool + jnp.tanh(x)
    return rows, jnp.cumsum(rows, axis=1)


def data_mesh() -> Mesh:
    return jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))


def over_data(step: Callable[..., Any]) -> Callable[..., Any]:
    return jax.shard_map(step, mesh=data_mesh(), in_specs=P("data"), out_specs=P("data"))


def test_lanes_over_devices_exchange_nothing() -> None:
    """The same step under shard_map and pmap compiles without a collective."""
    split = NamedSharding(data_mesh(), P("data"))
    args = jax.device_put((jnp.ones((16, 6)), jnp.ones((16, 6))), split)
    step = compile_step(over_data(decode), args, ROWS)
    assert step.certificate.collectives == () and step.audit is not None and step.audit.schedule == ()
    check_schedule_fingerprint(step.certificate)
    parts = tuple(np.ones((8, 2, 6), np.float32) for _ in args)
    text = decode(jnp.ones((16, 6)), jnp.ones((16, 6)))
    np.testing.assert_array_equal(step(*args)[1], text[1])
    assert collectives_in(step.compiled.as_text()) == []
    if hasattr(jax, "pmap"):
        mapped = jax.pmap(decode)
        assert collectives_in(mapped.lower(*parts).compile().as_text()) == []
        np.testing.assert_array_equal(np.asarray(mapped(*parts)[1]).reshape(16, 6), text[1])


def test_lanes_sent_to_the_next_device_are_found() -> None:
    """The property of the text that the test before checks can fail."""
    sent = over_data(lambda pool, x: lax.ppermute(decode(pool, x), "data", [(0, 1), (1, 0)]))
    args = jax.device_put((jnp.ones((16, 6)), jnp.ones((16, 6))), NamedSharding(data_mesh(), P("data")))
    assert set(collectives_in(jax.jit(sent).lower(*args).compile().as_text())) == {"collective-permute"}


def test_a_collective_that_xla_adds_is_a_finding() -> None:
    """The step takes rows as another split than it was given."""
    args = jax.device_put((jnp.ones((16, 8)), jnp.ones((16, 8))), NamedSharding(data_mesh(), P(None, "data")))
    with pytest.raises(AuditError) as raised:
        compile_step(over_data(decode), args, ROWS)
    assert FindingKind.COLLECTIVE in {finding.kind for finding in raised.value.findings}


def test_a_program_without_a_mesh_has_no_collectives() -> None:
    step = compile_step(decode, (jnp.ones((4, 6)), jnp.ones((4, 6))), ROWS)
    assert step.certificate.collectives == ()
    assert "collectives, in the order of" not in step.report()

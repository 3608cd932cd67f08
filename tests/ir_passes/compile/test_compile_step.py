"""compile_step: pools meet successors, faults raise or warn, certificates are reused, exports run."""

import pkgutil
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.layout import Layout, with_layout_constraint

from hybridlm.compiler import rewrites
from ir_passes import (
    Assumption,
    AuditClaim,
    AuditError,
    ContractError,
    ContractFault,
    FindingKind,
    IsolationError,
    Lane,
    LaneContract,
    NotCovered,
    Pool,
    Shared,
    SlotMap,
    ViolationKind,
    prove_isolation,
)
from ir_passes.compile.calling import output_order
from ir_passes.compile.certificate import Certificate
from ir_passes.compile.compile_step import compile_step
from ir_passes.compile.compiled_step import CompiledStep
from ir_passes.compile.exported import ExportError, load_exported, without_layouts
from ir_passes.compile.isolated import isolated
from ir_passes.compile.proving import CertificationWarning
from ir_passes.jaxpr import ir

LANES, SLOTS, WIDTH = 3, 8, 4
ONE = LaneContract((Shared(), Pool("s"), SlotMap("s", SLOTS), Lane()), (Lane(), Pool("s")))


def one_pool(w, pool, slots, x):
    rows = pool.at[slots].get(mode="fill", fill_value=0.0, wrap_negative_indices=False)
    new = rows * 0.5 + x @ w
    return new.sum(1), pool.at[slots].set(new, mode="drop", wrap_negative_indices=False)


def leaking(w, pool, slots, x):
    rows = pool.at[slots].get(mode="fill", fill_value=0.0, wrap_negative_indices=False)
    new = rows * 0.5 + x[::-1] @ w  # the leak
    return new.sum(1), pool.at[slots].set(new, mode="drop", wrap_negative_indices=False)


def shifting(state, x):
    """Right, but the shifted rows need extra bytes, so XLA copies."""
    shifted = jnp.concatenate([state[:, 1:], x[:, None]], axis=1)
    return (shifted * state).sum((1, 2)), shifted


SHIFT = LaneContract((Pool("r"), Lane()), (Lane(), Pool("r")))
SHIFT_ARGS = (jnp.ones((LANES, 3, 16)), jnp.ones((LANES, 16)))


def args(seed: int = 0) -> tuple[Any, ...]:
    random = np.random.default_rng(seed)
    normal = lambda *shape: jnp.asarray(random.normal(size=shape).astype(np.float32))
    return normal(WIDTH, WIDTH), normal(SLOTS, WIDTH), jnp.array([5, 1, 3], jnp.int32), normal(LANES, WIDTH)


@pytest.fixture(scope="module")
def step() -> CompiledStep:
    return compile_step(one_pool, args(), ONE)


def assert_same(got: Any, expected: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), got, expected)


def test_runs_as_the_function_and_consumes_its_pool_alone(step: CompiledStep) -> None:
    settings = args(1)
    expected = one_pool(*settings)
    for _ in range(2):
        w, pool, slots, x = args(1)
        assert_same(step(w, pool, slots, x), expected)
        assert [item.is_deleted() for item in (w, pool, slots, x)] == [False, True, False, False]


def test_certificate_names_proof_audit_and_passes(step: CompiledStep) -> None:
    certificate = step.certificate
    assert certificate.holds
    assert Certificate.from_json(certificate.to_json()) == certificate
    assert (certificate.step, certificate.lanes, certificate.certify) == ("one_pool", LANES, "error")
    assert certificate.proved and certificate.audited and not certificate.faults
    assert [(item.id, item.about) for item in certificate.assumed] == [(Assumption.SLOT_MAP, "args[2]")]
    assert [item.id for item in certificate.audited] == [*AuditClaim]
    assert certificate.contract == (
        f"args[0]: {Shared()}, float32[4, 4]",
        f"args[1]: {Pool('s')}, float32[8, 4]",
        f"args[2]: {SlotMap('s', SLOTS)}, int32[3]",
        f"args[3]: {Lane()}, float32[3, 4]",
        f"result[0]: {Lane()}, float32[3]",
        f"result[1]: {Pool('s')}, float32[8, 4]",
    )
    (pool,) = certificate.pools
    assert (pool.path, pool.successor, pool.bytes, pool.faults, pool.copies) == ("args[1]", "result[1]", 128, 0, 0)
    assert certificate.memory.aliased == 128
    assert certificate.memory.temp >= (certificate.memory.temp_lower_bound or 0) > 0
    assert step.plan.size >= step.plan.lower_bound > 0
    assert certificate.fingerprints.hlo == (step.audit and step.audit.fingerprint)
    assert [pass_.name for pass_ in certificate.passes] == [pass_.name for pass_ in step.passes]
    assert certificate.seconds.compile > 0 and certificate.seconds.prove > 0
    for text in ("one_pool: certified", "proved:", "audited:", "scratch before fusion"):
        assert text in step.report()
    assert "certified" in repr(step)
    assert len(step.jaxpr.jaxpr.outvars) == 2
    assert isinstance(step.compiled, jax.stages.Compiled)


def test_scratch_is_planned_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = []
    plan = pkgutil.resolve_name("ir_passes.scratch.planner.pack")
    monkeypatch.setattr("ir_passes.scratch.planner.pack", lambda buffers: planned.append(buffers) or plan(buffers))
    step = compile_step(one_pool, args(), ONE)
    assert step.certificate.holds and not planned
    assert step.plan is step.plan and len(planned) == 1


def test_example_arguments_may_be_abstract() -> None:
    abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), args())
    assert_same(compile_step(one_pool, abstract, ONE)(*args()), one_pool(*args()))


def test_leak_is_refused_with_its_line() -> None:
    with pytest.raises(IsolationError) as raised:
        compile_step(leaking, args(), ONE)
    line = leaking.__code__.co_firstlineno + 2
    assert any(violation.source.endswith(f"test_compile_step.py:{line}") for violation in raised.value.violations)


def test_arguments_in_another_order_are_refused_by_name() -> None:
    for certify in (compile_step, prove_isolation):
        with pytest.raises(TypeError, match="^args: "):
            certify(one_pool, ONE, args())  # type: ignore[arg-type]


def test_leak_only_warns_if_asked_to() -> None:
    with pytest.warns(CertificationWarning, match=ViolationKind.CROSS_LANE) as warned:
        step = compile_step(leaking, args(), ONE, certify="warn")
    assert len(step.certificate.faults) == len(warned)
    assert not step.certificate.holds and not step.certificate.proved and not step.passes
    assert {fault.id for fault in step.certificate.faults} == {ViolationKind.CROSS_LANE}
    assert NotCovered.ISOLATION in {certificate.id for certificate in step.certificate.not_covered}
    assert step.certificate.audited
    assert_same(step(*args()), leaking(*args()))


def test_off_neither_proves_nor_audits(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("nothing is proved or audited")

    monkeypatch.setattr("ir_passes.proof.lane_proof.prove_jaxpr", refuse)
    monkeypatch.setattr("ir_passes.compile.certifying.audit", refuse)
    step = compile_step(leaking, args(), ONE, certify="off")
    assert not step.certificate.holds and step.audit is None
    assert not step.certificate.proved and not step.certificate.audited
    assert {c.id for c in step.certificate.not_covered} >= {NotCovered.ISOLATION, NotCovered.COMPILED_PROGRAM}
    settings = args()
    assert_same(step(*settings), leaking(*args()))
    assert settings[1].is_deleted()


def test_fault_of_the_compiled_program() -> None:
    with pytest.raises(AuditError) as raised:
        compile_step(shifting, SHIFT_ARGS, SHIFT)
    assert {finding.kind for finding in raised.value.findings} == {FindingKind.POOL_COPY}
    with pytest.warns(CertificationWarning, match=FindingKind.POOL_COPY):
        step = compile_step(shifting, SHIFT_ARGS, SHIFT, certify="warn")
    assert step.certificate.proved and not step.certificate.holds
    assert step.certificate.pools[0].faults and step.certificate.pools[0].copies
    assert {fault.id for fault in step.certificate.faults} == {FindingKind.POOL_COPY}
    assert {*AuditClaim} - {certificate.id for certificate in step.certificate.audited} == {AuditClaim.NO_POOL_COPIES}
    allowed = compile_step(shifting, SHIFT_ARGS, SHIFT, may_copy=["args[0]"])
    assert allowed.certificate.holds
    assert len(allowed.certificate.copies) == 1 and allowed.certificate.memory.copied == SHIFT_ARGS[0].nbytes
    with pytest.raises(AuditError):
        compile_step(shifting, SHIFT_ARGS, SHIFT, may_copy=["*.conv"])


def test_the_remedy_of_a_copied_pool_is_may_copy() -> None:
    """The suggested patterns of fnmatch work, also for bracketed paths."""

    def step(states, x):
        y, new = shifting(states[0], x)
        return y, [new]

    args = [SHIFT_ARGS[0]], SHIFT_ARGS[1]
    calls = {
        "compile_step(..., {})": lambda: compile_step(step, args, SHIFT),
        "@isolated(contract, {})": lambda: isolated(SHIFT)(step)(*args),
        "lowered.compile({})": lambda: isolated(SHIFT)(step).lower(*args).compile(),
    }
    for spelling, compile in calls.items():
        with pytest.raises(AuditError) as raised:
            compile()
        (finding,) = raised.value.findings
        allowed = spelling.format("may_copy=['args[0][0]']")
        assert finding.remedy.startswith(f"If one copy in each step is acceptable, allow it: {allowed}.")
    assert compile_step(step, args, SHIFT, may_copy=["args[0][0]"]).certificate.holds


def test_a_copied_pool_that_is_returned_as_a_lane_is_named_with_its_result() -> None:
    step = LaneContract((Pool("r"), Lane()), Lane())
    with pytest.raises(AuditError) as raised:
        compile_step(lambda state, x: (x, state), SHIFT_ARGS, step)
    (finding,) = raised.value.findings
    assert finding.kind is FindingKind.POOL_COPY and finding.pools == ("args[0]",)
    assert "result[1] is its next version" in finding.remedy
    returned = LaneContract((Pool("r"), Lane()), (Lane(), Pool("r")))
    assert compile_step(lambda state, x: (x, state), SHIFT_ARGS, returned).certificate.holds


def test_64_bit_slots_of_numpy_are_those_that_jax_traces() -> None:
    """JAX takes them as int32; under `jax_enable_x64` they are refused with a remedy."""
    w, pool, _, x = args()
    slots = np.array([3, 1, 2])
    expected = compile_step(one_pool, args(), ONE)(*args()[:2], slots, x)
    traced = compile_step(one_pool, (w, pool, slots, x), ONE)
    assert traced.bound.inputs[2].dtype == np.int32
    assert_same(traced(*args()[:2], slots, x), expected)
    assert_same(isolated(ONE)(one_pool)(*args()[:2], slots, x), expected)
    with jax.enable_x64(True):
        for wide in (slots, jnp.asarray(slots), jax.ShapeDtypeStruct(slots.shape, slots.dtype)):
            with pytest.raises(ContractError) as raised:
                compile_step(one_pool, (w, pool, wide, x), ONE)
            (fault,) = raised.value.faults
            assert (fault.id, fault.about) == (ContractFault.ARRAY, "args[2]")
            assert "np.asarray(x, np.int32)" in fault.sentence


class Pair(NamedTuple):
    first: Any
    second: Any


def swapped(pools, x, extra):
    """Results in an order where JAX would give each pool the other's bytes."""
    a, b = pools
    return {"y": (extra + 1.0)}, Pair(b * 2.0 + x, a + x)


SWAPPED = LaneContract((Pair(Pool("a"), Pool("b")), Lane(), Lane()), ({"y": Lane()}, Pair(Pool("b"), Pool("a"))))


def rows(*values: float) -> tuple[jax.Array, ...]:
    return tuple(jnp.full((LANES, WIDTH), float(value)) for value in values)


def test_outputs_are_ordered_so_that_pools_meet_their_own_donors() -> None:
    a, b, x, extra = rows(1, 2, 3, 4)
    operands = (Pair(a, b), x, extra)
    step = compile_step(swapped, operands, SWAPPED)
    assert output_order(step.bound) == (2, 1, 0)
    initial = [item.unsafe_buffer_pointer() for item in (b, a)]
    out, pools = step(*operands)
    assert isinstance(pools, Pair)
    assert_same((out, pools), ({"y": extra + 1.0}, Pair(jnp.full_like(x, 7.0), jnp.full_like(x, 4.0))))
    assert [pool.unsafe_buffer_pointer() for pool in pools] == initial
    # JAX takes another path from the second call on.
    for _ in range(2):
        operands = (Pair(pools.second, pools.first), x, extra)
        expected = jax.jit(swapped)(*operands)
        expected = jax.tree.map(np.asarray, expected)
        out, pools = step(*operands)
        assert_same((out, pools), expected)


def partly_donated(state, x):
    return state["table"] + x, state["pool"] * state["table"]


PARTLY = LaneContract(({"pool": Pool("s"), "table": Lane(), "old": Pool("r")}, Lane()), (Lane(), Pool("s")))


def test_argument_that_is_donated_in_part() -> None:
    pool, table, old, x = rows(2, 3, 4, 5)
    step = compile_step(partly_donated, ({"pool": pool, "table": table, "old": old}, x), PARTLY)
    out = step({"pool": pool, "table": table, "old": old}, x)
    assert_same(out, (jnp.full_like(x, 8.0), jnp.full_like(x, 6.0)))
    assert [item.is_deleted() for item in (pool, table, old, x)] == [True, False, False, False]
    assert [verdict.successor for verdict in step.certificate.pools] == [None, "result[1]"]
    with pytest.raises(TypeError, match="was compiled for arguments"):
        step({"pool": table, "table": table}, x)
    exported = step.export("executable")
    results = exported.load()(old, out[1], table, x)
    assert [leaf.path for leaf in exported.signature.results] == ["result[1]", "result[0]"]
    assert_same(results, [jnp.full_like(x, 18.0), jnp.full_like(x, 8.0)])


def test_first_call_looks_where_the_pools_lie() -> None:
    step = compile_step(one_pool, args(), ONE)
    moved = jax.jit(one_pool)  # copies: nothing is donated
    step._entry = moved  # a stand-in
    with pytest.raises(AuditError) as raised:
        step(*args())
    assert [(f.kind, f.where) for f in raised.value.findings] == [(FindingKind.NOT_IN_PLACE, "result[1]")]
    step(*args())  # looked at once

    warned = compile_step(one_pool, args(), ONE, certify="warn")
    warned._entry = moved  # a stand-in
    with pytest.warns(CertificationWarning, match=FindingKind.NOT_IN_PLACE):
        warned(*args())


def test_pool_that_a_numpy_view_holds_is_copied_and_found() -> None:
    step = compile_step(one_pool, args(), ONE)
    settings = args()
    view = np.asarray(settings[1])
    with pytest.raises(AuditError, match=FindingKind.NOT_IN_PLACE):
        step(*settings)
    assert view.shape == (SLOTS, WIDTH)


def test_pools_from_the_host_are_not_looked_at(step: CompiledStep) -> None:
    compiled = compile_step(one_pool, args(), ONE)
    w, pool, slots, x = args()
    assert_same(compiled(w, np.array(pool), np.array(slots), x), one_pool(*args()))


def test_a_call_goes_through_no_more_functions_than_xlas(step: CompiledStep) -> None:
    """One method more than XLA's own call, from the second call on."""
    w, pool, slots, x = args()
    _, pool = step(w, pool, slots, x)

    def functions(call: Any, pool: jax.Array) -> tuple[int, jax.Array]:
        entered = 0

        def count(frame: Any, event: str, argument: Any) -> None:
            nonlocal entered
            entered += event == "call"

        sys.setprofile(count)
        try:
            _, pool = call(w, pool, slots, x)
        finally:
            sys.setprofile(None)
        return entered, pool

    _, pool = functions(step.compiled, pool)  # its first call prepares the others
    reference, pool = functions(step.compiled, pool)
    actual, pool = functions(step, pool)
    assert actual <= reference + 1


def mix_lanes(graph: rewrites.Graph, say: Any = None) -> rewrites.Graph:
    """A wrong rewrite that doubles one lane's results and loses the proof."""
    say("mixed")
    return graph.with_program(ir.inline(ir.trace(leaking, *args())))


def test_rewrite_that_breaks_the_proof() -> None:
    with pytest.raises(IsolationError) as raised:
        compile_step(one_pool, args(), ONE, passes=(mix_lanes,))
    assert any("mix-lanes" in note for note in raised.value.__notes__)
    with pytest.warns(CertificationWarning, match="mix-lanes"):
        step = compile_step(one_pool, args(), ONE, passes=(mix_lanes,), certify="warn")
    assert_same(step(*args()), one_pool(*args()))  # as traced
    assert step.certificate.proved and step.certificate.faults


def test_proof_is_reused_and_the_audit_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compile_step(one_pool, args(), ONE, certificates=tmp_path)
    assert not first.certificate.reused

    def refuse(*_: Any) -> None:
        raise IsolationError(())

    monkeypatch.setattr("ir_passes.proof.lane_proof.prove_jaxpr", refuse)
    second = compile_step(one_pool, args(), ONE, certificates=str(tmp_path))
    assert second.certificate.reused
    assert second.certificate == first.certificate
    assert second.audit is not None and second.audit.values
    assert_same(second(*args()), one_pool(*args()))
    with pytest.raises(IsolationError):
        compile_step(leaking, args(), ONE, certificates=tmp_path)
    with pytest.raises(IsolationError):
        compile_step(one_pool, args(), ONE, certificates=tmp_path, passes=())
    option = {"xla_cpu_enable_fast_math": False}
    third = compile_step(one_pool, args(), ONE, certificates=tmp_path, compiler_options=option).certificate
    assert third.reused and set(third.versions.flags) - set(first.certificate.versions.flags)


def test_proof_under_other_declarations_is_not_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_step(one_pool, args(), ONE, certificates=tmp_path)
    declared = pkgutil.resolve_name("ir_passes.contract.declared")
    monkeypatch.setitem(declared._DECLARED, "op at file:1", declared.RowWise("op", (Lane(),), (Lane(),)))
    assert not compile_step(one_pool, args(), ONE, certificates=tmp_path).certificate.reused


def test_certificates_with_faults_are_not_kept(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CertificationWarning)
        compile_step(leaking, args(), ONE, certify="warn", certificates=tmp_path)
    compile_step(leaking, args(), ONE, certify="off", certificates=tmp_path)
    assert not list(tmp_path.iterdir())


def test_exported_stablehlo(step: CompiledStep, tmp_path: Path) -> None:
    exported = step.export()
    assert exported.text is not None and "stablehlo.scatter" in exported.text
    assert "tf.aliasing_output" in exported.text
    exported.save(tmp_path / "step.zip")
    read = load_exported(tmp_path / "step.zip")
    assert (read.certificate, read.signature, read.program) == (step.certificate, exported.signature, exported.program)
    assert [leaf.path for leaf in read.signature.arguments] == [f"args[{i}]" for i in range(4)]
    assert [leaf.donated for leaf in read.signature.arguments] == [False, True, False, False]
    with pytest.raises(ExportError, match="only an executable is loaded"):
        read.load()


def test_export_with_the_certificate_of_another_step_is_refused(step: CompiledStep, tmp_path: Path) -> None:
    """A certificate with a right checksum, next to another program."""
    other = replace(step.certificate, lanes=step.certificate.lanes + 1)
    replace(step.export(), certificate=other).save(tmp_path / "step.zip")
    with pytest.raises(ExportError, match="certificate is of another program"):
        load_exported(tmp_path / "step.zip")


def test_a_step_is_exported_without_its_layouts() -> None:
    def fixed(w, pool, slots, x):
        out, pool = one_pool(w, pool, slots, with_layout_constraint(x, Layout(major_to_minor=(0, 1))))
        return out, pool

    step = compile_step(fixed, args(), ONE)
    text = step.export().text
    assert text is not None and "custom_call" not in text, "JAX does not promise to keep that one"
    assert_same(ir.as_function(without_layouts(step.jaxpr))(*args(2)), list(jax.jit(fixed)(*args(2))))


def test_exported_executable(step: CompiledStep, tmp_path: Path) -> None:
    step.export("executable").save(tmp_path / "step.zip")
    exported = load_exported(tmp_path / "step.zip")
    loaded, settings = exported.load(), args(2)
    assert_same(loaded(*settings), list(one_pool(*args(2))))
    assert settings[1].is_deleted()
    assert exported.certificate == step.certificate
    with pytest.raises(TypeError, match=r"args\[1\]: expected float32\(8, 4\), got float32\(3, 4\)"):
        loaded(settings[0], settings[3], settings[2], settings[3])
    with pytest.raises(TypeError, match="expected 4 arrays, got 1"):
        loaded(settings[0])
    with pytest.raises(TypeError, match="called under a transformation"):
        jax.jit(loaded)(*args())


def test_an_exported_executable_takes_64_bits_of_numpy_arrays(tmp_path: Path) -> None:
    """Under the default setting, too, where JAX would halve them."""
    contract = LaneContract((Pool("s"), Lane()), (Pool("s"), Lane()))
    pool, x = np.array([1, 2, 3]), np.array([10**12, 5, 6])
    with jax.enable_x64(True):
        step = compile_step(lambda pool, x: (pool + x, x), (pool, x), contract)
    step.export("executable").save(tmp_path / "step.zip")
    new, _ = load_exported(tmp_path / "step.zip").load()(pool, x)
    assert new.dtype == np.int64 and np.asarray(new).tolist() == [10**12 + 1, 7, 9] and pool.tolist() == [1, 2, 3]


def test_export_that_is_refused(step: CompiledStep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ExportError, match="form: expected one of stablehlo, executable"):
        step.export("pickle")  # type: ignore[arg-type]  # wrong on purpose
    exported = step.export("executable")
    exported.save(tmp_path / "step.zip")
    content = (tmp_path / "step.zip").read_bytes()
    (tmp_path / "cut.zip").write_bytes(content[:-40])
    with pytest.raises(ExportError, match=r"cut\.zip"):
        load_exported(tmp_path / "cut.zip")
    monkeypatch.setattr("ir_passes.compile.exported.MEMBERS", ("certificate.json", "signature.json"))
    with pytest.raises(ExportError, match=r"expected certificate\.json, signature\.json, found"):
        load_exported(tmp_path / "step.zip")
    monkeypatch.undo()
    monkeypatch.setattr(jax, "__version__", "0.0.1")
    with pytest.raises(ExportError, match=r"made for jax .*, here is 0\.0\.1"):
        exported.load()


def test_export_of_a_step_over_devices() -> None:
    mesh = jax.make_mesh((2,), ("lane",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("lane"))
    settings = tuple(jax.device_put(jnp.ones((4, 2)), sharding) for _ in range(2))
    contract = LaneContract((Pool("s"), Lane()), (Pool("s"), Lane()))
    step = compile_step(lambda pool, x: (pool + x, x * 2.0), settings, contract)
    with pytest.raises(ExportError, match="over 2 devices"):
        step.export("executable")
    assert_same(step(*settings)[0], jnp.full((4, 2), 2.0))

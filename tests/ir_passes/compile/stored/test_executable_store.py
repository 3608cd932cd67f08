"""A store of compiled steps: stored steps run, damaged or foreign ones are recompiled."""

import logging
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_settings import jax_settings

from ir_passes import (
    AuditError,
    CompiledStep,
    FindingKind,
    Lane,
    LaneContract,
    Pool,
    Shared,
    SlotMap,
    Statement,
    ViolationKind,
    compile_step,
)
from ir_passes.compile.exported import ExportError
from ir_passes.compile.proving import CertificationWarning
from ir_passes.compile.stored.entry_file import Entry, from_bytes, to_bytes
from ir_passes.compile.stored.executable_store import ExecutableStore
from ir_passes.compile.stored.stored_step import StoredStep, describe, restore

LANES, SLOTS, WIDTH = 3, 8, 4
CONTRACT = LaneContract((Shared(), Pool("s"), SlotMap("s", SLOTS), Lane()), (Lane(), Pool("s")))
KEY = "0" * 64


class Out(NamedTuple):
    """The results of the step for each lane."""

    total: Any
    absent: Any
    width: Any


def step_of(w: Any, pool: Any, slots: Any, x: Any) -> tuple[Out, Any]:
    rows = pool.at[slots].get(mode="fill", fill_value=0.0, wrap_negative_indices=False)
    new = rows * 0.5 + x @ w
    return Out(new.sum(1), None, new.max(1)), pool.at[slots].set(new, mode="drop", wrap_negative_indices=False)


def args(seed: int = 0) -> tuple[Any, ...]:
    random = np.random.default_rng(seed)
    normal = lambda *shape: jnp.asarray(random.normal(size=shape).astype(np.float32))
    return normal(WIDTH, WIDTH), normal(SLOTS, WIDTH), jnp.array([5, 1, 3], jnp.int32), normal(LANES, WIDTH)


def never() -> CompiledStep:
    raise AssertionError("the step was compiled anew")


@pytest.fixture(autouse=True, scope="module")
def no_cache_of_jax() -> Any:
    """XLA:CPU does not write all of a program that JAX took from its cache."""
    with jax_settings(jax_enable_compilation_cache=False):
        yield


@pytest.fixture(scope="module")
def step(no_cache_of_jax: None) -> CompiledStep:
    return compile_step(step_of, args(), CONTRACT)


@pytest.fixture(scope="module")
def entry(step: CompiledStep) -> Entry:
    description, program = describe(step, args(), (Out,))
    return Entry("a step", 1.5, description, step.certificate, program)


def restored(entry: Entry) -> StoredStep:
    return restore(entry.description, entry.certificate, entry.program, args(), (Out,), never)


@pytest.fixture
def store(tmp_path: Path, entry: Entry) -> ExecutableStore:
    store = ExecutableStore(tmp_path / "steps")
    assert store.keep(KEY, entry)
    return store


def file_of(store: ExecutableStore, key: str = KEY) -> Path:
    return store.directory / f"{key}.step"


def assert_same(got: Any, expected: Any) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, got, expected)


def test_a_stored_step_runs_as_before(step: CompiledStep, store: ExecutableStore) -> None:
    entry = store.find(KEY)
    assert entry is not None
    state = restored(entry)
    for seed in (1, 2):
        settings = args(seed)
        assert_same(state(*settings), step(*args(seed)))
        assert [item.is_deleted() for item in settings] == [False, True, False, False]
    assert state.certificate == step.certificate
    assert (step.certificate.stored, state.certificate.stored) == (False, True)
    assert state.certificate.seconds == step.certificate.seconds
    assert state.compiled.in_tree == step.compiled.in_tree and state.compiled.out_tree == step.compiled.out_tree
    with pytest.raises(AssertionError, match="compiled anew"):
        _ = state.in_full


def test_arguments_of_other_types_are_refused_before_anything_runs(entry: Entry) -> None:
    state = restored(entry)
    w, pool, slots, x = args()
    for wrong in ((w, pool, slots, x[:2]), (w, pool.astype(jnp.bfloat16), slots, x), (w, pool, slots)):
        with pytest.raises((TypeError, ValueError)):
            state(*wrong)
    assert not pool.is_deleted()
    with pytest.raises(ExportError, match="argument 3"):
        restore(entry.description, entry.certificate, entry.program, (w, pool, slots, x[:2]), (Out,), never)


def test_pool_that_a_numpy_view_holds_is_found(entry: Entry) -> None:
    settings = args()
    view = np.asarray(settings[1])
    with pytest.raises(AuditError, match=FindingKind.NOT_IN_PLACE):
        restored(entry)(*settings)
    assert view.shape == (SLOTS, WIDTH)


def test_results_in_another_order_and_arguments_that_are_donated_in_part() -> None:
    """Two equal-shaped pools with swapped successors, in one argument with a table."""
    contract = LaneContract(({"a": Pool("a"), "b": Pool("b"), "t": Shared()}, Lane()), (Pool("b"), Lane(), Pool("a")))
    swapped = lambda state, x: (state["b"] + x, x * state["t"], state["a"] * 2 + x)

    def given() -> Any:
        return {"a": jnp.ones((LANES, WIDTH)), "b": jnp.full((LANES, WIDTH), 3.0), "t": jnp.ones((1, WIDTH))}, jnp.ones(
            (LANES, WIDTH)
        )

    step = compile_step(swapped, given(), contract)
    assert step.calling.argnums is None and not step.calling.in_order
    description, program = describe(step, given())
    repeat = restore(description, step.certificate, program, given(), (), never)
    assert_same(repeat(*given()), swapped(*given()))


def test_steps_with_more_to_them_are_not_kept(step: CompiledStep) -> None:
    with pytest.raises(ExportError, match="Out"):
        describe(step, args())

    def told(x: Any) -> tuple[Any]:
        jax.debug.print("{}", x)
        return (x,)

    with pytest.raises(ExportError, match="effects"):
        describe(compile_step(told, (jnp.ones(3),), LaneContract((Lane(),), (Lane(),)), certify="off"), (jnp.ones(3),))


def damage(content: bytes, number: int) -> bytes:
    """Damage of five kinds: cut, extended, flipped, reordered, or replaced bytes."""
    rng = random.Random(number)
    index, kind = rng.randrange(len(content)), number % 5
    if kind == 0:
        return content[:index]
    if kind == 1:
        return content + content[index : index + 64]
    if kind == 2:
        index = rng.randrange(3000) if number % 2 else index
        return content[:index] + bytes([content[index] ^ 1 << rng.randrange(8)]) + content[index + 1 :]
    if kind == 3:
        return content[:44] + content[index:] + content[44:index]
    to = rng.randrange(len(content) - 64)
    return content[:to] + content[index : index + 64].ljust(64, b"\0") + content[to + 64 :]


def test_damaged_files_are_misses_with_one_line(entry: Entry, store: ExecutableStore, caplog: pytest.LogCaptureFixture):
    full, missed = file_of(store).read_bytes(), 0
    for number in range(250):
        content = damage(full, number)
        if content == full:
            continue
        file_of(store).write_bytes(content)
        caplog.clear()
        assert store.find(KEY) is None, number
        (line,) = caplog.records
        assert line.levelno == logging.WARNING and KEY in line.getMessage()
        missed += 1
    assert missed >= 200
    assert store.keep(KEY, entry)
    caplog.clear()
    assert store.find(KEY) == entry and not caplog.records


def test_entry_of_another_key_is_a_miss(store: ExecutableStore, caplog: pytest.LogCaptureFixture) -> None:
    other = "1" * 64
    file_of(store).rename(file_of(store, other))
    assert store.find(KEY) is None and not caplog.records
    assert store.find(other) is None
    assert len(caplog.records) == 1 and "another key" in caplog.records[0].getMessage()


def test_files_and_folders_that_others_may_write_are_misses_with_one_line(
    entry: Entry, store: ExecutableStore, caplog: pytest.LogCaptureFixture
) -> None:
    file_of(store).chmod(0o620)
    assert store.find(KEY) is None
    store.directory.chmod(0o702)
    assert store.find(KEY) is None and store.find("1" * 64) is None
    assert not store.keep("2" * 64, entry) and not file_of(store, "2" * 64).exists()
    file_line, folder_line = (record.getMessage() for record in caplog.records)
    assert "620" in file_line and "702" in folder_line
    for use in (store.entries, store.forget):
        with pytest.raises(ValueError, match=r"^the folder may be written by others \(mode 702\)"):
            use()


def test_a_folder_that_cannot_be_written_is_named_once(entry: Entry, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    (tmp_path / "file").touch()
    store = ExecutableStore(tmp_path / "file" / "steps")
    assert not store.keep("1" * 64, entry) and not store.keep("2" * 64, entry)
    (record,) = caplog.records
    assert str(store.directory) in record.getMessage()


def test_store_deletes_the_least_recently_used_step(tmp_path: Path, entry: Entry) -> None:
    size = len(to_bytes(KEY, entry))
    store = ExecutableStore(tmp_path / "steps", 3 * size + 100)
    for number in "0123":
        assert store.keep(number * 64, entry)
        os.utime(file_of(store, number * 64), (1000 + int(number), 1000 + int(number)))
        if number == "2":
            assert store.find("0" * 64) == entry  # used last
    assert store.find("1" * 64) is None and store.find("0" * 64) == entry and store.find("3" * 64) == entry
    assert sorted(file.name[0] for file, _ in store.entries()) == ["0", "2", "3"]
    assert {header and header.label for _, header in store.entries()} == {"a step"}
    assert {file.bytes for file, _ in store.entries()} == {size}
    assert store.forget(size) == (2, 2 * size)
    assert store.forget() == (1, size) and store.entries() == []
    assert not ExecutableStore(tmp_path / "small", size - 1).keep(KEY, entry)


def test_files_that_were_never_finished_go_after_a_day(store: ExecutableStore) -> None:
    old, new = (store.directory / f".{name}.partial" for name in ("old", "new"))
    for path in (old, new):
        path.touch()
    os.utime(old, (1000, 1000))
    store.entries()
    assert (old.exists(), new.exists()) == (False, True)


WRITER = """
import sys
from pathlib import Path
from ir_passes.compile.stored.entry_file import from_bytes
from ir_passes.compile.stored.executable_store import ExecutableStore
content, folder = Path(sys.argv[1]).read_bytes(), Path(sys.argv[2])
entry, store = from_bytes("0" * 64, content), ExecutableStore(folder, 3 * len(content) + 200)
for number in range(60):
    assert store.keep(f"{number % 5:064d}", entry)
    assert store.find(f"{number % 5:064d}") in (None, entry)
"""


@pytest.mark.slow
def test_two_processes_write_and_forget_at_once(tmp_path: Path, entry: Entry, root: Path) -> None:
    (tmp_path / "entry").write_bytes(to_bytes(KEY, entry))
    command = [sys.executable, "-W", "error", "-c", WRITER, str(tmp_path / "entry"), str(tmp_path / "steps")]
    running = [
        subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(root)}, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for process in running:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0 and not errors, errors
    store = ExecutableStore(tmp_path / "steps")
    listed = store.entries()
    assert 1 <= len(listed) <= 4 and all(store.find(file.name.removesuffix(".step")) == entry for file, _ in listed)
    assert not list(store.directory.glob(".*"))


def shifted(w: Any, pool: Any, slots: Any, x: Any) -> tuple[Out, Any]:
    return step_of(w, pool, slots, x[::-1])


def test_certificate_of_something_else_is_refused(entry: Entry, step: CompiledStep) -> None:
    """All sha256 are right; the certificate is foreign, outdated, or no proof."""
    right = entry.certificate
    assert right.fingerprints.hlo is not None
    other = compile_step(shifted, args(), CONTRACT, certify="off")
    fault = Statement(ViolationKind.CROSS_LANE, "", "A leak.")
    wrong = [
        replace(entry, program=describe(other, args(), (Out,))[1]),
        replace(entry, certificate=replace(right, fingerprints=replace(right.fingerprints, hlo="0" * 64))),
        replace(entry, certificate=replace(right, fingerprints=replace(right.fingerprints, hlo=None))),
        replace(entry, certificate=replace(right, versions=replace(right.versions, jaxlib="0.0.0"))),
        replace(entry, certificate=replace(right, versions=replace(right.versions, compiler="0" * 64))),
        replace(entry, certificate=replace(right, versions=replace(right.versions, device="other"))),
        replace(entry, certificate=replace(right, versions=replace(right.versions, flags=()))),
        replace(entry, certificate=replace(right, faults=(fault,))),
        replace(entry, certificate=replace(right, proved=())),
    ]
    for item in wrong:
        with pytest.raises(ExportError):
            restored(item)
    assert restored(entry).certificate == step.certificate


def test_step_with_faults_is_not_kept() -> None:
    """Each process that compiles it warns of them."""
    with pytest.warns(CertificationWarning):
        faulty = compile_step(shifted, args(), CONTRACT, certify="warn")
    with pytest.raises(ExportError, match="no proof"):
        describe(faulty, args(), (Out,))


def test_description_that_does_not_fit_is_refused(entry: Entry) -> None:
    """A wrong description in a file with right sha256 sums."""
    described = entry.description
    (selection,) = described.successors
    for wrong in (
        replace(described, order=(0, 0, 1)),
        replace(described, kept=(0, 1, 2, 9)),
        replace(described, kept=(0, 1, 3, 2)),
        replace(described, donated=(0,)),
        replace(described, successors=(replace(selection, result=7),)),
        replace(described, leaves=5),
        replace(described, tree="[0, 0]"),
        replace(described, tree='{"Rows": [0]}'),
        replace(described, tree='{"Out": [0]}'),
        replace(described, tree="[" * 10_000),
        replace(described, results=described.results[1:]),
        replace(described, arguments=described.arguments[1:]),
    ):
        with pytest.raises(ExportError):
            restored(replace(entry, description=wrong))
    assert from_bytes(KEY, to_bytes(KEY, entry)) == entry

"""Buffer assignments of executables without access to them: dumped by XLA, stored, matched."""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from audited_steps import (
    LANES,
    ROW,
    ROWS,
    TWO,
    Step,
    gather_compute_scatter,
    pool,
    right_steps,
    row_pool_twice,
    slots,
    two_pools,
    x,
)
from audited_steps import ONE as CONTRACT
from jax_settings import jax_settings
from without_assignment import WithoutAssignment, erase, hide_assignments

from hybridlm.compiler import xla_audit
from ir_passes import AuditError
from ir_passes.compile import buffer_assignment
from ir_passes.compile.compile_step import compile_step
from ir_passes.compile.compiled_step import CompiledStep
from ir_passes.compile.proving import CertificationWarning

ARGS = (pool(), slots(), x())
RIGHT = Step(gather_compute_scatter, CONTRACT, ARGS)
WRONG = Step(row_pool_twice, ROWS, (jnp.zeros((LANES, *ROW)), jnp.ones(LANES, bool), x()))
OTHER = Step(two_pools, TWO, (pool(), pool(), slots(), x()))
PROVED = sorted(set(right_steps()) - {"branches"})
"""The one left out chooses by the first lane's row what all of them compute."""


def compiled(step: Step = RIGHT, **options: Any) -> CompiledStep:
    return compile_step(step.fn, step.args, step.contract, **options)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path) -> Iterator[Path]:
    """A private compilation cache, empty until `keep_programs`."""
    path = tmp_path / "cache"
    with jax_settings(jax_compilation_cache_dir=str(path), jax_persistent_cache_min_compile_time_secs=1e9):
        yield path


def keep_programs() -> None:
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def programs(cache: Path) -> int:
    return len(list(cache.glob("*-cache")))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary folders."""
    path = tmp_path / "temporary"
    path.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    return path


@pytest.mark.parametrize("name", PROVED)
def test_audits_of_dump_and_executable_agree(name: str, folder: Path, monkeypatch) -> None:
    settings = compiled(right_steps()[name], passes=(), may_copy=["*"])
    executable = hide_assignments(monkeypatch)
    written = compiled(right_steps()[name], passes=(), may_copy=["*"])
    assert settings.audit is not None and written.audit is not None
    assert replace(written.audit, seconds=0.0) == replace(settings.audit, seconds=0.0)
    assert written.certificate == settings.certificate and written.certificate.not_audited is None
    assert executable and all(buffer_assignment.FOLDER in options for options in executable)
    assert list(folder.iterdir()) == []


def test_faults_are_found_in_the_dump_of_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AuditError) as error:
        compiled(WRONG, passes=())
    hide_assignments(monkeypatch)
    with pytest.raises(AuditError) as written:
        compiled(WRONG, passes=())
    assert written.value.findings == error.value.findings


def test_folder_goes_when_the_compilation_fails(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path, options: dict[str, Any]) -> None:
        assert path.parent == folder and list(path.iterdir()) and path.stat().st_mode & 0o77 == 0
        raise RuntimeError("out of memory")

    hide_assignments(monkeypatch, fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        compiled()
    assert list(folder.iterdir()) == []


def test_folder_of_the_users_own_is_used_and_left(folder: Path, tmp_path: Path, monkeypatch) -> None:
    hide_assignments(monkeypatch)
    directory = tmp_path / "own"
    step = compiled(compiler_options={buffer_assignment.FOLDER: str(directory)})
    assert step.certificate.holds and list(directory.glob("*gather_compute_scatter*after_optimizations.hlo.pb"))
    assert list(folder.iterdir()) == []


def test_step_without_an_assignment_is_proved_and_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = compiled()
    hide_assignments(monkeypatch, erase)
    step = compiled()
    certificate = step.certificate
    assert step.audit is None and certificate.not_audited is not None and "XLA wrote none" in certificate.not_audited
    assert (certificate.proved, certificate.assumed, certificate.faults) == (
        extra.certificate.proved,
        extra.certificate.assumed,
        (),
    )
    assert (
        certificate.is_proof
        and not certificate.holds
        and certificate.audited == ()
        and certificate.fingerprints.hlo is None
    )
    assert certificate.memory.temp == extra.certificate.memory.temp
    for text in (step.report(), repr(step), step._repr_html_()):
        assert "proved, NOT AUDITED" in text
    assert certificate.not_audited in step.report()
    fresh = (pool(), slots(), x())
    new, sums = step(*fresh)
    expected, expected_sums = gather_compute_scatter(*ARGS)
    assert (new == expected).all() and abs(sums - expected_sums).max() < 1e-5
    assert fresh[0].is_deleted()


def test_platform_that_gives_out_nothing_after_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU is not asked for a dump: it is compiled once."""
    executable = hide_assignments(monkeypatch)
    monkeypatch.setattr(buffer_assignment, "GIVEN_OUT", frozenset({"cpu"}))
    assert compiled().certificate.not_audited is not None
    assert executable == [{}]


def test_platform_whose_operations_the_audit_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a dump is readable, but its findings would be no faults."""
    executable = hide_assignments(monkeypatch)
    monkeypatch.setattr(buffer_assignment.jax_private, "platform_of", lambda _: "metal")
    reason = compiled().certificate.not_audited
    assert reason is not None and "metal" in reason and executable == [{}]


def test_program_that_jaxs_cache_has_is_compiled_and_written(cache: Path, tmp_path: Path, monkeypatch) -> None:
    keep_programs()
    executable = hide_assignments(monkeypatch)
    compiled(passes=(), certify="off")
    initial = programs(cache)
    first, program = (compiled(passes=(), certificates=tmp_path / "certificates") for _ in range(2))
    assert first.certificate.holds and program.certificate == first.certificate and program.certificate.reused
    assert len(executable) == 3 and programs(cache) == initial == 1


def of_the_same_name(pool, slots, x):
    rows = pool[slots] * 0.25 + x
    return pool.at[slots].set(rows), jnp.tanh(rows).sum((1, 2))


of_the_same_name.__name__ = gather_compute_scatter.__name__
DAMAGES = ["cut off", "of another program", "of another constant", "of another placement", "no protobuf"]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_dump_is_not_used_for_another_program(damage: str, tmp_path: Path, monkeypatch) -> None:
    another = OTHER if damage == "of another program" else Step(of_the_same_name, CONTRACT, ARGS)
    hide_assignments(monkeypatch)
    compiled(another, compiler_options={buffer_assignment.FOLDER: str(tmp_path / "other")})
    monkeypatch.undo()
    (other,) = (tmp_path / "other").glob("*after_optimizations.hlo.pb")

    def spoil(folder: Path, options: dict[str, Any]) -> None:
        (path,) = folder.glob("*after_optimizations.hlo.pb")
        dump = path.read_bytes()
        if damage == "cut off":
            path.write_bytes(dump[:-9])
        elif damage == "no protobuf":
            path.write_bytes(b"\xff" * 64)
        elif damage in ("of another program", "of another constant"):
            path.write_bytes(other.read_bytes())
        else:
            # One more allocation, index 99, of 64 bytes of scratch, after the others.
            path.write_bytes(dump + bytes([3 << 3 | 2, 6, 3 << 3 | 2, 4, 8, 99, 16, 64]))

    hide_assignments(monkeypatch, spoil)
    assert compiled().certificate.not_audited is not None


def test_right_one_of_several_dumps_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other"
    hide_assignments(monkeypatch)
    compiled(OTHER, compiler_options={"xla_dump_to": str(other)})
    monkeypatch.undo()
    settings = compiled()

    def add(path: Path, options: dict[str, Any]) -> None:
        (another,) = other.glob("*after_optimizations.hlo.pb")
        (path / "a.after_optimizations.hlo.pb").write_bytes(b"\xff" * 64)
        (path / "b.after_optimizations.hlo.pb").write_bytes(another.read_bytes())
        (actual,) = path.glob("module_*after_optimizations.hlo.pb")
        (path / "c.after_optimizations.hlo.pb").write_bytes(actual.read_bytes()[:-200])

    hide_assignments(monkeypatch, add)
    assert compiled().certificate == settings.certificate


def test_dump_that_is_too_large_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    executable = hide_assignments(monkeypatch)
    monkeypatch.setattr(buffer_assignment, "MAX_DUMP_BYTES", 1000)
    reason = compiled().certificate.not_audited
    assert reason is not None and "more than 1000" in reason and len(executable) == 1


def test_proof_of_a_step_that_was_not_audited_is_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hide_assignments(monkeypatch, erase)
    first, repeat = (compiled(certificates=tmp_path / "certificates").certificate for _ in range(2))
    assert first.not_audited and repeat == first and (first.reused, repeat.reused) == (False, True)


def test_backend_that_does_not_know_sizes_either(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = compiled()
    hide_assignments(monkeypatch)
    monkeypatch.setattr(WithoutAssignment, "memory_analysis", lambda self: None)
    step = compiled()
    assert settings.audit is not None and step.audit is not None and step.certificate.holds
    assert step.audit.temp_bytes == settings.audit.temp_bytes > 0


def test_executable_that_cannot_be_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dump that is there and cannot be read does not count as absent."""

    class Runtime:
        def hlo_modules(self) -> list[str]:
            return ["one", "two"]

    hide_assignments(monkeypatch)
    monkeypatch.setattr(WithoutAssignment, "runtime_executable", lambda _: Runtime(), raising=False)
    with pytest.raises(xla_audit.HloError, match="one HLO module, got 2"):
        compiled()
    with pytest.warns(CertificationWarning, match="got 2"):
        certificate = compiled(certify="warn").certificate
    assert certificate.not_audited is not None and certificate.faults and not certificate.is_proof

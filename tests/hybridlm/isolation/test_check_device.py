"""scripts/check_device.py: records, page and archives after faults, hangs and kills.

.ci/run rehearses the whole script every third day, `.ci/long bare` always.
"""

import argparse
import gzip
import io
import json
import runpy
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import device_archives
import device_checks
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from device_checks import golden_model
from device_engine import keep_faulty
from device_families import FAMILIES, NUMBERS
from device_kernel_cases import kernel_cases
from device_kernel_check import compare_case, compile_case
from device_layers import LAYERS, LayerStep, keep_failed, layer_engine, step_name
from device_page import MAX_LINES, page
from device_records import FAILED, KINDS, NOT_RUN, PASSED, Failure, NotRun, Records, read_records
from device_timing import loop_seconds, looped, profiled

import hybridlm


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return Records(tmp_path, tmp_path / "evidence", "kernels", 60.0)


def wrong() -> dict[str, Any]:
    raise ValueError("lane 1 | ``` \n changed")


def unequal() -> dict[str, Any]:
    raise Failure("expected no error, got 2", {"error": 2.0})


def unavailable() -> dict[str, Any]:
    raise NotRun("no kernel takes this size")


def test_each_check_has_a_record_with_its_verdict_and_figures(records: Records, tmp_path: Path) -> None:
    saved: list[str] = []
    works: dict[str, Callable[[], Any]] = {
        "a": lambda: {"us": np.float32(2)},
        "b": wrong,
        "c": unequal,
        "d": unavailable,
    }
    for name, work in works.items():
        records.check(name, work, lambda name=name: saved.append(name))
    result = {record["name"]: record for record in read_records(tmp_path)}
    assert [record["verdict"] for record in result.values()] == [PASSED, FAILED, FAILED, NOT_RUN]
    assert result["a"]["figures"] == {"us": 2.0} and result["c"]["figures"] == {"error": 2.0}
    assert "in wrong" in result["b"]["traceback"] and result["b"]["why"].startswith("ValueError: lane 1")
    assert saved == ["b", "c"]


def test_checks_behind_the_deadline_do_not_run(tmp_path: Path) -> None:
    Records(tmp_path, tmp_path, "kernels", -1.0).check("late", lambda: pytest.fail("it ran"))
    assert [record["verdict"] for record in read_records(tmp_path)] == [NOT_RUN]


def test_a_line_that_a_kill_cut_off_is_left_out(records: Records, tmp_path: Path) -> None:
    records.check("whole", dict)
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write('{"part": "kernels", "na')
    assert [record["name"] for record in read_records(tmp_path)] == ["whole"]


def test_the_page_lists_the_plan_within_its_line_limit(records: Records, tmp_path: Path) -> None:
    records.plan(["first", "second", "missing"])
    records.check("first", lambda: {"device": "a card", "error": 0.125})
    records.check("second", wrong)
    text = page(read_records(tmp_path), ["kernels", "layers"], {"kernels": "finished"})
    assert "a card: FAILED" in text and "| first | passed | 0.0 | device a card, error 0.125 |" in text
    assert "| missing | not run (no record) |" in text and "* kernels, second: ValueError" in text
    for number in range(400):
        records.check(f"{number}", wrong if number % 2 else dict)
    lines = page(read_records(tmp_path), ["kernels", "layers"], {}).splitlines()
    assert len(lines) <= MAX_LINES and any("more in results.jsonl" in line for line in lines)
    assert any(line.startswith("* kernels, second") for line in lines)


def test_archives_hold_evidence_and_name_omitted_files(
    records: Records, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_archives, "MAX_BYTES", 24 << 10)
    records.write_arrays("few", {"x": np.arange(6, dtype=np.float32).reshape(2, 3)})
    for number in range(3):
        noise = np.random.default_rng(number).integers(0, 255, 5000, np.uint8)
        records.write_evidence("programs", f"{number}.txt", noise.tobytes())
    device_archives.write_archives(tmp_path, tmp_path / "evidence")
    with tarfile.open(tmp_path / "arrays.tar") as archive:
        (member,) = archive.getmembers()
        content = archive.extractfile(member)
        assert content is not None
        with np.load(io.BytesIO(gzip.decompress(content.read()))) as arrays:
            assert arrays["x"].view(np.float32).tolist() == list(range(6))
            assert arrays["x, shape"].tolist() == ["2", "3", "float32"]
    assert (tmp_path / "programs.tar").stat().st_size <= 24 << 10
    assert (tmp_path / "left-out.txt").read_text().startswith("programs/kernels-2.txt.gz")
    assert len(device_archives.RESULTS) <= device_archives.MAX_FILES and set(KINDS) >= {"arrays", "programs"}


@pytest.fixture(scope="module")
def script(root: Path) -> dict[str, Any]:
    return runpy.run_path(str(root / "scripts" / "check_device.py"))


def hanging(root: Path, out: Path, seconds: float) -> list[str]:
    """A process that records one check and then hangs."""
    code = (
        f"import sys, time; sys.path.insert(0, {str(root / 'tests/reference/device')!r});"
        "from pathlib import Path; from device_records import Records;"
        f"records = Records(Path({str(out)!r}), Path({str(out)!r}), 'kernels', 9.0); records.check('first', dict);"
        f"records.check('second', lambda: time.sleep({seconds}))"
    )
    return ["-c", code]


@pytest.mark.slow
def test_a_part_that_hangs_is_killed_and_keeps_its_records(
    script: dict[str, Any], root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = argparse.Namespace(out=tmp_path, rehearse=True, seconds=0.1, parts=["kernels"])
    check = script["Check"](options, tmp_path)
    monkeypatch.setattr(check, "_command", lambda *_: hanging(root, tmp_path, 600.0))
    monkeypatch.setitem(script["Check"].run.__globals__, "GRACE", 5.0)
    check.run()
    assert "killed at the deadline" in check.states["kernels"] and check.processes[0].poll() is not None
    assert [record["name"] for record in read_records(tmp_path)] == ["first"]
    text = (tmp_path / "page.md").read_text()
    assert "killed at the deadline" in text and "| first | passed |" in text


@pytest.mark.slow
def test_a_terminated_check_leaves_its_page(root: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(root / "scripts/check_device.py"), "--rehearse", "--parts", "preflight"]
    process = subprocess.Popen([*command, "--out", str(tmp_path), "--seconds", "9999"], stderr=subprocess.DEVNULL)
    while not (tmp_path / "page.md").exists() and process.poll() is None:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) in (0, 1) and (tmp_path / "page.md").read_text().startswith("# hybridlm on")


def test_without_a_device_the_check_ends_after_its_first_part(script: dict[str, Any], records: Records) -> None:
    options = argparse.Namespace(out=records.folder)
    check = script["Check"](options, records.folder)
    assert not check._without_device()
    records.check("device", unequal)
    assert check._without_device()


CASES = {case.name: case for case in kernel_cases("gpu", tiny=True)}


@pytest.mark.slow
def test_a_wrong_kernel_fails_and_leaves_its_arrays(records: Records) -> None:
    case = CASES["tiny, experts, 8 rows"]
    program: Future[Any] = Future()
    program.set_result(compiled := compile_case(case, "interpret", 2))
    assert compiled.loop is not None
    assert compare_case(case, program, records, 1)["error"] < 1e-6
    run = case.run
    compiled = compile_case(
        replace(case, run=lambda *args, kernels: 1.01 * run(*args, kernels=kernels)), "interpret", 2
    )
    program = Future()
    program.set_result(compiled)
    with pytest.raises(Failure) as failure:
        compare_case(case, program, records, 1)
    assert failure.value.figures["error"] == pytest.approx(0.01, rel=0.1)
    assert len(list((records.evidence / "arrays").glob("*.gz"))) == 1


@pytest.mark.slow
def test_a_failed_step_leaves_its_program(records: Records) -> None:
    """A step of the layers that is not right; a step that was not compiled has an error alone."""
    engine = layer_engine(LAYERS, 2, 256, "off", tiny=True)
    failed: Future[Any] = Future()
    failed.set_exception(RuntimeError("XLA"))
    step = LayerStep(engine, engine.shape("generate", 2, 1), 256, failed)
    keep_failed(records, {"2 x 1": step, "4 x 1": ValueError("no engine")})
    (file,) = (records.evidence / "programs").glob("*after_optimizations*.gz")
    assert file.name.startswith("kernels-2_x_1") and b"ENTRY" in gzip.decompress(file.read_bytes())


@pytest.mark.slow
def test_steps_with_faults_leave_certificates_and_programs(records: Records) -> None:
    lm = golden_model("sparse_base", "off")
    shapes = lm.engine.shape("generate", 4, 1), lm.engine.shape("generate", lm.engine.prefill_lanes, 7)
    for shape in shapes:
        lm.engine.program(shape)
    program = lm.engine.program(shapes[0])
    program.certificate = replace(program.certificate, proved=())
    keep_faulty(records, "sparse_base", [lm])
    names = sorted(file.name for file in (records.evidence / "programs").glob("*.gz"))
    assert len(names) == 2 and all(name.startswith("kernels-sparse_base-generate_4x1_of_4") for name in names)
    assert any(name.endswith(".json.gz") for name in names)


def test_a_loop_repeats_an_operation_on_its_state() -> None:
    x, state = jnp.arange(4.0), jnp.zeros(4)
    run = jax.jit(looped(lambda x, state: (x, state + x), 0, {1: 1}, turns=6), donate_argnums=2)
    last, total = run(2 * x, x, state)
    assert last.tolist() == (2 * x).tolist() and total.tolist() == (9 * x).tolist()
    assert loop_seconds(run, (x, jnp.zeros(4)), 0, {1: 1}, 6) > 0


def test_a_profile_counts_operations_that_ran() -> None:
    run = jax.jit(lambda x: x @ x)
    profile = profiled(lambda: jax.block_until_ready(run(jnp.ones((64, 64)))))
    assert profile.launches and profile.content and not any(name.startswith("$") for name in profile.largest)


def test_numbers_of_a_cpu_are_there_for_each_family() -> None:
    with np.load(NUMBERS) as numbers:
        assert {name.partition("/")[0] for name in numbers} == set(FAMILIES)
        assert all(np.isfinite(numbers[f"{name}/logprobs"]).all() for name in FAMILIES)
    assert NUMBERS.stat().st_size < 1 << 17


def test_names_of_steps_differ() -> None:
    assert step_name(8, 1, 131072, 4096) == "8 x 1, 4,096 of 131,072"


@pytest.mark.parametrize(("faults", "absent", "message"), [
    ((), None, None),
    (("in-place: pool",), None, "in-place: pool"),
    ((), "no buffer assignment", "no buffer assignment"),
])  # fmt: skip
def test_steps_that_are_refused_or_not_audited_are_faults(
    faults: tuple[str, ...], absent: str | None, message: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = SimpleNamespace(faults=faults, not_audited=absent, is_proof=not faults, copies=(), state="")
    engine = SimpleNamespace(program=lambda shape: None)
    lm: hybridlm.LM = SimpleNamespace(certificates={"generate 4x1": certificate}, engine=engine)  # type: ignore[assignment]
    monkeypatch.setattr(device_checks, "all_shapes", lambda *_, **__: [])
    if message is None:
        assert device_checks.certificates(lm) == {"steps": 1, "pool-sized copies": 0}
        return
    with pytest.raises(Failure, match=message):
        device_checks.certificates(lm)


def test_results_are_json_lines(records: Records, tmp_path: Path) -> None:
    records.check("a", lambda: {"array": jnp.float32(1.5), "path": tmp_path})
    (line,) = (tmp_path / "results.jsonl").read_text().splitlines()
    assert json.loads(line)["figures"] == {"array": 1.5, "path": str(tmp_path)}

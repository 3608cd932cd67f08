"""`hybridlm verify --abstract`: prove and plan steps from config.json without weights or compilation."""

import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest
from command_line import run_command
from leaking_steps import plant_leak
from planned_engines import planned_engine
from published import LFM2, PUBLISHED

from hybridlm.compiler.planned import PlannedStep
from hybridlm.engine.abstract import SERVING, abstract_engine
from ir_passes import Claim, NotCovered

ROW = r"\s*│\s*".join((r"(generate|verify|score)", r"(\d+)", r"(\d*)", r"(\d+)", "yes", r"([\d,]+) B", r"([\d,]+) B"))
# Three layers, of the kinds that LFM2 has.
SHALLOW = {name: value for name, value in LFM2.items() if name != "full_attn_idxs"} | {
    "num_hidden_layers": 3,
    "layer_types": ["conv", "full_attention", "conv"],
}


def run(*options: str | Path, code: int = 0) -> str:
    return run_command("verify", *options, code=code).output


def ids(step: PlannedStep) -> set[str]:
    return {claim.id for claim in step.proved}


def written(directory: Path, fields: dict[str, Any]) -> Path:
    path = directory / "some.json"
    path.write_text(json.dumps(fields))
    return path


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No compilation, and no array but the small ones that a trace holds."""

    def refused(*args: Any, **options: Any) -> Any:
        raise AssertionError("compiled or put on the device")

    monkeypatch.setattr(jax.stages.Lowered, "compile", refused)
    monkeypatch.setattr(jax, "device_put", refused)


@pytest.mark.slow
def test_steps_are_proved_and_planned(tmp_path: Path, nothing_runs: None) -> None:
    output = run("--abstract", "--config", written(tmp_path, SHALLOW))
    rows = re.findall(ROW, output)
    entries = [row[:3] for row in rows]
    assert entries == [
        ("generate", "8", "256"),
        ("generate", "64", "1"),
        ("verify", "64", "5"),
        ("score", "8", "256"),
    ]
    assert all(int(row[4].replace(",", "")) > 0 for row in rows)
    # 64 positions x 64 blocks of keys and values of 8 heads of 64, two convolutions of 2048 with 2 inputs, a token
    assert {row[5] for row in rows} == {f"{4096 * 2 * 8 * 64 * 4 + 2 * 2 * 2048 * 4 + 4:,}"}
    assert "all 4 steps are proved; nothing was compiled" in output
    assert Claim.NON_INTERFERENCE in output and NotCovered.COMPILED_PROGRAM in output


@pytest.mark.slow
def test_sizes_are_options(tmp_path: Path) -> None:
    options = ("--lanes", "2", "--chunk", "4", "--context", "128", "--dtype", "float32")
    engine = planned_engine(written(tmp_path, SHALLOW), lanes=2, context=128, dtype="float32", chunk=4)
    assert {str(param.dtype) for param in engine.params} == {"float32"}
    output = run("--abstract", "--config", written(tmp_path, SHALLOW), *options)
    assert "rows of 128 positions" in output
    assert [row[1:3] for row in re.findall(ROW, output)] == [
        ("2", "4"), ("2", "1"), ("2", "5"), ("2", "4"),
    ]  # fmt: skip


@pytest.mark.long
def test_devices_need_not_be_there(tmp_path: Path, nothing_runs: None) -> None:
    """Sixteen absent devices: memory and traffic of each."""
    options = ("--lanes", "4", "--chunk", "4", "--context", "128", "--dtype", "float32", "--mesh", "data=2,model=8")
    output = run("--abstract", "--config", written(tmp_path, SHALLOW), *options)
    single = planned_engine(written(tmp_path, SHALLOW), lanes=4, context=128, dtype="float32", chunk=4)
    size = planned_engine(
        written(tmp_path, SHALLOW), lanes=4, context=128, dtype="float32", chunk=4, mesh={"data": 2, "model": 8}
    )
    assert size.row_bytes_on_a_device == (single.row_bytes_on_a_device - 4) // 8 + 4
    norms = 7 * 2048 + 2 * 64
    count = sum(param.size for param in single.params)
    assert single.parameters_on_a_device == (count, 4 * count)
    assert size.parameters_on_a_device == ((count - norms) // 8 + norms, ((count - norms) // 8 + norms) * 4)
    # the embedding and six branches, of two lanes of 2048; the logits of 8192 tokens of two lanes
    text = " ".join(output.split())
    assert "exchanged by generate 4x1: 7 x psum over model of 16384 bytes (float32) by each of 8 devices" in text
    assert "1 x all_gather over model of 65536 bytes (float32) by each of 8 devices" in text
    sent = 7 * 2 * 7 * 16384 // 8 + 7 * 65536
    assert f"8 │ {sent / 1000:.4g} kB │" in text and "sent by each" in text
    # a row that moves is summed along data
    assert "exchanged by copy from" not in text and "psum over data of 4 bytes (int32) by each of 2 devices" in text


def test_leak_is_the_exit_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant_leak(monkeypatch, "score_step")
    output = run("--abstract", "--config", written(tmp_path, SHALLOW), "--lanes", "2", "--chunk", "4", code=1)
    assert re.search(r"score\s*│\s*2\s*│\s*4\s*│\s*│\s*NO", output)
    assert "The step is score 2x4 of 2 (lanes x tokens)." in output and "1 of 4 steps failed" in output


@pytest.mark.parametrize(("options", "message"), [
    ((), "expected --model, or --config with --abstract, got neither"),
    (("--config", "c.json"), "--config: a config.json without its weights can only be verified with --abstract"),
    (("--model", "m", "--config", "c.json"), "--model and --config: expected one of them, got both"),
    (("--model", "m", "--config", "c.json", "--abstract"), "expected one of them, got both"),
    (("--abstract",), "--abstract: expected --config, the path of a config.json, got neither"),
    (("--abstract", "--model", "m"), "--abstract: expected --config, the path of a config.json, got --model"),
    (("--abstract", "--config", "c.json", "--out", "d"), "--out: a certificate is of a compiled step"),
    (("--abstract", "--config", "missing.json"), "missing.json: expected a file, found none"),
])  # fmt: skip
def test_options_that_contradict_each_other(options: tuple[str, ...], message: str) -> None:
    output = run(*options, code=1)
    assert message in output


def test_plan_is_the_one_of_the_compiled_step(tmp_path: Path) -> None:
    """The same program, proof and arena as when the step is compiled."""
    engine = planned_engine(written(tmp_path, SHALLOW), lanes=2, context=128, dtype="float32", chunk=4)
    shape = engine.moves.shapes(2, engine.pages(2))[0]
    planned = engine.planned(shape)
    compiled = engine.program(shape)
    certificate = compiled.certificate
    assert (planned.equations, planned.plan.lower_bound) == (certificate.equations, compiled.plan.lower_bound)
    assert (planned.proved, planned.assumed) == (certificate.proved, certificate.assumed)
    assert planned.seconds["compile"] == planned.seconds["lower"] == 0 < planned.seconds["prove"]


IN_SHORT = "LFM2-1.2B"
OTHERS = [name for name in PUBLISHED if name != IN_SHORT]
WITH_HEAD = ["Qwen3-Next-80B", "Qwen3.5-35B-A3B"]


@pytest.mark.long
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models(tmp_path: Path, name: str, nothing_runs: None) -> None:
    """Prove every layer of a published model in a minute of one core.

    64 sequences decode, 8 prompts have 256 tokens; the verifying step commits accepted tokens.
    """
    start = time.process_time()
    engine = planned_engine(written(tmp_path, PUBLISHED[name]))
    shapes = engine.shape("generate", 64, 1), engine.shape("generate", 8, 256), engine.shape("verify", 64, 5)
    planned = [engine.planned(shape) for shape in shapes]
    assert time.process_time() - start < 60
    assert [step.bound.lanes for step in planned] == [64, 8, 64]
    assert [Claim.ACCEPTED in ids(step) for step in planned] == [False, False, True]
    for step in planned:
        assert Claim.NON_INTERFERENCE in ids(step)
        assert 0 < step.plan.lower_bound <= step.plan.size


@pytest.mark.long
@pytest.mark.parametrize("name", WITH_HEAD)
def test_published_models_with_their_head(tmp_path: Path, name: str, nothing_runs: None) -> None:
    """The head drafts as many tokens as are verified; both steps are proved."""
    engine = abstract_engine(written(tmp_path, PUBLISHED[name]), replace(SERVING, speculate="mtp"))
    assert engine.mtp_drafts == 4
    ordinary = planned_engine(written(tmp_path, PUBLISHED[name]))
    assert engine.row_bytes_on_a_device > ordinary.row_bytes_on_a_device, "keys, values and a hidden state of the head"
    for shape in (engine.shape("generate", 64, 1, mtp_drafts=4), engine.shape("verify", 64, 5, mtp_drafts=4)):
        step = engine.planned(shape)
        assert Claim.NON_INTERFERENCE in ids(step)
        assert (Claim.ACCEPTED in ids(step)) == (shape.step == "verify")


@pytest.mark.parametrize("name", [IN_SHORT, *(pytest.param(name, marks=pytest.mark.long) for name in OTHERS)])
def test_states_of_published_models_are_moved_by_proved_steps(tmp_path: Path, name: str, nothing_runs: None) -> None:
    """Out of a pool of 8 rows of the real sizes, and back into it."""
    engine = planned_engine(written(tmp_path, PUBLISHED[name]))
    shapes = engine.moves.shapes(8, engine.pages(8))
    assert len(shapes) == 4
    for shape in shapes:
        step = engine.planned(shape)
        assert step.bound.lanes == 1 and Claim.NON_INTERFERENCE in ids(step)

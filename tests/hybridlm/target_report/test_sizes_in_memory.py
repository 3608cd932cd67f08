"""Memory of planned quantised models: packed parameters, and the table."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from published import PUBLISHED
from size_table import LARGE, SCHEMES, fit, row, table
from typer.testing import CliRunner, Result

from hybridlm import EngineConfig, load
from hybridlm.checkpoint import open_model
from hybridlm.checkpoint.quantise import Recipe, quantise_checkpoint
from hybridlm.cli import verify
from hybridlm.cli.main import app
from hybridlm.engine.abstract import abstract_engine
from hybridlm.target_report.fit import fit_of
from ir_passes.targets import read_target

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = ROOT / "tests" / "golden"
CONFIG = ("--config", str(GOLDEN / "sparse_base" / "config.json"))


def test_size_of_a_quantised_checkpoint(tmp_path: Path) -> None:
    """A plan and a target count the bytes that `load` keeps."""
    quantise_checkpoint(GOLDEN / "sparse_base", tmp_path / "copy", scheme="fp8-block")
    parameters_on_a_device = load(tmp_path / "copy", lanes=2, context=32, dtype="float32").engine.parameters_on_a_device
    config, target = tmp_path / "copy" / "config.json", read_target("nvidia-h100")
    directory, _, _ = open_model(tmp_path / "copy")
    planned = abstract_engine(
        config, EngineConfig(lanes=2, context=32, dtype="float32"), target=target, recipe=Recipe.of("fp8-block")
    )
    of_headers = abstract_engine(
        config, EngineConfig(lanes=2, context=32, dtype="float32"), target=target, checkpoint=directory
    )
    assert planned.parameters_on_a_device == of_headers.parameters_on_a_device == parameters_on_a_device
    plain = abstract_engine(config, EngineConfig(lanes=2, context=32, dtype="float32"))
    assert (
        plain.parameters_on_a_device[0] == parameters_on_a_device[0]
        and plain.parameters_on_a_device[1] > parameters_on_a_device[1]
    )


def run(*options: str) -> Result:
    sizes = ("--lanes", "4", "--context", "64", "--chunk", "8", "--abstract", "--target", "nvidia-h100")
    return CliRunner().invoke(app, ["verify", *CONFIG, *sizes, *options], catch_exceptions=False)


def test_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """One step is proved; the others equal any abstract model's."""

    shapes = lambda engine, *_, **__: [engine.moves.shapes(engine.rows, engine.pages(engine.rows))[0]]
    monkeypatch.setattr(verify, "all_shapes", shapes)
    results = [
        run(),
        *(run("--scheme", "int4", "--group-size", "8", *options) for options in ((), ("--mixers",), ("--head",))),
    ]
    for result in results:
        assert result.exit_code == 0 and "on each NVIDIA H100" in result.output and "are left" in result.output
    assert len({result.output for result in results}) == len(results)
    small = replace(read_target("nvidia-h100"), memory=1000)
    monkeypatch.setattr(verify, "read_target", lambda name: small)
    result = run()
    assert result.exit_code == 1 and "DOES NOT FIT" in result.output


def test_a_scheme_is_of_a_plan() -> None:
    for options in (
        (*CONFIG, "--abstract", "--mixers"),
        ("--model", "m", "--scheme", "int8"),
        ("--model", "m", "--target", "nvidia-h100", "--scheme", "int8"),
    ):
        result = CliRunner().invoke(app, ["verify", *options], catch_exceptions=False)
        assert result.exit_code == 1 and "--scheme" in result.output


@pytest.mark.parametrize(("name", "scheme", "target", "fits"), [
    ("Qwen3-Next-80B", None, "nvidia-h200", False),
    ("Qwen3-Next-80B", "fp8-block", "nvidia-h200", True),
    ("Qwen3-Next-80B", "nvfp4", "nvidia-h100", True),
])  # fmt: skip
def test_published_models_fit(name: str, scheme: str | None, target: str, fits: bool) -> None:
    assert fit(name, scheme, target).fits == fits
    assert row(name, scheme) in (ROOT / "docs" / "tables" / "packed-weights.md").read_text()


@pytest.mark.long
def test_table() -> None:
    assert set(LARGE) <= set(PUBLISHED) and None in SCHEMES
    page = (ROOT / "docs" / "tables" / "packed-weights.md").read_text()
    assert f"<!-- sizes in memory -->\n{table()}<!-- end of sizes in memory -->\n" in page


@pytest.mark.parametrize(("cache", "fits"), [(None, False), (64 * 2048, True)])
def test_many_short_sequences_of_a_long_context_fit(cache: int | None, fits: bool, tmp_path: Path) -> None:
    """64 lanes of Qwen3.5-35B-A3B with contexts of 262,144 share pages for 2,048 tokens each."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(PUBLISHED["Qwen3.5-35B-A3B"]))
    options = EngineConfig(lanes=64, context=262_144, dtype="bfloat16", cache=cache)
    target = read_target("nvidia-h100")
    engine = abstract_engine(path, options, target=target, recipe=Recipe.of("fp8-block"))
    assert target.memory is not None
    assert fit_of(engine, target.memory, target.platform, 2 * 10**9, None).fits == fits

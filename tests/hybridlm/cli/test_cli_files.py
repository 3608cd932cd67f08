"""Commands that answer every row of a file; each method tests the numbers."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from command_line import give_classifier, load_in_commands, run_command
from text_checkpoint import SETTINGS

import hybridlm
from hybridlm.cli import options

TEXTS = ["Ada has the kite.", "Ben", "", "Where is it?"]
QUESTIONS = {"tone": {"type": "choice", "instructions": "Tone?", "criteria": {"calm": None, "pushy": None}}}


@pytest.fixture
def lm(text_lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch) -> hybridlm.LM:
    """The model that all commands load, with a head of three classes."""
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(3, text_lm.config.hidden_size)).astype(np.float32)
    give_classifier(monkeypatch, text_lm, weight, "good", "bad", "ugly")
    load_in_commands(monkeypatch, text_lm)
    return text_lm


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_embed_lines_of_text(lm: hybridlm.LM, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_bytes("\r\n".join(TEXTS).encode() + b"\n\xff\n\n")
    arguments = ("embed", "-m", "tiny", "--pooling", "mean", "--as-it-is", tmp_path / "in.txt")
    result = run_command(*arguments, tmp_path / "out.parquet", code=3)
    assert "3 texts of" in result.stderr
    actual = pq.read_table(tmp_path / "out.parquet").to_pylist()
    errors = [row["error"] for row in actual]
    assert [error is None for error in errors] == [True, True, False, True, False]
    assert "line 3: text: is empty" in errors[2] and "line 5: expected UTF-8" in errors[4]
    vectors = np.array([row["embedding"] for row in actual if row["error"] is None], np.float32)
    expected = lm.embed([text for text in TEXTS if text], pooling="mean", normalised=False)
    np.testing.assert_allclose(vectors, expected, rtol=1e-5, atol=1e-5)
    run_command(*arguments, "--pooling", "cls", tmp_path / "x.jsonl", code=1)


def test_rewards_are_no_classes(lm: hybridlm.LM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    give_classifier(monkeypatch, lm, np.ones((1, lm.config.hidden_size), np.float32), "reward")
    (tmp_path / "in.txt").write_text("Ada\n")
    run_command("classify", "-m", "tiny", tmp_path / "in.txt", tmp_path / "out.jsonl")
    (row,) = lines(tmp_path / "out.jsonl")
    assert row == {"id": None, "logits": lm.classify(["Ada"]).logits[0].tolist()}


@pytest.mark.slow
@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
def test_divergence(
    text_lm: hybridlm.LM,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changed: Callable[[], hybridlm.LM],
    ending: str,
) -> None:
    other = changed()
    monkeypatch.setattr(options, "load", lambda name, **settings: {"plain": text_lm, "changed": other}[name])
    (tmp_path / "in.txt").write_text("\n".join([*TEXTS, "A", "x" * 300]))
    output = tmp_path / f"out{ending}"
    arguments = ("divergence", "-m", "plain", "--other", "changed", "--window", "2", tmp_path / "in.txt", output)
    result = run_command(*arguments, code=3)
    actual = lines(output) if ending == ".jsonl" else pq.read_table(output).to_pylist()
    good = [text for text in [*TEXTS, "A"] if text]
    expected = text_lm.divergence(other, good)
    assert [bool(row.get("error")) for row in actual] == [False, False, True, False, False, True]
    rows = [row for row in actual if not row.get("error")]
    for name in ("token_ids", "kl", "reverse_kl", "js", "same_top"):
        values = np.array([item for row in rows for item in row[name]], np.float64)
        np.testing.assert_allclose(values, getattr(expected, name), rtol=1e-4, atol=1e-7)
    assert rows[0]["kl"][0] is None and rows[-1]["mean_kl"] is None, "nothing predicts the first token"
    report = text_lm.divergence_file(other, tmp_path / "in.txt", output, window=2)
    assert report.predicted == len(expected.predicted) and (report.texts, report.errors) == (4, 2)
    for name in ("mean_kl", "mean_reverse_kl", "mean_js", "agreement"):
        assert getattr(report, name) == pytest.approx(getattr(expected, name), rel=1e-4)
    message = f"{report.predicted:,} predicted tokens: KL {report.mean_kl:.6g}, "
    assert result.stdout.startswith(message) and f"{report.agreement:.2%}" in result.stdout


@pytest.mark.parametrize("ids", ["5,6,x", "5,,6", "5,6,", "5, 6.0"])
def test_a_wrong_number_in_a_list_is_no_field(lm: hybridlm.LM, tmp_path: Path, ids: str) -> None:
    (tmp_path / "in.txt").write_text("Ada")
    arguments = ("score", "-m", "tiny", tmp_path / "in.txt", tmp_path / "out.jsonl", "--token-ids", ids)
    message = run_command(*arguments, code=1).stderr
    assert f"error: {ids}: expected whole numbers with commas between them, got " in message


@pytest.mark.parametrize("command", ["score", "decide", "classify", "embed", "divergence"])
def test_rows_anywhere_share_their_prefixes(lm: hybridlm.LM, tmp_path: Path, command: str) -> None:
    """Rows with three common prefixes by turns share prefixes only if they are sorted."""
    beginnings = ["Ada has the kite. " * 5, "Ben is at the lake. " * 5, "Where is the red cup? " * 4]
    texts = [f"{beginnings[i % 3]}{i}" for i in range(9)]
    rows = [{"id": i, "text": item} for i, item in enumerate(texts)]
    if command == "decide":
        rows = [{"id": i, "state": item, "questions": QUESTIONS} for i, item in enumerate(texts)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    other = ("--other", "tiny") if command == "divergence" else ()
    arguments = (command, "-m", "tiny", *other, "--window", "3", tmp_path / "in.jsonl")
    sorted_, plain = (
        run_command(*arguments, tmp_path / name, *options)
        for name, options in (("sorted.jsonl", ()), ("plain.jsonl", ("--sort-window", "0")))
    )
    assert (tmp_path / "sorted.jsonl").read_bytes() == (tmp_path / "plain.jsonl").read_bytes()
    saved = [
        int(match[1].replace(",", "")) if (match := re.search(r"([\d,]+) tokens of common prefixes", i.stderr)) else 0
        for i in (sorted_, plain)
    ]
    assert saved[0] >= 6 * 80 > 6 * 20 > saved[1], "all prompts of decide have the first words of the chat template"


@pytest.fixture
def changed(text_lm: hybridlm.LM, tmp_path: Path) -> Callable[[], hybridlm.LM]:
    """Load the same model with another norm."""

    def load() -> hybridlm.LM:
        import shutil

        from safetensors.numpy import load_file, save_file

        shutil.copytree(text_lm.path, tmp_path / "changed")
        tensors = load_file(tmp_path / "changed" / "model.safetensors")
        name = next(name for name in tensors if name.endswith("model.norm.weight"))
        tensors[name] = tensors[name] + np.float32(0.1)
        save_file(tensors, tmp_path / "changed" / "model.safetensors")
        return hybridlm.load(tmp_path / "changed", **SETTINGS)

    return load

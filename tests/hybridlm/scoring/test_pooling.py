"""Embeddings and classes: against float64 from `forward`, in any batch; unsuitable heads."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from comparison import padded
from filled import nan_token
from safetensors.numpy import load_file, save_file
from text_checkpoint import SETTINGS

import hybridlm
from hybridlm.scoring.pooling import pooled

RNG = np.random.default_rng(4)
TEXTS = [[int(i) for i in RNG.integers(3, 90, count)] for count in (23, 1, 9, 5, 14)]
WEIGHT = RNG.normal(size=(3, 1 << 12)).astype(np.float32)


@pytest.fixture(scope="module")
def hidden(text_lm: hybridlm.LM) -> list[np.ndarray]:
    """The residual stream of each text after the final norm, float64."""
    stream = text_lm.forward(padded(TEXTS)).hidden_states[-1]
    normed = np.asarray(text_lm.model.norm(stream), np.float64)
    return [rows[: len(text)] for rows, text in zip(normed, TEXTS, strict=True)]


def checkpoint(text_lm: hybridlm.LM, directory: Path, weight: np.ndarray, **fields: Any) -> Path:
    """The same model with a head of texts instead of its vocabulary head."""
    shutil.copytree(text_lm.path, directory)
    tensors = load_file(directory / "model.safetensors")
    saved = {name: tensor for name, tensor in tensors.items() if not name.endswith("lm_head.weight")}
    save_file(saved | {"score.weight": np.ascontiguousarray(weight)}, directory / "model.safetensors")
    config = json.loads((directory / "config.json").read_text()) | fields
    (directory / "config.json").write_text(json.dumps(config))
    return directory


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["last", "first", "mean"])
def test_vectors_match_float64(text_lm: hybridlm.LM, hidden: list[np.ndarray], pooling: Any) -> None:
    wanted = {"last": lambda x: x[-1], "first": lambda x: x[0], "mean": lambda x: x.mean(0)}[pooling]
    expected = np.stack([wanted(rows) for rows in hidden])
    vectors = text_lm.embed(TEXTS, pooling=pooling, normalised=False)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, expected, atol=1e-4, rtol=1e-4)
    unit = text_lm.embed(TEXTS, pooling=pooling)
    np.testing.assert_allclose(unit, expected / np.linalg.norm(expected, axis=1, keepdims=True), atol=1e-4)
    rest = text_lm.embed([[5, 6], *TEXTS[::-1], [7] * 30], pooling=pooling)
    assert rest[1:-1][::-1].tobytes() == unit.tobytes()


@pytest.mark.parametrize("pooling", ["last", "first", "mean"])
def test_common_beginnings_are_computed_once(text_lm: hybridlm.LM, pooling: Any, monkeypatch: pytest.MonkeyPatch):
    """Sharing keeps all bits, also for texts inside another's beginning and equal texts."""
    stem, options = TEXTS[0], TEXTS[4]
    texts = [[*stem, *options[:i]] for i in range(9)] + [stem[:12], stem[:12], [*stem[:10], 7, 8], stem[:1]]
    with monkeypatch.context() as patch:
        patch.setattr("hybridlm.engine.reading.max_states", lambda lanes: 0)
        vectors = text_lm.embed(texts, pooling=pooling)
    settings = dict(text_lm.stats)
    assert text_lm.embed(texts, pooling=pooling).tobytes() == vectors.tobytes()
    gained = {name: text_lm.stats[name] - settings[name] for name in settings}
    total = sum(map(len, texts))
    assert gained["scored_tokens"] + gained["prefix_tokens_saved"] == total
    assert gained["prefix_tokens_saved"] > total / 2


def test_classes(text_lm: hybridlm.LM, hidden: list[np.ndarray], tmp_path: Path, caplog: pytest.LogCaptureFixture):
    weight = WEIGHT[:, : text_lm.config.hidden_size]
    names = {"0": "good", "1": "bad", "2": "ugly"}
    lm = hybridlm.load(checkpoint(text_lm, tmp_path / "classes", weight, id2label=names), **SETTINGS)
    assert "score" not in caplog.text, "it is read, not left out"
    classes = lm.classify(TEXTS)
    expected = np.stack([rows[-1] for rows in hidden]) @ weight.T.astype(np.float64)
    np.testing.assert_allclose(classes.logits, expected, atol=1e-3, rtol=1e-4)
    powers = np.exp(expected - expected.max(1, keepdims=True))
    np.testing.assert_allclose(classes.probabilities, powers / powers.sum(1, keepdims=True), atol=1e-4)
    assert classes.labels == ("good", "bad", "ugly")
    repeat = lm.classify([[5, 6], *TEXTS[::-1], [7] * 30])
    assert repeat.logits[1:-1][::-1].tobytes() == classes.logits.tobytes()
    for refused in (
        lambda: lm.score(TEXTS),
        lambda: lm.generate(TEXTS),
        lambda: lm.session().submit([5]),
        lambda: lm.forward([5]),
        lambda: lm.divergence(text_lm, TEXTS),
        lambda: lm.score_file("in.jsonl", "out.jsonl"),
        lambda: lm.batch_file("in.jsonl", "out.jsonl"),
        lambda: lm.perplexity("abc"),
        lambda: lm.choose("a", ["b"]),
        lambda: lm.prefix([5]),
        lambda: lm.save(tmp_path / "saved"),
        lambda: lm.merge_adapter(tmp_path),
    ):
        with pytest.raises(ValueError, match="vocabulary head"):
            refused()
    with pytest.raises(ValueError, match="vocabulary head"):
        text_lm.divergence(lm, TEXTS)


@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
def test_files(text_lm: hybridlm.LM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    """Rows in input order, in windows; error rows; continuation."""
    entries = [{"id": i, "token_ids": text} for i, text in enumerate(TEXTS)]
    rows = [*entries[:2], {"id": 7, "text": ""}, {"id": 8, "prompt": "a", "completion": "b"}, *entries[2:]]
    path, out = tmp_path / "in.jsonl", tmp_path / f"out{ending}"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def interrupted(*args: Any, **options: Any) -> Any:
        if TEXTS[4] in [list(ids) for ids in args[1]]:
            raise KeyboardInterrupt
        return pooled(*args, **options)

    monkeypatch.setattr("hybridlm.score_files.text_tasks.pooled", interrupted)
    with pytest.raises(KeyboardInterrupt):
        text_lm.embed_file(path, out, pooling="mean", window=3)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="embedding"):
        text_lm.embed_file(path, out, pooling="last", window=3)
    report = text_lm.embed_file(path, out, pooling="mean", window=3)
    assert (report.texts, report.errors, report.kept, report.tokens) == (5, 2, 6, sum(map(len, TEXTS)))
    if ending == ".jsonl":
        read = [json.loads(line) for line in out.read_text().splitlines()]
    else:
        read = pq.read_table(out).to_pylist()
        assert str(pq.read_schema(out).field("embedding").type) == "list<element: float>"
    assert [row["id"] for row in read] == [0, 1, 7, 8, 2, 3, 4]
    assert read[2]["error"].startswith("line 3: ") and read[3]["error"].startswith("line 4: ")
    array = np.array([row["embedding"] for i, row in enumerate(read) if i not in (2, 3)], np.float32)
    np.testing.assert_allclose(array, text_lm.embed(TEXTS, pooling="mean"), atol=1e-5)


def test_files_of_classes(text_lm: hybridlm.LM, tmp_path: Path) -> None:
    weight = WEIGHT[:, : text_lm.config.hidden_size]
    lm = hybridlm.load(checkpoint(text_lm, tmp_path / "classes", weight), **SETTINGS)
    pq.write_table(pa.table({"token_ids": TEXTS}), tmp_path / "in.parquet")
    lm.classify_file(tmp_path / "in.parquet", tmp_path / "out.parquet")
    rows, expected = pq.read_table(tmp_path / "out.parquet").to_pylist(), lm.classify(TEXTS)
    assert np.array([row["logits"] for row in rows], np.float32).tobytes() == expected.logits.tobytes()
    assert [row["label"] for row in rows] == [expected.labels[i] for i in expected.logits.argmax(1)]
    np.testing.assert_allclose([row["probabilities"] for row in rows], expected.probabilities, rtol=1e-6)
    with pytest.raises(ValueError, match=r"^classify_file: .*score\.weight"):
        text_lm.classify_file(tmp_path / "in.parquet", tmp_path / "out.parquet")


def test_heads_that_do_not_fit(text_lm: hybridlm.LM, tmp_path: Path) -> None:
    size = text_lm.config.hidden_size
    with pytest.raises(hybridlm.CheckpointError, match="score.weight"):
        hybridlm.load(checkpoint(text_lm, tmp_path / "wide", WEIGHT[:, : size + 1]), **SETTINGS)
    names = {"0": "good", "1": "bad"}
    with pytest.raises(hybridlm.CheckpointError, match="score.weight"):
        hybridlm.load(checkpoint(text_lm, tmp_path / "few", WEIGHT[:, :size], id2label=names), **SETTINGS)
    with pytest.raises(ValueError, match=r"^classify: .*score\.weight"):
        text_lm.classify(TEXTS)
    with pytest.raises(ValueError, match="^pooling: "):
        text_lm.embed(TEXTS, pooling="cls")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="^normalised: "):
        text_lm.embed(TEXTS, normalised="no")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="^probabilities: "):
        _ = hybridlm.Classification(np.zeros((2, 1), np.float32), ("reward",)).probabilities


def test_nan_stops_the_call(text_lm: hybridlm.LM) -> None:
    common = [5] * 5 + [9] + [5] * 10
    with nan_token(text_lm), pytest.raises(hybridlm.NumericalError, match=r"texts\[1\]: token 5: "):
        text_lm.embed([[5], [*common, 6], [*common, 7]])

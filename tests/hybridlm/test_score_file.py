"""Files of JSON lines: every line answered in order, valid JSON only, nothing half written."""

import json
import math
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from text_checkpoint import SETTINGS, write_text_checkpoint

import hybridlm
from hybridlm._score_file import ScoreFileReport, score_file

CONTEXT = 8


def encode(item: Any, where: str) -> tuple[int, ...]:
    ids = tuple(item.encode()) if isinstance(item, str) else tuple(item)
    if not 0 < len(ids) <= CONTEXT:
        raise ValueError(f"{where}: has {len(ids)} tokens")
    return ids


def score_of(ids: Sequence[int]) -> hybridlm.Score:
    """A log-probability that tells which token it belongs to; 255 is not a number, 254 overflows a perplexity."""
    values = [math.nan, *(-float(token) for token in ids[1:])]
    values = [math.nan if v == -255 else -1000.0 if v == -254 else -math.inf if v == -253 else v for v in values]
    return hybridlm.Score(list(ids), np.array(values, np.float32), np.zeros(len(ids), bool), None)


def run(folder: Path, lines: Iterable[Any], **settings: Any) -> tuple[list[dict[str, Any]], ScoreFileReport]:
    """Score lines, objects or raw bytes, with a model that is none; returns the rows, read as strict JSON."""
    raw = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    (folder / "in.jsonl").write_bytes(b"\n".join(raw) + b"\n")
    report = score_file(
        encode, lambda ids: [score_of(i) for i in ids], folder / "in.jsonl", folder / "out.jsonl", **settings
    )
    return read(folder / "out.jsonl"), report


def read(path: Path) -> list[dict[str, Any]]:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    text = path.read_text()
    assert text.isascii() and (not text or text.endswith("\n"))
    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


@pytest.mark.parametrize("window", [1, 2, 3, 7, 100])
def test_rows_in_order(tmp_path: Path, window: int):
    lines = [{"id": f"line {i}", "token_ids": [9, i + 1]} for i in range(7)]
    lines[4] = {"id": "bad", "token_ids": []}
    rows, report = run(tmp_path, lines, window=window)
    assert [row["id"] for row in rows] == [line["id"] for line in lines]
    assert report == ScoreFileReport(texts=6, bad_lines=1, tokens=12)
    assert rows[2] == {
        "id": "line 2",
        "token_ids": [9, 3],
        "logprobs": [None, -3.0],
        "sum_logprob": -3.0,
        "perplexity": math.exp(3),
    }


BAD = {
    "blank": (b"", None, "blank"),
    "no JSON": (b'{"id": "x", "text"}', None, "Expecting ':' delimiter at column 19"),
    "no UTF-8": (b'{"id": "x", "text": "\xff"}', None, "UTF-8"),
    "no object": (b'["a"]', None, "expected a JSON object, got list"),
    "NaN": (b'{"id": "x", "text": NaN}', None, "NaN is not JSON"),
    "twice": (b'{"id": "x", "text": "a", "text": "b"}', None, "duplicate keys"),
    "deep": (b'{"id": "x", "text": ' + b"[" * 100_000, None, "cannot be read"),
    "no text": (b'{"id": "x", "prompt": "a"}', "x", "exactly one of text, token_ids, got none"),
    "both": (b'{"id": "x", "text": "a", "token_ids": [1]}', "x", "got text, token_ids"),
    "text of ids": (b'{"id": "x", "text": [1]}', "x", "text: expected a string, got list"),
    "ids of text": (b'{"id": 5, "token_ids": "a"}', 5, "token_ids: expected a list of token ids, got str"),
    "too long": (b'{"id": 5, "text": "123456789"}', 5, "text: has 9 tokens"),
    "id": (b'{"id": 1e999, "text": "a"}', None, "id: expected a string or a whole number, got inf"),
    "nan": (b'{"id": "x", "token_ids": [1, 2, 255]}', "x", "the logits for token 2 are not numbers"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_line(tmp_path: Path, case: str):
    line, id, fault = BAD[case]
    rows, report = run(tmp_path, [{"id": "a", "text": "a"}, line, {"id": "b", "text": "b"}])
    assert [row["id"] for row in rows] == ["a", id, "b"]
    assert set(rows[1]) == {"id", "error"} and rows[1]["error"].startswith("line 2: ") and fault in rows[1]["error"]
    assert report == ScoreFileReport(texts=2, bad_lines=1, tokens=2)


@pytest.mark.parametrize("case", BAD)
def test_strict_writes_nothing(tmp_path: Path, case: str):
    (tmp_path / "out.jsonl").write_text("old")
    with pytest.raises(ValueError, match=r"in\.jsonl: line 3: ") as raised:
        run(tmp_path, [{"text": "a"}, {"text": "a"}, BAD[case][0], {"text": "b"}], strict=True, window=1)
    assert BAD[case][2] in str(raised.value)
    assert (tmp_path / "out.jsonl").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


def test_failure_leaves_nothing(tmp_path: Path):
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n' * 3)
    calls = []

    def score(ids: Sequence[tuple[int, ...]]) -> list[hybridlm.Score]:
        calls.append(len(ids))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return [score_of(i) for i in ids]

    with pytest.raises(KeyboardInterrupt):
        score_file(encode, score, tmp_path / "in.jsonl", tmp_path / "out.jsonl", window=1)
    assert calls == [1, 1, 1]
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_long_lines_make_short_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("hybridlm._json_lines.WINDOW_BYTES", 60)
    sizes = []

    def score(ids: Sequence[tuple[int, ...]]) -> list[hybridlm.Score]:
        sizes.append(len(ids))
        return [score_of(i) for i in ids]

    (tmp_path / "in.jsonl").write_text('{"text": "a", "note": "30 bytes"}\n' * 5)
    score_file(encode, score, tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    assert sizes == [2, 2, 1] and len(read(tmp_path / "out.jsonl")) == 5


def test_numbers_that_json_lacks(tmp_path: Path):
    """A single token has no perplexity; others have one that no float can hold."""
    rows, _ = run(tmp_path, [{"token_ids": [7]}, {"token_ids": [7, 254]}, {"token_ids": [7, 253]}])
    assert [(row["logprobs"], row["sum_logprob"], row["perplexity"]) for row in rows] == [
        ([None], 0.0, None),
        ([None, -1000.0], -1000.0, None),
        ([None, None], None, None),
    ]


def test_ends_of_files_and_lines(tmp_path: Path):
    """A byte-order mark, Windows line ends, separators that only str.splitlines splits at, blank lines at the end."""
    text = "a\u2028b"
    lines = [b'\xef\xbb\xbf{"text": "a"}\r', json.dumps({"text": text}, ensure_ascii=False).encode() + b"\r", b"", b" "]
    rows, report = run(tmp_path, lines)
    assert report.bad_lines == 0
    assert [row["token_ids"] for row in rows] == [[97], list(text.encode())]


def test_empty_file(tmp_path: Path):
    (tmp_path / "in.jsonl").touch()
    report = score_file(encode, lambda ids: [], tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    assert report == ScoreFileReport(0, 0, 0) and (tmp_path / "out.jsonl").read_text() == ""


def test_ids_survive(tmp_path: Path):
    """Any string, lone surrogates included, and whole numbers of any size."""
    ids = ["\ud800", "é\u2028", 2**80, -1, None]
    rows, _ = run(tmp_path, [{"id": id, "text": "a"} for id in ids])
    assert [row["id"] for row in rows] == ids


@pytest.mark.parametrize("output", ["in.jsonl", "link.jsonl", "folder", "/dev/null"])
def test_refuses_to_replace(tmp_path: Path, output: str):
    (tmp_path / "folder").mkdir()
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "link.jsonl").symlink_to("in.jsonl")
    with pytest.raises(ValueError, match="is the input, too" if "jsonl" in output else "no regular file"):
        score_file(encode, lambda ids: [score_of(i) for i in ids], tmp_path / "in.jsonl", tmp_path / output)
    assert (tmp_path / "in.jsonl").read_text() == '{"text": "a"}\n'
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_missing_folders(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=r"nowhere"):
        run(tmp_path, [{"text": "a"}])
        score_file(encode, lambda ids: [], tmp_path / "in.jsonl", tmp_path / "nowhere" / "out.jsonl")
    with pytest.raises(FileNotFoundError, match=r"no\.jsonl"):
        score_file(encode, lambda ids: [], tmp_path / "no.jsonl", tmp_path / "other.jsonl")
    assert not (tmp_path / "other.jsonl").exists()


def test_of_a_model(tmp_path: Path):
    """The same numbers as `score`, the faults that the model finds, more texts than lanes."""
    lm = hybridlm.load(write_text_checkpoint(tmp_path), **SETTINGS)
    texts = ["Ada has the kite.", "B", "Ben has"]
    objects: list[dict[str, Any]] = [{"id": i, "text": text} for i, text in enumerate(texts)]
    objects += [
        {"id": "ids", "token_ids": [4, 5, 96]},
        {"id": "out", "token_ids": [97]},
        {"id": "long", "text": "x" * 257},
    ]
    objects += [{"id": "no ids", "token_ids": [1, "2"]}, {"id": "empty", "text": ""}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in objects))
    report = lm.score_file(tmp_path / "in.jsonl", str(tmp_path / "out.jsonl"))
    rows = read(tmp_path / "out.jsonl")
    assert report == ScoreFileReport(texts=4, bad_lines=4, tokens=17 + 1 + 7 + 3)
    for row, score in zip(rows, lm.score([*texts, [4, 5, 96]]), strict=False):
        assert row["token_ids"] == score.token_ids and row["logprobs"][0] is None
        assert row["logprobs"][1:] == score.logprobs[1:].tolist() and row["sum_logprob"] == score.sum_logprob
        assert row["perplexity"] == (score.perplexity if len(score.token_ids) > 1 else None)
    faults = [row["error"] for row in rows[4:]]
    assert faults[0] == "line 5: token_ids: token id 97 at index 0 is outside the vocabulary [0, 97)"
    assert faults[1].startswith("line 6: text: has 257 tokens, the context holds 256")
    assert faults[2] == "line 7: token_ids: expected token ids, got '2' at index 1"
    assert faults[3] == "line 8: text: is empty; at least one token is needed"

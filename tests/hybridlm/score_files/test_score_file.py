"""Files of scores: every row answered in order, strict JSON, refused files."""

import itertools
import json
import math
import os
import re
import stat
import sys
import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest
from toy_scorer import TOY, read_lines, run_toy, score, toy, write_lines

import hybridlm
from hybridlm import MissingExtra
from hybridlm.score_files.row_progress import progress_line
from hybridlm.score_files.task import ScoreFileReport
from hybridlm.text_model import TokenCounts


def run(folder: Path, lines: Iterable[Any], **settings: Any) -> tuple[list[dict[str, Any]], ScoreFileReport]:
    """Score lines, objects or bytes without a model; return rows of strict JSON."""
    report = run_toy(TOY, write_lines(folder / "in.jsonl", lines), folder / "out.jsonl", **settings)
    return read_lines(folder / "out.jsonl"), report


@pytest.mark.parametrize("window", [1, 3, 7, 100])
def test_rows_in_order(tmp_path: Path, window: int):
    lines = [{"id": f"line {i}", "token_ids": [9, i + 1]} for i in range(7)]
    lines[4] = {"id": "bad", "token_ids": []}
    rows, report = run(tmp_path, lines, window=window)
    assert [row["id"] for row in rows] == [line["id"] for line in lines]
    assert report == ScoreFileReport(tmp_path / "out.jsonl", texts=6, errors=1, tokens=12, kept=0)
    assert rows[2] == {
        "id": "line 2", "token_ids": [9, 3], "logprobs": [None, -3.0], "sum_logprob": -3.0, "perplexity": math.exp(3),
    }  # fmt: skip
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


BAD = {
    "blank": (b"", None, "blank"),
    "no JSON": (b'{"id": "x", "text"}', None, "Expecting ':' delimiter at column 19"),
    "no UTF-8": (b'{"id": "x", "text": "\xff"}', None, "UTF-8"),
    "no object": (b'["a"]', None, "expected a JSON object, got list"),
    "NaN": (b'{"id": "x", "text": NaN}', None, "NaN is not JSON"),
    "twice": (b'{"id": "x", "text": "a", "text": "b"}', None, "duplicate keys"),
    "deep": (b'{"id": "x", "text": ' + b"[" * 100_000, None, "cannot be read"),
    "no text": (b'{"id": "x", "title": "a"}', "x",
                "exactly one of text, token_ids, input_ids, prompt, messages, got none"),
    "null": (b'{"id": "x", "text": null, "prompt": null}', "x", "messages, got none of them"),
    "both": (b'{"id": "x", "text": "a", "token_ids": [1]}', "x", "got text, token_ids"),
    "text of ids": (b'{"id": "x", "text": [1]}', "x", "text: expected a string, got list"),
    "ids of text": (b'{"id": 5, "token_ids": "a"}', 5, "token_ids: expected a list of token ids, got str"),
    "too long": (b'{"id": 5, "text": "123456789"}', 5, "text: has 9 tokens"),
    "id": (b'{"id": 1e999, "text": "a"}', None, "id: expected a string or a whole number, got inf"),
    "nan": (b'{"id": "x", "token_ids": [1, 2, 255]}', "x", "token 2: expected finite numbers"),
    "id used twice": (b'{"id": "a", "text": "c"}', "a", "id: is used twice, first in line 1"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_line(tmp_path: Path, case: str):
    line, id, fault = BAD[case]
    rows, report = run(tmp_path, [{"id": "a", "text": "a"}, line, {"id": "b", "text": "b"}])
    assert [row["id"] for row in rows] == ["a", id, "b"]
    assert set(rows[1]) == {"id", "error"} and rows[1]["error"].startswith("line 2: ") and fault in rows[1]["error"]
    assert (report.texts, report.errors, report.tokens) == (2, 1, 2)


@pytest.mark.parametrize("case", BAD)
def test_strict_writes_nothing(tmp_path: Path, case: str):
    (tmp_path / "out.jsonl").write_text("old")
    with pytest.raises(ValueError, match=r"in\.jsonl: line 2: ") as raised:
        run(tmp_path, [{"id": "a", "text": "a"}, BAD[case][0], {"text": "b"}], strict=True)
    assert BAD[case][2] in str(raised.value)
    assert (tmp_path / "out.jsonl").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


def test_null_counts_as_absent(tmp_path: Path):
    """Tables that are written as JSON lines have every column in every row."""
    lines = [{"id": None, "text": None, "token_ids": [9, 3]}, {"text": "ab", "token_ids": None, "messages": None}]
    rows, report = run(tmp_path, lines)
    assert report.errors == 0 and [len(row["token_ids"]) for row in rows] == [2, 2]


def test_ids_used_twice(tmp_path: Path):
    """Equal hashes are no duplicates: -1 and -2 collide, as do 2**61 and 1."""
    ids = [-1, -2, 1, 2**61, "7", 7, None, None, "7", -2, "7"]
    assert hash(-1) == hash(-2) and hash(1) == hash(2**61)
    rows, _ = run(tmp_path, [{"id": id, "text": "a"} for id in ids])
    errors = {i: row["error"] for i, row in enumerate(rows) if "error" in row}
    assert list(errors) == [8, 9, 10]
    assert [errors[i].split("first in ")[1].split(";")[0] for i in errors] == ["line 5", "line 2", "line 5"]


def test_long_lines_make_short_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("hybridlm.score_files.run_file.MAX_WINDOW_BYTES", 60)
    sizes: list[int] = []

    def counted(texts: Any) -> list[hybridlm.Score]:
        sizes.append(len(texts))
        return score(texts)

    write_lines(tmp_path / "in.jsonl", [{"text": "a", "note": "31 bytes.."}] * 5)
    run_toy(toy(counted), tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    assert sizes == [2, 2, 1] and len(read_lines(tmp_path / "out.jsonl")) == 5


def test_numbers_that_json_lacks(tmp_path: Path):
    """A single token has no perplexity; overflow and infinity are errors."""
    rows, report = run(tmp_path, [{"token_ids": [7]}, {"token_ids": [7, 254]}, {"token_ids": [7, 253, 3]}])
    assert [(row["logprobs"], row["sum_logprob"], row["perplexity"]) for row in rows[:2]] == [
        ([None], 0.0, None),
        ([None, -1000.0], -1000.0, None),
    ]
    assert "token 1: " in rows[2]["error"] and report.errors == 1


def test_ends_of_files_and_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Byte-order marks, Windows line ends, Unicode separators, blank lines at the end."""
    monkeypatch.setattr("hybridlm.score_files.lines.BLOCK_BYTES", 3)
    text = "a\u2028b"
    lines = [b'\xef\xbb\xbf{"text": "a"}\r', json.dumps({"text": text}, ensure_ascii=False).encode() + b"\r", b"", b" "]
    rows, report = run(tmp_path, lines)
    assert report.errors == 0
    assert [row["token_ids"] for row in rows] == [[97], list(text.encode())]
    (tmp_path / "in.jsonl").write_bytes(b'{"text": "a"}\n{"text": "b"}')
    assert run_toy(TOY, tmp_path / "in.jsonl", tmp_path / "out.jsonl").texts == 2
    # White space is a text: only line ends are no row.
    for name, names in (("in.txt", ""), ("in.csv", "text\n")):
        (tmp_path / name).write_text(f"{names}a\n  \nb\n\t\n \n\r\n\n")
        assert run_toy(TOY, tmp_path / name, tmp_path / "out.jsonl").texts == 5
        rows = [json.loads(row)["token_ids"] for row in (tmp_path / "out.jsonl").read_text().splitlines()]
        assert rows == [[97], [32, 32], [98], [9], [32]]


@pytest.mark.parametrize("content", [b"", b"\n \r\n", b"\xef\xbb\xbf\n"])
def test_empty_file(tmp_path: Path, content: bytes):
    (tmp_path / "in.jsonl").write_bytes(content)
    with pytest.raises(ValueError, match=r"in\.jsonl: holds no rows; expected at least one"):
        run_toy(TOY, tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_ids_survive(tmp_path: Path):
    """Any string, lone surrogates included, and whole numbers of any size."""
    ids = ["\ud800", "é\u2028", 2**80, -1, None]
    rows, _ = run(tmp_path, [{"id": id, "text": "a"} for id in ids])
    assert [row["id"] for row in rows] == ids


@pytest.mark.parametrize("output", ["in.jsonl", "link.jsonl", "folder.jsonl", "null.jsonl"])
def test_refuses_to_replace(tmp_path: Path, output: str):
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "null.jsonl").symlink_to("/dev/null")
    (tmp_path / "link.jsonl").symlink_to("in.jsonl")
    write_lines(tmp_path / "in.jsonl", [{"text": "a"}])
    is_input = output in ("in.jsonl", "link.jsonl")
    with pytest.raises(ValueError, match="the input" if is_input else "expected a regular file"):
        run_toy(TOY, tmp_path / "in.jsonl", tmp_path / output)
    assert (tmp_path / "in.jsonl").read_text() == '{"text": "a"}\n'
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_refuses_names_and_pipes(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=r"nowhere"):
        run_toy(TOY, tmp_path / "in.jsonl", tmp_path / "nowhere" / "out.jsonl")
    with pytest.raises(FileNotFoundError, match=r"no\.jsonl"):
        run_toy(TOY, tmp_path / "no.jsonl", tmp_path / "out.jsonl")
    for input, output in (("in.tsv", "out.jsonl"), ("in.jsonl", "out")):
        write_lines(tmp_path / input, [{"text": "a"}])
        with pytest.raises(ValueError, match=r"expected a name that ends in \.jsonl.* or \."):
            run_toy(TOY, tmp_path / input, tmp_path / output)
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(ValueError, match="expected a regular file"):
        run_toy(TOY, tmp_path / "pipe.jsonl", tmp_path / "out.jsonl")
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith("out")]


@pytest.mark.parametrize("shard", ["", "1", "2/2", "-1/2", "0/0", "a/b", "1/2/3"])
def test_wrong_settings(tmp_path: Path, shard: str):
    with pytest.raises(ValueError, match="shard: expected i/n"):
        run(tmp_path, [{"text": "a"}], shard=shard)
    with pytest.raises(ValueError, match="window: expected a whole number of at least 1, got 0"):
        run(tmp_path, [{"text": "a"}], window=0)


@pytest.mark.parametrize("count", [2, 11])
def test_shards_are_the_whole(tmp_path: Path, count: int, monkeypatch: pytest.MonkeyPatch):
    """Concatenated shards equal the whole file; surplus shards have no rows."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    lines = [{"id": i, "text": str(i)} for i in range(23)]
    run(tmp_path, lines, window=3)
    outputs = [
        run_toy(TOY, tmp_path / "in.jsonl", tmp_path / "part.jsonl", window=3, shard=f"{i}/{count}").output
        for i in range(count)
    ]
    assert outputs[1].name == f"part-00001-of-{count:05}.jsonl" and outputs == sorted(outputs)
    assert b"".join(path.read_bytes() for path in outputs) == (tmp_path / "out.jsonl").read_bytes()


def test_bar(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run(tmp_path, [{"text": "ab"}] * 12, window=5, progress=True)
    printed = capsys.readouterr().err
    assert "scoring" in printed and "12 rows" in printed and "0 left" in printed and "tokens/s" in printed


def test_lines_of_progress(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run(tmp_path, [{"text": "ab"}] * 12, window=5, progress="lines")
    assert re.fullmatch(r"scoring: 100% after \d+ s, 0:00:00 left\n", capsys.readouterr().err)
    run(tmp_path, [{"text": "ab"}] * 12, window=5)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("verb", ["scoring", "answering"])
def test_lines_of_progress_come_while_a_window_is_computed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, verb: str
):
    """One window may take hours; the number of tokens shows progress."""
    tokens, written = itertools.count(), threading.Event()

    def line(*args: Any) -> str:
        if args[-1] > 0:
            written.set()
        return progress_line(*args)

    def waiting(texts: Any) -> list[hybridlm.Score]:
        assert written.wait(60)
        return score(texts)

    monkeypatch.setattr("hybridlm.score_files.row_progress.SECONDS_BETWEEN_LINES", 0.01)
    monkeypatch.setattr("hybridlm.score_files.row_progress.progress_line", line)
    write_lines(tmp_path / "in.jsonl", [{"text": "ab"}] * 12)
    task = replace(toy(waiting), counts=lambda: TokenCounts(computed=next(tokens)), verb=verb)
    run_toy(task, tmp_path / "in.jsonl", tmp_path / "out.jsonl", progress="lines")
    lines = capsys.readouterr().err.splitlines()
    assert re.fullmatch(rf"{verb}: 0% after \d+ s, \d+ tokens", lines[0]), lines
    assert " 100% after" in lines[-1] and not any(" 100% after" in line for line in lines[:-1])


def test_of_a_model(tmp_path: Path, text_lm: hybridlm.LM):
    """The same numbers as `score`, the faults that the model finds, more texts than lanes."""
    lm = text_lm
    texts = ["Ada has the kite.", "B", "Ben has"]
    objects: list[dict[str, Any]] = [{"id": i, "text": text} for i, text in enumerate(texts)]
    objects += [
        {"id": "ids", "token_ids": [4, 5, 96]},
        {"id": "out", "token_ids": [97]},
        {"id": "long", "text": "x" * 257},
    ]
    objects += [{"id": "no ids", "token_ids": [1, "2"]}, {"id": "empty", "text": ""}]
    write_lines(tmp_path / "in.jsonl", objects)
    report = lm.score_file(tmp_path / "in.jsonl", str(tmp_path / "out.jsonl"))
    rows = read_lines(tmp_path / "out.jsonl")
    assert report == ScoreFileReport(tmp_path / "out.jsonl", texts=4, errors=4, tokens=17 + 1 + 7 + 3, kept=0)
    for row, completion in zip(rows, lm.score([*texts, [4, 5, 96]]), strict=False):
        assert row["token_ids"] == completion.token_ids and row["logprobs"][0] is None
        assert row["logprobs"][1:] == completion.logprobs[1:].tolist() and row["sum_logprob"] == completion.sum_logprob
        assert row["perplexity"] == (completion.perplexity if len(completion.token_ids) > 1 else None)
    faults = [row["error"] for row in rows[4:]]
    assert faults[0] == "line 5: token_ids: token id 97 at index 0 is outside the vocabulary [0, 97)"
    assert faults[1].startswith("line 6: text: has 257 tokens, the context holds 256")
    assert faults[2] == "line 7: token_ids: expected token ids, got '2' at index 1"
    assert faults[3] == "line 8: text: is empty; at least one token is needed"


def test_origin_of_a_model(text_lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch):
    """Every option with several spellings has one origin; XLA flags count in any order."""
    monkeypatch.setenv("XLA_FLAGS", "--b=1  --a=2")
    origin = text_lm.text_model.origin()
    assert origin["XLA_FLAGS"] == "--a=2 --b=1"
    assert origin["model"] == text_lm.fingerprint and (origin["lanes"], origin["chunk"]) == ("3", "5")
    assert origin["dtypes"] == "float32" and str(origin["device"]).startswith("cpu")
    assert text_lm.tokenizer is not None and origin["tokenizer"] == text_lm.tokenizer.fingerprint
    assert (origin["mesh"], origin["steps"]) == ("none", "certified")
    with jax.enable_x64(True):  # steps never have it
        assert text_lm.text_model.origin() == origin
    with jax.default_matmul_precision("BF16_BF16_F32"):
        other = text_lm.text_model.origin()
    changed = {name: value for name, value in other.items() if value != origin[name]}
    assert changed.pop("jax_default_matmul_precision") == "BF16_BF16_F32" and len(changed) == 1
    options = replace(text_lm.engine.options, mesh=hybridlm.mesh(data=2), kernels="interpret")
    monkeypatch.setattr(text_lm.engine, "options", options)
    monkeypatch.setattr(text_lm.engine.runner, "certified", False)
    origin = text_lm.text_model.origin()
    assert (origin["mesh"], origin["steps"]) == ("data=2, model=1, expert=1", "as they are")
    assert origin["kernels"] == "interpret"


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("hybridlm.errors.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r'needs pyarrow.*pip install "hybridlm\[data\]"'):
        run_toy(TOY, tmp_path / "in.parquet", tmp_path / "out.jsonl")


def test_scoring_lines_needs_no_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "pyarrow"] + ["pyarrow"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "hybridlm.score_files.parquet", raising=False)
    assert run(tmp_path, [{"text": "a"}])[1].texts == 1

"""CSV and gzip: the rows and numbers of JSON lines; continuation, shards, faults, memory."""

import csv
import gzip
import json
import math
import os
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from toy_scorer import NO_MODEL, TOY, interrupted, read_lines, run_toy, score, toy, write_lines

from hybridlm.score_files import lines
from hybridlm.score_files.divergence_task import MEANS, _rows

ROWS: list[dict[str, Any]] = [
    {"id": "a", "text": "ab,c"}, {"id": 'quoted "id"', "text": "two\nrows"}, {"id": "two\nlines", "input_ids": [9, 3]},
    {"id": None, "token_ids": [7]}, {"id": "é", "text": '"é"'}, {"id": "long", "text": "123456789"},
    {"id": "numbers", "input_ids": [7, 254]}, {"id": "last", "text": "a"},
]  # fmt: skip
COLUMNS = ("id", "text", "input_ids", "token_ids", "other")
SUMS = {"sum_logprob": -3.0, "perplexity": math.exp(3)}
INPUTS = ("in.csv", "in.csv.gz", "in.jsonl.gz", "in.parquet")
OUTPUTS = ("out.jsonl.gz", "out.csv", "out.csv.gz")


def compress(path: Path) -> Path:
    """Compress a file; return the path of the compressed file."""
    output = path.with_name(f"{path.name}.gz")
    output.write_bytes(gzip.compress(path.read_bytes()))
    return output


def write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Write rows with `COLUMNS`, lists as JSON and nulls as empty cells."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*COLUMNS])
        writer.writeheader()
        for row in rows:
            writer.writerow({k: json.dumps(v) if isinstance(v, list) else v for k, v in row.items()} | {"other": "[x"})
    return path


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the same rows in each format; tests need no fsync."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    compress(write_lines(tmp_path / "in.jsonl", ROWS))
    compress(write_csv(tmp_path / "in.csv", ROWS))
    table = pa.table({name: [row.get(name) for row in ROWS] for name in COLUMNS[:-1]})
    pq.write_table(table, tmp_path / "in.parquet")
    return tmp_path


def read_output(path: Path) -> list[dict[str, Any]]:
    """Return the rows of an output without nulls, and without the place of a fault."""
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if ".csv" in path.suffixes:
        records = csv.DictReader(raw.decode().splitlines(keepends=True))
        texts = ("id", "error")
        rows = [{k: v if k in texts else json.loads(v) for k, v in record.items() if v} for record in records]
    else:
        rows = [json.loads(line) for line in raw.splitlines()]
    plain = [{name: value for name, value in row.items() if value is not None} for row in rows]
    return [row | ({"error": row["error"].partition(": ")[2]} if "error" in row else {}) for row in plain]


@pytest.mark.parametrize("output", ["out.jsonl", *OUTPUTS])
@pytest.mark.parametrize("input", INPUTS)
def test_rows_are_equal_in_each_format(inputs: Path, input: str, output: str) -> None:
    run_toy(TOY, inputs / "in.jsonl", inputs / "expected.jsonl", window=3)
    report = run_toy(TOY, inputs / input, inputs / output, window=3)
    rows = read_output(inputs / output)
    assert rows == read_output(inputs / "expected.jsonl")
    assert (report.texts, report.errors) == (7, 1) and rows[5]["error"] == "text: has 9 tokens"
    assert rows[2] == {"id": "two\nlines", "token_ids": [9, 3], "logprobs": [None, -3.0], **SUMS}


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("input", INPUTS[:3])
def test_interrupted_run_continues(inputs: Path, input: str, output: str) -> None:
    run_toy(TOY, inputs / input, inputs / f"whole-{output}", window=2)
    failing = interrupted(score, 1, 3, error=ZeroDivisionError())
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            run_toy(toy(failing), inputs / input, inputs / output, window=2)
    assert run_toy(toy(failing), inputs / input, inputs / output, window=2).kept == 4
    assert (inputs / output).read_bytes() == (inputs / f"whole-{output}").read_bytes()


@pytest.mark.parametrize("output", OUTPUTS)
def test_shards(inputs: Path, output: str) -> None:
    run_toy(TOY, inputs / "in.csv.gz", inputs / output, window=2)
    shards = [
        run_toy(TOY, inputs / "in.csv.gz", inputs / f"part-{output}", window=2, shard=f"{i}/3").output for i in range(3)
    ]
    name, ending = output.split(".", 1)
    assert [path.name for path in shards] == [f"part-{name}-{i:05}-of-00003.{ending}" for i in range(3)]
    assert [row for path in shards for row in read_output(path)] == read_output(inputs / output)
    if ending == "jsonl.gz":  # gzip files one after the other are a gzip file
        decompress = gzip.decompress(b"".join(path.read_bytes() for path in shards))
        assert decompress == gzip.decompress((inputs / output).read_bytes())


@pytest.mark.parametrize("output", OUTPUTS)
def test_sorted_rows_return_to_their_places(tmp_path: Path, output: str) -> None:
    rows = [{"id": str(i), "text": f"{'ab'[i % 2]}{'x' * 80}{i}"} for i in range(9)]
    write_lines(tmp_path / "in.jsonl", rows)
    order: list[str] = []
    ordered = toy(lambda texts: [order.append(chr(ids[0])) or score([ids])[0] for ids in texts], encode_last)
    run_toy(ordered, tmp_path / "in.jsonl", tmp_path / output, window=4)
    assert "".join(order) == "024681357"  # the order of the steps
    run_toy(ordered, tmp_path / "in.jsonl", tmp_path / "plain.jsonl", window=4, sort_window=0)
    assert read_output(tmp_path / output) == read_output(tmp_path / "plain.jsonl")


def encode_last(item: Any, where: str) -> tuple[int, ...]:
    """Return the last character of a text and one more token."""
    return (ord(item[-1]), 1)


FAULTS: dict[str, tuple[bytes, str]] = {
    "cells": (b"x,a,b\n", "row 1: expected 2 cells (id, text), got 3"),
    "blank": (b"\n", "row 1: expected 2 cells (id, text), got 0"),
    "empty": (b"x,\n", "row 1: expected exactly one of text, "),
    "no UTF-8": (b"x,\xff\n", "row 1: column text: expected UTF-8"),
    "id used twice": (b"a,b\n", "row 1: id: is used twice, first in row 0"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_wrong_row_of_csv(tmp_path: Path, case: str) -> None:
    record, message = FAULTS[case]
    (tmp_path / "in.csv").write_bytes(b"\xef\xbb\xbfid,text\r\na,a\r\n" + record + b"b,b\n\n \n")
    report = run_toy(TOY, tmp_path / "in.csv", tmp_path / "out.jsonl")
    rows = read_lines(tmp_path / "out.jsonl")
    assert [row["id"] for row in rows if "error" not in row] == ["a", "b"] and (report.texts, report.errors) == (2, 1)
    assert rows[1]["error"].startswith(message)
    with pytest.raises(ValueError, match=r"in\.csv: row 1: "):
        run_toy(TOY, tmp_path / "in.csv", tmp_path / "strict.jsonl", strict=True)


@pytest.mark.parametrize("cell", ["[5 6 7]", "5", '"[1]"'])
def test_cell_that_is_no_list_of_ids(tmp_path: Path, cell: str) -> None:
    with (tmp_path / "in.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["input_ids"], ["[1, 2]"], [cell]])
    run_toy(TOY, tmp_path / "in.csv", tmp_path / "out.jsonl")
    good, bad = read_lines(tmp_path / "out.jsonl")
    assert good["token_ids"] == [1, 2] and "input_ids: expected " in bad["error"]


@pytest.mark.parametrize(("content", "message"), [
    (b"", "expected a column text or "), (b"title\na\n", "expected a column text or .*found title .*commas"),
    (b"id;text\n1;a\n", "expected a column text or .*commas"), (b"text,text\na,b\n", "column text: expected it once"),
    (b"prompt\na\n", "expected columns prompt and completion together"), (b"text\n", "holds no rows"),
    (b'text\na\n"b\nc\n', "row 1: .*unexpected end of data"), (b'text\n"a"b\n', "row 0: expected cells with commas"),
])  # fmt: skip
def test_csv_that_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "in.csv").write_bytes(content)
    with pytest.raises(ValueError, match=rf"in\.csv: {message}"):
        run_toy(TOY, tmp_path / "in.csv", tmp_path / "out.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]


@pytest.mark.parametrize("damage", ["plain", "cut", "flipped", "trailing"])
def test_damaged_gzip_is_refused(inputs: Path, damage: str) -> None:
    path = inputs / "in.jsonl.gz"
    content = path.read_bytes()
    flipped = content[:-6] + bytes([content[-6] ^ 1]) + content[-5:]  # in the checksum
    damaged = {"plain": b'{"text": "a"}\n', "cut": content[:-9], "flipped": flipped, "trailing": content + b"x"}
    path.write_bytes(damaged[damage])
    with pytest.raises(ValueError, match=r"in\.jsonl\.gz: expected a complete gzip file"):
        run_toy(TOY, path, inputs / "out.jsonl")
    assert not (inputs / "out.jsonl").exists()


@pytest.mark.parametrize("name", ["in.jsonl.gz", "in.csv", "in.csv.gz"])
def test_line_beyond_the_bound_is_refused(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small file may hold gigabytes in one line, or an unclosed quote."""
    monkeypatch.setattr(lines, "MAX_RECORD_BYTES", 1000)
    monkeypatch.setattr("hybridlm.score_files.csv_rows.MAX_RECORD_BYTES", 1000)
    for content in (b"text\n" + b"x" * 2000, b'text\n"' + b"x\n" * 1000):
        if "json" in name and b'"' in content:
            continue
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
        with pytest.raises(ValueError, match=r"(line 2|row \d): .*1,00\d bytes"):
            run_toy(TOY, tmp_path / name, tmp_path / "out.jsonl")


def test_blank_bomb_takes_constant_memory(tmp_path: Path) -> None:
    """A compressed file of 64 MB of line ends is read block by block."""
    with gzip.open(tmp_path / "in.jsonl.gz", "wb") as file:
        file.write(b'{"text": "a"}')
        for _ in range(64):
            file.write(b"\n" * 1_000_000)
    tracemalloc.start()
    report = run_toy(TOY, tmp_path / "in.jsonl.gz", tmp_path / "out.jsonl")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert report.texts == 1 and peak < 8_000_000


@pytest.mark.parametrize("ids", [["a", 1], ["\ud800"]])
def test_ids_that_csv_cannot_hold(tmp_path: Path, ids: list[Any]) -> None:
    write_lines(tmp_path / "in.jsonl", [{"id": id, "text": "a"} for id in ids])
    with pytest.raises(ValueError, match=r"CSV.*write \.jsonl"):
        run_toy(TOY, tmp_path / "in.jsonl", tmp_path / "out.csv")


@pytest.mark.parametrize("name", ["in.jsonl", "in.csv", "in.parquet"])
def test_padding_and_two_forms_are_faults(tmp_path: Path, name: str) -> None:
    """Padding would be scored like text; of two forms neither is taken silently."""
    columns: dict[str, list[Any]] = {
        "input_ids": [[1, 2], [1, 0], [5], None],
        "attention_mask": [[1, 1], [1, 0], [1], None],
        "text": [None, None, "a", "a"],
    }
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    if name == "in.csv":
        with (tmp_path / name).open("w", newline="") as file:
            cells = [[v if isinstance(v, str) else json.dumps(v) if v else "" for v in row.values()] for row in rows]
            csv.writer(file).writerows([list(columns), *cells])
    elif name == "in.parquet":
        pq.write_table(pa.table(columns), tmp_path / name)
    else:
        write_lines(tmp_path / name, rows)
    run_toy(TOY, tmp_path / name, tmp_path / "out.jsonl")
    result = read_lines(tmp_path / "out.jsonl")
    assert result[0]["token_ids"] == [1, 2] and result[3]["token_ids"] == [97]
    assert "attention_mask: expected 1 for every token, got 0 at 1" in result[1]["error"]
    assert "got text, input_ids" in result[2]["error"]


@pytest.mark.parametrize("name", ["in.csv", "in.jsonl.gz"])
@pytest.mark.parametrize("output", ["out.jsonl", *OUTPUTS])
def test_batch(tmp_path: Path, name: str, output: str) -> None:
    """Requests in CSV and gzip get the answers of JSON lines."""
    requests = [
        {"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": {"prompt": "a", "n": -i}}
        for i in (1, 2, 1)
    ]
    compress(write_lines(tmp_path / "in.jsonl", requests))
    with (tmp_path / "in.csv").open("w", newline="") as file:
        cells = [[*list(row.values())[:3], json.dumps(row["body"])] for row in requests]
        csv.writer(file).writerows([list(requests[0]), *cells])
    report = run_toy(NO_MODEL, tmp_path / name, tmp_path / output, window=2)
    raw = (tmp_path / output).read_bytes()
    raw = gzip.decompress(raw) if output.endswith(".gz") else raw
    if ".csv" in output:
        records = list(csv.DictReader(raw.decode().splitlines(keepends=True)))
        rows: list[dict[str, Any]] = [
            {k: json.loads(v) if k in ("response", "error") else v for k, v in record.items()} for record in records
        ]
    else:
        rows = [json.loads(line) for line in raw.splitlines()]
    assert report.bad_lines == 3 and [list(row) for row in rows] == [["id", "custom_id", "response", "error"]] * 3
    assert [row["custom_id"] for row in rows] == ["1", "2", "1"] and rows[0]["response"]["status_code"] == 400
    messages = [row["error"]["message"] for row in rows]
    assert "n: expected a whole number in 1.." in messages[0]
    assert "custom_id: is used twice, first in " in messages[2]


def test_means_of_divergence_from_each_format(tmp_path: Path) -> None:
    fields = {"token_ids": [1, 2, 3], **dict.fromkeys(MEANS, 0.25)}
    rows = [{"id": "a", **fields}, {"id": "b", "error": "wrong"}, {"id": "c", "token_ids": [1]}]
    compress(write_lines(tmp_path / "out.jsonl", rows))
    with (tmp_path / "out.csv").open("w", newline="") as file:
        names = ["id", *fields, "error"]
        cells = [[v if isinstance(v := row.get(n, ""), str) else json.dumps(v) for n in names] for row in rows]
        csv.writer(file).writerows([names, *cells])
    for path in (tmp_path / "out.jsonl.gz", tmp_path / "out.csv"):
        assert list(_rows(path)) == [(2, [0.25] * 4)]

"""Parquet in and out: the rows of JSON lines, every column type, every fault named."""

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from toy_scorer import TOY, read_lines, run_toy, score, toy, write_lines

import hybridlm

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(autouse=True)
def no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn `fsync` off: these tests do not ask whether anything reaches the disk."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


def table(columns: dict[str, Any], path: Path, **settings: Any) -> Path:
    pq.write_table(pa.table(columns), path, **settings)
    return path


def scored(path: Path, ending: str = ".jsonl", **settings: Any) -> list[dict[str, Any]]:
    """The rows of the output of a file."""
    output = path.with_name(f"out{ending}")
    run_toy(TOY, path, output, **settings)
    return read_lines(output) if ending == ".jsonl" else pq.read_table(output).to_pylist()


def test_columns_of_the_output(tmp_path: Path):
    path = table({"id": [5, 6, 7], "token_ids": [[7, 9, 3], [7], [1] * 9]}, tmp_path / "in.parquet")
    first, second, third = scored(path, ".parquet")
    assert first == {
        "id": 5, "token_ids": [7, 9, 3], "logprobs": [None, -9.0, -3.0], "sum_logprob": -12.0,
        "perplexity": math.exp(6), "error": None,
    }  # fmt: skip
    assert (second["logprobs"], second["sum_logprob"], second["perplexity"]) == ([None], 0.0, None)
    assert third["error"] == "row 2: token_ids: has 9 tokens" and third["logprobs"] is None and third["id"] == 7
    schema = pq.read_schema(tmp_path / "out.parquet")
    assert [str(field.type) for field in schema] == [
        "int64", "list<element: int32>", "list<element: float>", "double", "double", "string",
    ]  # fmt: skip


TYPES: dict[str, Callable[[], dict[str, Any]]] = {
    "large_string": lambda: {"text": pa.array(["ab", "c"], pa.large_string())},
    "string_view": lambda: {"text": pa.array(["ab", "c"], pa.string_view())},
    "dictionary": lambda: {"text": pa.array(["ab", "c"]).dictionary_encode()},
    "large_list": lambda: {"token_ids": pa.array([[97, 98], [99]], pa.large_list(pa.uint16()))},
    "both": lambda: {"text": ["ab", None], "token_ids": [None, [99]]},
    "unsigned ids": lambda: {"text": ["ab", "c"], "id": pa.array([1, 2], pa.uint64())},
    "nothing but nulls": lambda: {"text": ["ab", "c"], "id": pa.nulls(2)},
}


@pytest.mark.parametrize("case", TYPES)
def test_types_of_columns(tmp_path: Path, case: str):
    columns = TYPES[case]()
    rows = scored(table(columns | {"other": [[1.5], []]}, tmp_path / "in.parquet"))
    assert [row["token_ids"] for row in rows] == [[97, 98], [99]]
    assert [row["id"] for row in rows] == (columns["id"].to_pylist() if "id" in columns else [None, None])


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no column": (
        {"id": [1], "title": ["a"]},
        "expected a column text or token_ids or input_ids or prompt or messages, found id, title",
    ),
    "half a pair": ({"prompt": ["a"]}, "expected columns prompt and completion together, found prompt"),
    "messages of texts": ({"messages": ["a"]}, "column messages: expected lists of structs"),
    "text of numbers": ({"text": [1.5]}, "column text: expected strings, found double"),
    "bytes": ({"text": [b"a"]}, "column text: expected strings, found binary"),
    "ids of strings": ({"token_ids": [["1"]]}, "column token_ids: expected lists of whole numbers, found list<"),
    "no lists": ({"token_ids": [1]}, "column token_ids: expected lists of whole numbers, found int64"),
    "id": ({"text": ["a"], "id": [1.0]}, "column id: expected strings or whole numbers, found double"),
    "several": ({"text": [1], "id": [1.0]}, "column id: .*; column text: "),
    "no rows": ({"text": pa.array([], pa.string())}, "holds no rows; expected at least one"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_columns(tmp_path: Path, case: str):
    columns, message = WRONG[case]
    with pytest.raises(ValueError, match=rf"in\.parquet: {message}"):
        scored(table(columns, tmp_path / "in.parquet"))
    assert [path.name for path in tmp_path.iterdir()] == ["in.parquet"]


def test_column_that_is_there_twice(tmp_path: Path):
    pq.write_table(pa.Table.from_arrays([pa.array(["a"])] * 2, ["text", "text"]), tmp_path / "in.parquet")
    with pytest.raises(ValueError, match="column text: .* 2 times"):
        scored(tmp_path / "in.parquet")


def test_bad_rows(tmp_path: Path):
    """Nulls, doubles, invalid UTF-8 and repeated ids are error rows; others are scored."""
    broken = pa.Array.from_buffers(pa.string(), 6, pa.array(["a", "b", "?", "d", "e", "f"]).buffers())
    buffers = broken.buffers()
    buffers[2] = pa.py_buffer(b"ab\xffdef")
    texts = pa.Array.from_buffers(pa.string(), 6, buffers)
    texts = pa.concat_arrays([texts, pa.nulls(2, pa.string())])
    ids = pa.array([*"uvwxyz", "a", "u"])
    tokens = pa.array([None, [1], None, None, None, None, None, [5]], pa.list_(pa.int64()))
    rows = scored(table({"id": ids, "text": texts, "token_ids": tokens}, tmp_path / "in.parquet"))
    errors = {i: row["error"] for i, row in enumerate(rows) if "error" in row}
    message = "row 1: expected exactly one of text, token_ids, input_ids, prompt, messages, got text, token_ids"
    assert errors[1].startswith(message)
    assert errors[2].startswith("row 2: text: expected UTF-8: ")
    assert errors[6] == "row 6: expected exactly one of text, token_ids, input_ids, prompt, messages, got none of them"
    assert errors[7].startswith("row 7: id: is used twice, first in row 0")
    assert sorted(errors) == [1, 2, 6, 7] and [row["id"] for row in rows] == ids.to_pylist()


@pytest.mark.parametrize("ids", [["a", 1], [2**63], ["\ud800"]])
def test_ids_that_no_column_holds(tmp_path: Path, ids: list[Any]):
    path = write_lines(tmp_path / "in.jsonl", [{"id": id, "text": "a"} for id in ids])
    with pytest.raises(ValueError, match=r"write \.jsonl"):
        scored(path, ".parquet")
    assert len(scored(path)) == len(ids) and not (tmp_path / "out.parquet").exists()


def test_message_that_utf8_cannot_hold(tmp_path: Path):
    (tmp_path / "in.jsonl").write_text('{"id": 1, "text": "a", "\\ud800": 1, "\\ud800": 2}\n')
    assert "duplicate keys" in scored(tmp_path / "in.jsonl", ".parquet")[0]["error"]


@pytest.mark.parametrize("damage", ["empty", "text", "cut", "page"])
def test_damaged_file(tmp_path: Path, damage: str):
    """The file is refused; an existing output stays."""
    path = table({"text": [f"text {i}" for i in range(3000)]}, tmp_path / "in.parquet", use_dictionary=False)
    content = path.read_bytes()
    middle = content[:200] + bytes(len(content) // 2) + content[200 + len(content) // 2 :]
    path.write_bytes({"empty": b"", "text": b"no Parquet" * 9, "cut": content[:-9], "page": middle}[damage])
    (tmp_path / "out.jsonl").write_text("older")
    with pytest.raises(ValueError, match=r"in\.parquet: expected a Parquet file, but it cannot be read"):
        scored(path)
    assert (tmp_path / "out.jsonl").read_text() == "older" and len(list(tmp_path.iterdir())) == 2


def test_continues_inside_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Windows, row groups and batches begin anywhere; gathered groups keep row order."""
    monkeypatch.setattr("hybridlm.score_files.parquet.BATCH_ROWS", 5)
    monkeypatch.setattr("hybridlm.score_files.parquet.MAX_GROUP_ROWS", 8)
    path = table(
        {"id": list(range(40)), "text": [str(i) for i in range(40)]}, tmp_path / "in.parquet", row_group_size=7
    )
    output, chance = tmp_path / "out.parquet", random.Random(0)
    run_toy(TOY, path, tmp_path / "whole.parquet", window=3)

    def failing(texts: Any) -> list[hybridlm.Score]:
        if chance.random() < 0.4:
            raise ZeroDivisionError
        return score(texts)

    runs = 1
    while True:
        try:
            run_toy(toy(failing), path, output, window=3)
            break
        except ZeroDivisionError:
            runs += 1
    assert runs > 4 and output.read_bytes() == (tmp_path / "whole.parquet").read_bytes()
    parquet_file = pq.ParquetFile(output)
    assert parquet_file.read().column("id").to_pylist() == list(range(40))
    assert [parquet_file.metadata.row_group(i).num_rows for i in range(parquet_file.num_row_groups)] == [9, 9, 9, 9, 4]


def test_shards(tmp_path: Path):
    """Together the shards hold all rows; an empty shard is a readable file."""
    path = table({"id": list(range(7)), "text": [str(i) for i in range(7)]}, tmp_path / "in.parquet")
    outputs = [run_toy(TOY, path, tmp_path / "out.parquet", window=3, shard=f"{i}/4").output for i in range(4)]
    assert [pq.read_table(output).column("id").to_pylist() for output in outputs] == [[], [0, 1, 2], [3, 4, 5], [6]]
    assert len({str(pq.read_schema(output)) for output in outputs}) == 1


def test_a_list_of_completions_is_an_error_and_not_its_first_one(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "completion": ["b", "c"]}, {"text": "ab"}]
    report = run_toy(TOY, write_lines(tmp_path / "in.jsonl", rows), tmp_path / "out.parquet")
    several, item = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert (report.texts, report.errors) == (1, 1) and several["logprobs"] is None and item["error"] is None
    assert "write .jsonl" in several["error"]

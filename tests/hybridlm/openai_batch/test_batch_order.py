"""Lines with common prompt prefixes run together and are written in input order."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from model_inputs import model_inputs
from stopped_runs import stop_after_parts
from toy_scorer import run_toy, toy_model

import hybridlm
from hybridlm import GrammarError
from hybridlm.openai_batch.batch_task import batch_rows
from hybridlm.openai_batch.request import OpenAIRequest

SHOTS = ["".join(random.Random(i).choices("abcdefgh ", k=90)) for i in range(3)]


def write(path: Path, count: int = 18) -> Path:
    """Lines of three prompts by turns; the last one has the custom_id of the second."""
    lines = [
        {
            "custom_id": str(i if i < count - 1 else 1),
            "method": "POST",
            "url": "/v1/completions",
            "body": {"prompt": f"{SHOTS[i % 3]}{i}", "max_tokens": 4, "seed": i},
        }
        for i in range(count)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def rows(path: Path) -> list[dict[str, Any]]:
    """The output without the time of its run."""
    results = [json.loads(line) for line in path.read_text().splitlines()]
    for row in results:
        if row["response"]["body"] is not None:
            del row["response"]["body"]["created"]
    return results


@pytest.mark.slow
def test_beginnings_are_read_once_in_each_part(cached_lm: hybridlm.LM, tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hybridlm.score_files.order.MIN_SAVED", 2.0)
        plain = cached_lm.batch_file(source, tmp_path / "plain.jsonl", window=6)
    report = cached_lm.batch_file(source, tmp_path / "out.jsonl", window=6)
    actual, expected = rows(tmp_path / "out.jsonl"), rows(tmp_path / "plain.jsonl")
    assert [row["custom_id"] for row in actual] == [*map(str, range(17)), "1"]
    assert "custom_id: is used twice, first in line 2;" in actual[-1]["error"]["message"]
    assert (report.responses, report.bad_lines) == (17, 1)
    texts, plain_texts = ([row["response"]["body"] for row in some[:-1]] for some in (actual, expected))
    assert [text["choices"][0]["text"] for text in texts] == [text["choices"][0]["text"] for text in plain_texts]
    # Of six lines with one prompt five do not read it again; of six with three prompts three.
    assert report.prefix_tokens_saved > 1.3 * plain.prefix_tokens_saved > 0
    assert report.prefix_tokens_saved > 0.7 * report.prompt_tokens


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 2])
def test_continues_with_the_same_bytes(cached_lm: hybridlm.LM, tmp_path: Path, parts: int) -> None:
    """The states that the interrupted run had cached change nothing."""
    source = write(tmp_path / "in.jsonl")
    full = cached_lm.batch_file(source, tmp_path / "whole.jsonl", window=6)
    with pytest.MonkeyPatch.context() as patch:
        stop_after_parts(patch, parts)
        with pytest.raises(KeyboardInterrupt):
            cached_lm.batch_file(source, tmp_path / "out.jsonl", window=6)
    report = cached_lm.batch_file(source, tmp_path / "out.jsonl", window=6)
    assert report.kept == 6 * parts and report.prefix_tokens_saved == full.prefix_tokens_saved
    assert rows(tmp_path / "out.jsonl") == rows(tmp_path / "whole.jsonl")
    with pytest.MonkeyPatch.context() as patch:
        stop_after_parts(patch)
        with pytest.raises(KeyboardInterrupt):
            cached_lm.batch_file(source, tmp_path / "again.jsonl", window=6)
        patch.setattr(cached_lm.engine, "options", replace(cached_lm.engine.options, prefix_cache=None))
        with pytest.raises(ValueError, match="prefix_cache: 600000, 600000 bytes there, none now"):
            cached_lm.batch_file(source, tmp_path / "again.jsonl", window=6)


@pytest.mark.parametrize("size", [1 << 20, 1, 0])
def test_the_sort_window_limits_the_sorted_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int):
    """Six lines of three prompts by turns share prefixes only in a wide window."""
    source, calls = write(tmp_path / "in.jsonl", 7), list[list[int]]()
    lines = [json.loads(line) for line in source.read_text().splitlines()[:6]]
    for line in lines:
        line["body"] |= {"prompt": list(line["body"]["prompt"].encode()), "return_token_ids": True}
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))

    numbers = {f"{SHOTS[i % 3]}{i}": i for i in range(6)}

    def answered(model: object, requests: Sequence[OpenAIRequest], finished: object) -> list[GrammarError]:
        calls.append([numbers["".join(map(chr, request.prompts[0].token_ids))] for request in requests])
        return [GrammarError("x", 0, "none") for _ in requests]

    monkeypatch.setattr("hybridlm.openai_batch.batch_task.answers", answered)
    nothing: Any = None
    task = batch_rows(toy_model(model_inputs(vocab_size=300), nothing, nothing, "tiny"), {})
    run_toy(task, source, tmp_path / "out.jsonl", window=2, sort_window=size)
    assert sorted(map(sorted, calls)) == ([[0, 3], [1, 4], [2, 5]] if size > 1 else [[0, 1], [2, 3], [4, 5]])
    with pytest.raises(ValueError, match="sort_window: expected a whole number of bytes"):
        run_toy(task, source, tmp_path / "out.jsonl", sort_window=-1)

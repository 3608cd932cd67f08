"""The size of the KV cache: pages, refused requests, and scoring within the cache."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hybridlm
from hybridlm.compiler.host import SlotsExhausted
from hybridlm.engine.cache_size import page_limit, pool_pages
from models import KV_BLOCK

SETTINGS: dict[str, Any] = {"lanes": 4, "context": 512, "dtype": "float32", "chunk": 32, "certify": "off"}
PLAIN: dict[str, Any] = {"ignore_eos": True}
pytestmark = pytest.mark.usefixtures("stored_steps")


@pytest.fixture(scope="module")
def lm(text_path: Path, stored_steps: None) -> hybridlm.LM:
    """Four lanes, with four pages for each."""
    return hybridlm.load(text_path, **SETTINGS)


def prompt(count: int, first: int = 3) -> list[int]:
    return [3 + (first + 7 * i * i) % 90 for i in range(count)]


def test_without_cache_there_are_pages_for_all_lanes(lm: hybridlm.LM) -> None:
    assert lm.engine.cache_limit is None and lm.engine.cache_positions == 4 * 512
    assert lm.engine.pages(4) == 4 * 4 + 1 and lm.engine.pages(1) == 5


@pytest.fixture(scope="module")
def narrow(lm: hybridlm.LM) -> hybridlm.LM:
    """Two pages for all, less than a context."""
    settings: dict[str, Any] = SETTINGS | {"cache": "256"}
    return hybridlm.load(lm.path, **settings)


def test_a_request_that_never_fits_is_refused(narrow: hybridlm.LM) -> None:
    with narrow.session() as session:
        with pytest.raises(ValueError, match=r"request 0: 200 tokens and max_tokens 58 need 257 positions"):
            session.submit(prompt(200), max_tokens=58)
        with pytest.raises(ValueError, match="request 0: has 257 tokens, the KV cache of a device holds 256"):
            session.submit(prompt(257), max_tokens=1)
        assert not session.busy and session.submit(prompt(200), max_tokens=57) == 0
    with pytest.raises(ValueError, match=r"prompts\[1\]: .* give max_tokens of at most 7, or load with a larger cache"):
        narrow.generate([prompt(20), prompt(250)], max_tokens=40)
    with pytest.raises(ValueError, match=r"texts\[0\]: has 300 tokens, the KV cache of a device holds 256"):
        narrow.score([prompt(300)])
    with pytest.raises(ValueError, match="prefix: has 300 tokens, the KV cache"):
        narrow.prefix(prompt(300))


@pytest.mark.slow
def test_a_request_that_just_fits_ends(narrow: hybridlm.LM) -> None:
    (completion,) = narrow.generate([prompt(200)], max_tokens=57, **PLAIN)
    assert len(completion.token_ids) == 57 and narrow.stats["preemptions"] == 0


def test_a_request_that_was_not_refused_does_not_wait_for_ever(narrow: hybridlm.LM) -> None:
    request = narrow.text_model.inputs.request(0, prompt(250), hybridlm.SamplingParams(max_tokens=7))
    with narrow.session() as session, pytest.raises(SlotsExhausted, match="expected pages for 269 positions"):
        session.add(replace(request, params=replace(request.params, max_tokens=20)))
        session.step()


@pytest.mark.parametrize(
    ("cache", "message"),
    [
        (0, "at least 1 position, got 0"), ("1 B", "cache: expected at least [0-9,]+ B on each device"),
        ("8 gigs", "bytes as a whole number"), (True, "a number of positions, or bytes"), (1.5, "a number of"),
    ],
)  # fmt: skip
def test_a_wrong_cache_is_refused_at_load(lm: hybridlm.LM, cache: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        hybridlm.load(lm.path, **SETTINGS | {"cache": cache})


def test_bytes_are_whole_pages_and_a_null_page(lm: hybridlm.LM) -> None:
    page = lm.engine.row_arrays.model.state_size(lm.engine.row_arrays.dtype).token * KV_BLOCK
    for size, pages in ((4 * page, 3), (4 * page - 1, 2), (100 * page, 99)):
        assert page_limit(f"{size} B", page, 1) == pages
    assert page_limit(129, page, 1) == 2 and page_limit(" 129", page, 2) == 1 and page_limit(129, 0, 1) is None
    assert pool_pages(4, 4, None) == pool_pages(4, 4, 99) == 17 and pool_pages(4, 4, 3) == 4
    assert pool_pages(4, 0, 3) == 0, "a model without a KV cache"


@pytest.mark.slow
def test_texts_begin_while_pages_fit(lm: hybridlm.LM, narrow: hybridlm.LM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores equal a run with pages for all; two texts of one page run together."""
    texts = [prompt(count, count) for count in (120, 100, 250, 30, 90, 200, 128, 129)]
    texts += [[*prompt(64, 5), *prompt(9, i)] for i in range(4)]  # they begin alike
    counts, right = list[int](), type(narrow.engine).run

    def recorded(self: Any, shape: Any, pool: Any, *args: Any, **options: Any) -> Any:
        counts.append(len(pool.owner.held))
        pool.check_integrity()
        return right(self, shape, pool, *args, **options)

    want = lm.score(texts)
    monkeypatch.setattr(type(narrow.engine), "run", recorded)
    for got, expected in zip(narrow.score(texts), want, strict=True):
        np.testing.assert_array_equal(got.logprobs, expected.logprobs)
    assert max(counts) == 2


@pytest.mark.slow
def test_in_files_the_row_is_refused_alone(narrow: hybridlm.LM, tmp_path: Path) -> None:
    """An oversized row has an error; other rows and unlimited chats are answered."""

    def run(task: Any, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        narrow.run_file(task, tmp_path / "in.jsonl", tmp_path / "out.jsonl", progress=False)
        rows = [json.loads(row) for row in (tmp_path / "out.jsonl").read_text().splitlines()]
        (tmp_path / "out.jsonl").unlink()
        return rows

    bodies = [{"prompt": prompt(200), "max_tokens": 58}, {"prompt": prompt(200), "max_tokens": 57, "ignore_eos": True}]
    lines = [{"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": b} for i, b in enumerate(bodies)]
    chat = {"messages": [{"role": "user", "content": "hi"}], "ignore_eos": True}
    lines.append({"custom_id": "chat", "method": "POST", "url": "/v1/chat/completions", "body": chat})
    refused, answered, unlimited = run(hybridlm.BatchTask(), lines)
    assert "the KV cache of a device holds 256; give max_tokens of at most 57" in refused["error"]["message"]
    assert answered["response"]["body"]["usage"]["completion_tokens"] == 57
    assert unlimited["response"]["body"]["usage"]["total_tokens"] == 257, "the last token needs no position"
    wrong, right = run(hybridlm.ScoreTask(), [{"token_ids": prompt(300)}, {"token_ids": prompt(40)}])
    assert "has 300 tokens, the KV cache of a device holds 256" in wrong["error"] and right["logprobs"]

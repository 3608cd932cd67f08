"""Boundaries between prompts and completions: the scored tokens hold the whole completion, whatever the tokenizer."""

import functools
import json
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import joining_tokenizers
import numpy as np
import pytest
import tokenizers
from chat_templates import TEMPLATES
from hypothesis import example, given, settings
from model_inputs import model_inputs
from text_checkpoint import load_with_steps

import hybridlm
from hybridlm.scoring.items import ItemReader
from hybridlm.scoring.perplexity import prefix_token
from hybridlm.text import Tokenizer

QUESTION = {"prompt": "the qui", "completion": "ck brown fox"}
ANSWERED = [{"role": "user", "content": "who?"}, {"role": "assistant", "content": "Ben has it."}]
END = "<|im_end|>"


@functools.cache
def tokenizer_of(kind: str) -> Tokenizer:
    if kind != "demo":
        return joining_tokenizers.make(kind)
    tokenizer = Tokenizer.from_dir(hybridlm.demo.path())
    assert tokenizer is not None
    return tokenizer


def reader(tokenizer: Tokenizer, context: int = 256) -> ItemReader:
    """A reader of items without a model."""
    return ItemReader(model_inputs(tokenizer, 10_000, context), lambda: prefix_token(tokenizer, ()))


def check_boundary(kind: str, prompt: str, completion: str) -> None:
    """Check scored ids of a prompt and completion against joined ids and bytes."""
    tokenizer = tokenizer_of(kind)
    ((ids, first, *shift),) = reader(tokenizer).read({"prompt": prompt, "completion": completion}, "item")
    added = tokenizer.encode("")[kind.count("bos") :]
    prompt_ids, joined = (tokenizer.encode(text)[: -len(added) or None] for text in (prompt, prompt + completion))
    assert list(ids) in (joined, [prefix_token(tokenizer, ()), *joined])
    assert 0 < first < len(ids)
    assert joining_tokenizers.bytes_of(tokenizer, list(ids[first:])).endswith(completion.encode())
    # No token is scored before the first one that differs from the prompt's.
    common = next((i for i, pair in enumerate(zip(prompt_ids, joined, strict=False)) if len({*pair}) > 1), None)
    common = len(prompt_ids) if common is None else common
    assert len(ids) - first == len(joined) - common
    assert shift == [len(prompt_ids) - common]


TEXTS = st.text(st.sampled_from("theqxu  日本\n🙂é")) | st.lists(
    st.sampled_from(["the", "quick", " ", "日本語", "\n\n"])
).map("".join)


@pytest.mark.parametrize("kind", [*joining_tokenizers.KINDS, "demo"])
@settings(max_examples=50)
@given(text=TEXTS, cut=st.integers(0, 30))
@example("the quick brown fox", 7)
@example("日本語", 1)
@example("🙂🙂", 1)
@example("the quick", 0)
@example("a  b", 2)
def test_scored_tokens_hold_the_whole_completion(kind: str, text: str, cut: int):
    cut = min(cut, len(text) - 1)
    if cut >= 0:
        check_boundary(kind, text[:cut], text[cut:])


@pytest.mark.parametrize(
    ("kind", "prompt", "completion", "shift"),
    [
        ("merging", "the qui", "ck fox", 2),  # " ", "qui" and " quick"
        ("byte-level, across characters", "日", "本", 1),  # the last byte of one and the first byte of the other
        ("byte-level, bos and eos", "日", "x", 0),  # the tokens around a text are not of the prompt
        ("merging", "the", " quick", 0),
        ("merging", "the ", "quick", 1),  # a word that begins with a space
        ("byte-level", "a<", "s>b", 1),  # together they write a special token
        ("byte-level, bos", "<s>a", "b", 0),  # the prompt writes the first token itself
        ("byte-level", "", "<s>the", 0),  # so does the completion
        ("sentencepiece, bos", "", "the", 0),
        ("unigram, eos", "", "the", 0),
    ],
)
def test_boundaries(kind: str, prompt: str, completion: str, shift: int):
    tokenizer = tokenizer_of(kind)
    ((ids, first, *shifts),) = reader(tokenizer).read({"prompt": prompt, "completion": completion}, "item")
    assert shifts == [shift]
    assert tokenizer.decode(ids[first:]).endswith(completion.removeprefix("<s>").removeprefix("s>"))
    assert ids.count(tokenizer.bos_token_id) <= 1
    assert ids[-1] != tokenizer.eos_token_id


@pytest.fixture(scope="module")
def merging_lm(text_lm: hybridlm.LM, tmp_path_factory: pytest.TempPathFactory) -> hybridlm.LM:
    """The tiny model with a tokenizer of words."""
    return load_with_steps(text_lm, joining_tokenizers.write_merging_checkpoint(tmp_path_factory.mktemp("merging")))


@pytest.fixture
def chat_lm(merging_lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the chat template of that model."""

    def with_template(source: str) -> hybridlm.LM:
        monkeypatch.setattr(merging_lm.tokenizer, "chat_templates", {"default": source})
        monkeypatch.setattr(merging_lm.tokenizer, "_compiled", {})
        return merging_lm

    return with_template


def check_numbers(lm: hybridlm.LM, score: hybridlm.Score, text: str, ending: str) -> None:
    """Check that scored tokens decode to the ending and match `forward`."""
    assert lm.tokenizer is not None
    ids = lm.tokenizer.encode(text)
    assert ids[-len(score.token_ids) :] == score.token_ids
    assert lm.tokenizer.decode(score.token_ids, skip_special_tokens=False) == ending
    # One length for all texts is compiled once; no token depends on later ones.
    assert len(ids) <= 128
    logprobs = np.asarray(lm.forward(ids + [0] * (128 - len(ids))).logprobs)[: len(ids) - 1]
    np.testing.assert_allclose(score.logprobs, logprobs[-len(score.token_ids) :], rtol=1e-4)
    assert score.sum_logprob == float(np.sum(score.logprobs, dtype=np.float64))


def test_a_token_that_spans_prompt_and_completion_is_scored(merging_lm: hybridlm.LM):
    separate, score, _ = merging_lm.score([{"prompt": "the", "completion": " quick brown fox"}, QUESTION, "the"])
    check_numbers(merging_lm, score, "the quick brown fox", " quick brown fox")
    assert (score.prefix_tokens, score.boundary_shift, score.first_predicted) == (1, 2, 0)
    assert separate.boundary_shift == 0 and separate.logprobs.tobytes() == score.logprobs.tobytes()


def test_a_token_that_spans_the_whole_prompt_follows_the_prefix(merging_lm: hybridlm.LM):
    items = [{"prompt": "qui", "completion": "ck fox"}, {"prompt": "", "completion": "quick fox"}]
    score, empty, _ = merging_lm.score([*items, "the"])
    assert score.token_ids == empty.token_ids and score.logprobs.tobytes() == empty.logprobs.tobytes()
    assert (score.boundary_shift, empty.boundary_shift) == (1, 0) and np.isfinite(score.logprobs).all()


def test_positions_count_from_the_scored_tokens(merging_lm: hybridlm.LM):
    request: dict[str, Any] = {"token_ids": [5, 6], "start": 1, "hidden_states": [1], "positions": "all"}
    (score,) = merging_lm.score([QUESTION], **request)
    assert score.chosen is not None and score.captured is not None and score.ranks is not None
    count = len(score.token_ids)
    assert np.diff(score.chosen.offsets).tolist() == [0] + [2] * (count - 1)
    assert score.ranks[0] == 0 and (score.ranks[1:] > 0).all()
    assert score.captured.positions.tolist() == list(range(score.prefix_tokens, score.prefix_tokens + count))


def test_each_option_has_its_own_boundary(merging_lm: hybridlm.LM):
    options = ["ck", "ck brown fox", "ckck", "et fox", " fox", "z"]
    context = "the brown fox. the brown fox! the qui"
    choice = merging_lm.choose(context, options)
    scores = merging_lm.score([{"prompt": context, "completion": options}])
    assert choice.boundary_shift == [2, 2, 2, 0, 0, 0] == [score.boundary_shift for score in scores]
    for i, (option, score) in enumerate(zip(options, scores, strict=True)):
        ending = " qui" + option if choice.boundary_shift[i] else option
        check_numbers(merging_lm, score, context + option, ending)
        assert choice.token_ids[i] == score.token_ids
        np.testing.assert_allclose(choice.logprobs[i], score.logprobs, rtol=1e-5)
        assert choice.greedy[i] == bool(score.greedy.all())
    assert choice.token_ids[1][:1] == choice.token_ids[0]


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_next", "nemotron_h", "lfm2", "granite", "plain"])
def test_answers_of_chats(chat_lm: Any, family: str):
    lm = chat_lm(TEMPLATES[family].replace("<SPECIAL_11>", "<|im_start|>"))
    (score,) = lm.score([{"messages": ANSWERED}])
    assert lm.tokenizer is not None
    full = lm.tokenizer.apply_chat_template(ANSWERED, add_generation_prompt=False)
    text = full[: full.rindex(END) + len(END)] if END in full else full
    answer = lm.tokenizer.decode(score.token_ids, skip_special_tokens=False)
    check_numbers(lm, score, text, answer)
    thoughts = "\n\n</think>\n\n" if family.startswith("qwen") else ""
    assert answer == thoughts + "Ben has it." + text.partition("Ben has it.")[2]
    # "\n" of the prompt is no separate token; the template writes no thoughts where it begins some.
    assert score.boundary_shift == {"qwen3_5": 1, "qwen3_next": 1, "nemotron_h": 2}.get(family, 0)


def test_thoughts_are_written_otherwise_than_the_prompt_begins_them(chat_lm: Any):
    lm = chat_lm(TEMPLATES["qwen3_5"])
    answer = ANSWERED[1] | {"reasoning_content": "see"}
    item = {"messages": [ANSWERED[0], answer], "chat_template_kwargs": {"enable_thinking": False}}
    (score,) = lm.score([item])
    text = lm.tokenizer.decode(score.token_ids, skip_special_tokens=False)
    assert text == f"\nsee\n</think>\n\nBen has it.{END}" and score.boundary_shift == 3


def test_a_template_that_changes_earlier_turns_is_refused(chat_lm: Any):
    lm = chat_lm("{% set bos_token = '' %}" + TEMPLATES["lfm2"])
    first = ANSWERED[1] | {"thinking": "see"}
    with pytest.raises(ValueError, match=r"^texts\[0\]: messages: the chat template.*<think>see</think>"):
        lm.score([{"messages": [ANSWERED[0], first, *ANSWERED]}])


WITHOUT_TOKENS: list[dict[str, Any]] = [
    {"prompt": "the qui", "completion": ""},
    {"prompt": "", "completion": ""},
    {"prompt": "", "completion": "<s>"},
    {"prompt": "<s>", "completion": ""},
    {"prompt": "the", "completion": "x" * 300},
    {"prompt": "x" * 300, "completion": "the"},
]


@pytest.mark.parametrize("kind", joining_tokenizers.KINDS)
@pytest.mark.parametrize("item", WITHOUT_TOKENS)
def test_a_completion_without_tokens_is_refused_with_both_texts(kind: str, item: dict[str, str]):
    with pytest.raises(ValueError, match="adds no token|tokens, the context holds 256") as error:
        reader(tokenizer_of(kind)).read(item, "item")
    for text in item.values():
        assert repr(text[:20])[:-1] in str(error.value)


def test_a_completion_that_the_tokenizer_joins_into_nothing(merging_lm: hybridlm.LM):
    """A normaliser that takes characters away, and an unknown word that stays one."""
    assert merging_lm.tokenizer is not None
    backend = tokenizers.Tokenizer.from_str(merging_lm.tokenizer.to_json())
    backend.normalizer = tokenizers.normalizers.Replace("!", "")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0, "the": 1}, unk_token="<unk>"))
    for tokenizer, item in (
        (Tokenizer(backend), {"prompt": "the", "completion": "!!"}),
        (Tokenizer(words), {"prompt": "zeb", "completion": "ra"}),
    ):
        read = ItemReader(model_inputs(tokenizer), lambda: 1)
        with pytest.raises(
            ValueError, match=rf"completion: '{item['completion']}' adds no token .* '{item['prompt']}'"
        ):
            read.read(item, "item")


ROWS: list[dict[str, Any]] = [
    {"id": "moved", **QUESTION},
    {"id": "apart", "prompt": "the", "completion": " quick"},
    {"id": "text", "text": "the quick"},
    {"id": "nothing", "prompt": "the", "completion": ""},
    {"id": "moved too", "prompt": "th", "completion": "e"},
]


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_files_report_boundaries(merging_lm: hybridlm.LM, tmp_path: Path, ending: str):
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    report = merging_lm.score_file(tmp_path / "in.jsonl", tmp_path / f"out.{ending}")
    assert (report.texts, report.errors, report.shifted) == (4, 1, 2)
    if ending == "jsonl":
        rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    else:
        rows = pytest.importorskip("pyarrow.parquet").read_table(tmp_path / "out.parquet").to_pylist()
    assert [row.get("boundary_shift") for row in rows] == [2, 0, None, None, 1]
    assert rows[3]["error"] == "line 4: completion: '' adds no token to the prompt 'the'"
    score = merging_lm.score([QUESTION, "the", "fox"])[0]
    assert rows[0]["token_ids"] == score.token_ids
    np.testing.assert_allclose(rows[0]["logprobs"], score.logprobs, rtol=1e-4)


def test_a_list_of_completions_has_a_boundary_for_each(merging_lm: hybridlm.LM, tmp_path: Path):
    row = {"prompt": QUESTION["prompt"], "completion": ["ck", "et", "z"]}
    (tmp_path / "in.jsonl").write_text(json.dumps(row))
    report = merging_lm.score_file(tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    written = json.loads((tmp_path / "out.jsonl").read_text())
    boundaries = [(entry["prompt_tokens"], entry["boundary_shift"]) for entry in written["completions"]]
    assert boundaries == [(1, 2), (3, 0), (3, 0)] and written["prompt_tokens"] == 3 and report.shifted == 1


def test_tables_have_shifts_where_there_are_some(merging_lm: hybridlm.LM):
    pytest.importorskip("pyarrow")
    scores = merging_lm.score([QUESTION, "the", "fox"])
    assert hybridlm.to_table(scores)["boundary_shift"].to_pylist() == [2, 0, 0]
    choice = merging_lm.choose("the qui", ["ck", "et", "z"])
    assert hybridlm.to_table([choice])["boundary_shift"].to_pylist() == [[2, 0, 0]]
    assert "boundary_shift" not in hybridlm.to_table(scores[1:]).column_names

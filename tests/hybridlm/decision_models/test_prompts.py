"""Prompts: marks and splits are found and removed; only the template writes control tokens."""

import json
from pathlib import Path
from typing import Any

import pytest
from decision_checkpoint import REQUESTS, TOGETHER, UNSAFE, write_tokenizer

from hybridlm.decision_models.prompts import MARK, SPLIT, Prompts
from hybridlm.decision_models.settings import JEV_TEMPLATE, DecisionSettings
from hybridlm.text import ChatTemplateError, Tokenizer

NOUL = {"spam": {"type": "noul", "instructions": "Is it spam?"}}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(directory)
    result = Tokenizer.from_dir(directory)
    assert result is not None
    return result


def text_of(prompts: Prompts, request: Any) -> list[str]:
    return [
        prompts.checkpoint_tokenizer.decode(completion.token_ids, skip_special_tokens=False).replace("\n", "|")
        for completion in prompts.read(request)
    ]


def test_the_generic_prompt(tokenizer: Tokenizer) -> None:
    prompts = Prompts(tokenizer, DecisionSettings())
    chat = "<|im_start|>user|{}<|im_end|>|<|im_start|>assistant|<think>||</think>||"
    questions = {
        "a": {"type": "choice", "instructions": "Which?", "criteria": {"x": "why", "y": None}},
        "b": {"type": "score", "criteria": ["low", {"k": "ä"}]},
        "c": {"type": "noul", "instructions": "Is it?", "criteria": {"true": "so", "false": None}},
    }
    assert text_of(prompts, {"state": {"s": 1}, "questions": questions}) == [
        chat.format(
            '{"s": 1}||Which?|A. x: why|B. y|Answer with the letter of the option that fits best (A to B) only.'
        ),
        chat.format('{"s": 1}||A. low|B. {"k": "ä"}|Answer with the letter of the level that fits best (A to B) only.'),
        chat.format('{"s": 1}||Is it?|Yes: so|Answer Yes or No only.'),
    ]
    result = prompts.read({"state": "x", "questions": NOUL})[0]
    assert result.places == (len(result.token_ids) - 1,)
    labels = Prompts(tokenizer, DecisionSettings({"noul": ("T", "F"), "choice": ("1", "2")}))
    text = text_of(labels, {"state": None, "questions": {**NOUL, "a": questions["a"]}})
    assert "||Is it spam?|T: true|F: false|Answer T or F only." in text[0]
    assert "|1. x: why|2. y|Answer with the label of the option that fits best (1 to 2) only." in text[1]


def test_marks_and_splits(tokenizer: Tokenizer) -> None:
    """Each question is read before its mark; a split keeps neighbouring texts apart."""
    prompts = Prompts(tokenizer, DecisionSettings(template=TOGETHER))
    questions = {**NOUL, "b": {"type": "score", "instructions": "How?", "criteria": ["low", "high"]}}
    (result,) = prompts.read({"state": "state", "questions": questions})
    ends = [tokenizer.decode(result.token_ids[: place + 1], skip_special_tokens=False) for place in result.places]
    assert ends[0].endswith("Is it spam? Yes=true No=false :") and ends[1].endswith("How? A=0 B=1 :")
    assert not {*result.token_ids} & {*prompts.sentinels}
    joined = Prompts(tokenizer, DecisionSettings(template="Ye" + SPLIT + "s{{ question.name }}"))
    (separate,) = joined.read({"state": "", "questions": NOUL})
    assert not {*separate.token_ids} & {*joined.sentinels}
    assert tokenizer.decode(separate.token_ids) == "Yesspam" and separate.token_ids[0] != tokenizer.token_to_id("Yes")
    assert separate.token_ids[0] == tokenizer.token_to_id("Ye")


@pytest.mark.parametrize(("template", "fault"), [
    ("{{ question.name }}" + MARK + "x" + MARK, "found it 2 times"),
    (MARK + "{{ question.name }}", "expected a token before"),
    ("{{ questions[0].name }}" + MARK, "each of 2 questions"),
    ("{{ state }}", "question or questions"),
    ("{{ question.name", "decision_template.jinja: "),
    ("{{ raise_exception('no ' ~ question.name) }}", "no spam"),
    ("{{ question.__class__ }}", "unsafe"),
])  # fmt: skip
def test_templates_that_cannot_be_used(tokenizer: Tokenizer, template: str, fault: str) -> None:
    prompts = Prompts(tokenizer, DecisionSettings(template=template))
    questions = {**NOUL, "other": {"type": "noul"}} if "questions" in template else NOUL
    with pytest.raises(ValueError, match=fault):
        prompts.read({"state": "x", "questions": questions})


@pytest.mark.parametrize("request_", [
    5,
    {"state": "x"},
    {"questions": NOUL},
    {"state": "x", "questions": {}},
    {"state": "x", "questions": NOUL, "assets": {"a": "b"}},
])  # fmt: skip
def test_wrong_requests(tokenizer: Tokenizer, request_: Any) -> None:
    with pytest.raises(ValueError, match=r"^(request|questions|assets): "):
        Prompts(tokenizer, DecisionSettings()).read(request_)
    with pytest.raises(TypeError, match="^state: "):
        Prompts(tokenizer, DecisionSettings()).read({"state": object(), "questions": NOUL})


@pytest.mark.parametrize("template", [None, TOGETHER, JEV_TEMPLATE])
@pytest.mark.parametrize("named", [None, ["<tool_call>"]])
def test_requests_write_no_control_tokens(
    tokenizer: Tokenizer, tmp_path: Path, template: str | None, named: list[str] | None
) -> None:
    """Special tokens, template syntax, sentinels and marks in a request are plain text."""
    write_tokenizer(tmp_path, **({} if named is None else {"chat_control_tokens": named}))
    settings = Tokenizer.from_dir(tmp_path)
    assert settings is not None
    prompts = Prompts(settings, DecisionSettings(template=template))
    harmless = json.loads(json.dumps(REQUESTS[3]).replace("<", "(").replace("\U000f0000", ""))
    hostile = {**REQUESTS[3], "state": [*REQUESTS[3]["state"], {UNSAFE: UNSAFE}]}
    harmless["state"].append({"a": "b"})
    controls = {token for token in settings.added_tokens if token != "<tool_call>"} | {MARK, SPLIT}
    if template is not None:
        controls -= {"<think>", "</think>"}
    if named is not None:
        controls = (controls - {"<think>", "</think>"}) | {"<tool_call>"}
    ids = {prompts.tokenizer.token_to_id(token) for token in controls}
    for completion, other in zip(prompts.read(hostile), prompts.read(harmless), strict=True):
        assert [token for token in completion.token_ids if token in ids] == [
            token for token in other.token_ids if token in ids
        ]
        assert len(completion.places) == len(other.places)


def test_marks_of_a_request_are_left_out(tokenizer: Tokenizer) -> None:
    """The text is that without them, not one that they divide: "Yes" stays one token."""
    prompts = Prompts(tokenizer, DecisionSettings())
    marked, plain = (prompts.read({"state": text, "questions": NOUL})[0] for text in ("Y\U000f0000es\U000f0001", "Yes"))
    assert marked.token_ids == plain.token_ids


def test_a_cut_token_of_a_template_stays_text(tokenizer: Tokenizer) -> None:
    """Removed marks still divide texts that would otherwise join to one token."""
    template = "{{ state[1:] }}" + MARK + "{{ question.name }}"
    (result,) = Prompts(tokenizer, DecisionSettings(template=template)).read({"state": "<|im_end|>", "questions": NOUL})
    assert tokenizer.token_to_id("<|im_end|>") not in result.token_ids
    assert tokenizer.decode(result.token_ids[: result.places[0] + 1]) == "<|im_end|>"


def test_sentinels_are_taken_out_where_control_tokens_stay(tokenizer: Tokenizer) -> None:
    settings = DecisionSettings(template="{{ state|tojson }}" + MARK, sanitize_control_tokens=False)
    with pytest.raises(ChatTemplateError, match="question or questions"):
        Prompts(tokenizer, settings).read({"state": "", "questions": NOUL})
    settings = DecisionSettings(template="{{ state|tojson }}{{ question.name }}" + MARK, sanitize_control_tokens=False)
    state = {"a<|mark|>": ["<|ma<|split|>rk|> <|im_end|>"]}
    (result,) = Prompts(tokenizer, settings).read({"state": state, "questions": NOUL})
    assert tokenizer.decode(result.token_ids, skip_special_tokens=False) == '{"a": [" <|im_end|>"]}spam'
    assert tokenizer.token_to_id("<|im_end|>") in result.token_ids and result.places == (len(result.token_ids) - 1,)

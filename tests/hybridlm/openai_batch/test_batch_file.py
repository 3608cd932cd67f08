"""OpenAI Batch files: answers equal `generate`, `chat` and `score` for any neighbours."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from filled import nan_token
from toy_scorer import run_toy, toy_model

import hybridlm
from hybridlm import Session
from hybridlm.grammars import grammar_text
from hybridlm.openai_batch.batch_task import batch_rows
from hybridlm.openai_batch.request import read_request
from hybridlm.openai_batch.response import _message
from hybridlm.text import Tokenizer

pytestmark = pytest.mark.slow

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def line(custom_id: str, url: str = COMPLETIONS, **body: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def model_of(lm: hybridlm.LM) -> Any:
    return toy_model(lm.text_model.inputs, lm.session, lm.text_model.scores, "tiny")


def answered(model: Any, lines: Sequence[Any], folder: Path, window: int = 64) -> list[dict[str, Any]]:
    """Return the output's lines; input lines that are no objects are written verbatim."""
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    (folder / "in.jsonl").write_text(text + "\n")
    report = run_toy(batch_rows(model, {}), folder / "in.jsonl", folder / "out.jsonl", window=window)
    rows = [json.loads(row) for row in (folder / "out.jsonl").read_text().splitlines()]
    assert (report.responses, report.bad_lines) == (
        sum(row["error"] is None for row in rows),
        sum(row["error"] is not None for row in rows),
    )
    return rows


def body(row: dict[str, Any]) -> dict[str, Any]:
    assert row["error"] is None and row["response"]["status_code"] == 200, row
    return row["response"]["body"]


LINES = [
    line("greedy", prompt="Who has", max_tokens=5, temperature=0, model="anything", user={"name": "u"}),
    line("sampled", prompt=["Who has", "the kite"], max_tokens=6, n=2, seed=5, top_p=0.9),
    line("unseeded", prompt="Who has", max_tokens=6),
    line("ids", prompt=[[5, 6, 7], [8, 9]], max_tokens=4, temperature=0, ignore_eos=True, return_token_ids=True),
    line("chat", CHAT, messages=[{"role": "user", "content": [{"type": "text", "text": "hi"}]}], max_tokens=5, top_k=1),
    line("echo", prompt="Who has", max_tokens=5, temperature=0, echo=True),
    line("other", prompt="Who has", max_tokens=6),
]


def chat_ids(lm: hybridlm.LM, message: str) -> list[int]:
    assert lm.tokenizer is not None
    text = lm.tokenizer.apply_chat_template([{"role": "user", "content": message}])
    return lm.tokenizer.encode(text, add_special_tokens=False)


@pytest.fixture(scope="module")
def rows(text_lm: hybridlm.LM, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    answers = answered(model_of(text_lm), LINES, tmp_path_factory.mktemp("batch"))
    assert [row["custom_id"] for row in answers] == [line["custom_id"] for line in LINES]
    return {row["custom_id"]: row for row in answers}


def texts(row: dict[str, Any]) -> list[str]:
    choices = body(row)["choices"]
    assert [choice["index"] for choice in choices] == list(range(len(choices)))
    return [choice["text"] for choice in choices]


def test_answers_are_those_of_generate(text_lm: hybridlm.LM, rows: dict[str, dict[str, Any]]):
    chat = chat_ids(text_lm, "hi")
    long, answer, short = text_lm.generate(["Who has", chat, "Who has"], max_tokens=5)
    assert texts(rows["greedy"]) == [long.text]
    assert body(rows["greedy"])["choices"][0]["finish_reason"] == long.finish_reason
    assert texts(rows["echo"]) == [f"Who has{short.text}"]
    assert body(rows["chat"])["object"] == "chat.completion" and body(rows["chat"])["choices"][0]["logprobs"] is None
    assert body(rows["chat"])["choices"][0]["message"] == {"role": "assistant", "content": answer.text}
    sampled = text_lm.generate(["Who has", "the kite"], max_tokens=6, temperature=1.0, n=2, seed=5, top_p=0.9)
    assert texts(rows["sampled"]) == [completion.text for completion in sampled]
    ids = text_lm.generate([[5, 6, 7], [8, 9], [4]], max_tokens=4, ignore_eos=True)[:2]
    assert [row["token_ids"] for row in body(rows["ids"])["choices"]] == [completion.token_ids for completion in ids]
    assert [row["prompt_token_ids"] for row in body(rows["ids"])["choices"]] == [[5, 6, 7], [8, 9]]
    assert body(rows["ids"])["usage"] == {"prompt_tokens": 5, "completion_tokens": 8, "total_tokens": 13}


def test_model_and_user_are_recorded(rows: dict[str, dict[str, Any]]):
    assert (body(rows["greedy"])["model"], body(rows["greedy"])["user"]) == ("anything", {"name": "u"})
    assert body(rows["ids"])["model"] == "tiny" and "user" not in body(rows["ids"])
    names = [name for row in rows.values() for name in (row["id"], row["response"]["request_id"], body(row)["id"])]
    assert len(set(names)) == 3 * len(LINES)


def test_lines_without_a_seed_differ_and_do_not_depend_on_their_place(
    text_lm: hybridlm.LM, rows: dict[str, dict[str, Any]], tmp_path: Path
):
    assert texts(rows["unseeded"]) != texts(rows["other"])
    answers = answered(model_of(text_lm), LINES[::-1], tmp_path, window=4)
    for row in answers:
        assert body(row)["choices"] == body(rows[row["custom_id"]])["choices"]


@pytest.mark.long
def test_logprobs_are_those_of_generate_and_score(text_lm: hybridlm.LM, tmp_path: Path):
    settings: dict[str, Any] = {"max_tokens": 4, "temperature": 0, "ignore_eos": True}
    message = [{"role": "user", "content": "hi"}]
    answers = answered(
        model_of(text_lm),
        [
            line("a", prompt="Who has", logprobs=3, **settings),
            line("b", CHAT, messages=message, logprobs=True, top_logprobs=3, **settings),
            line("c", prompt=[[5, 6, 7, 8], [5, 6], [6, 5]], logprobs=0, echo=True, max_tokens=0, temperature=0),
            line("d", prompt="the kite", logprobs=3, return_tokens_as_token_ids=True, **settings),
        ],
        tmp_path,
    )
    prompts = ["Who has", chat_ids(text_lm, "hi"), "the kite"]
    a, chat, d = text_lm.generate(prompts, max_tokens=4, ignore_eos=True, logprobs=3)
    assert text_lm.tokenizer is not None and a.top_logprobs is not None and chat.top_logprobs is not None
    logprobs = body(answers[0])["choices"][0]["logprobs"]
    names = [text_lm.tokenizer.decode([token], skip_special_tokens=False) for token in a.token_ids]
    assert logprobs["tokens"] == names and logprobs["token_logprobs"] == a.logprobs
    assert [list(top.values()) for top in logprobs["top_logprobs"]] == [list(top.values()) for top in a.top_logprobs]
    for entry, token, logprob, top in zip(
        body(answers[1])["choices"][0]["logprobs"]["content"],
        chat.token_ids,
        chat.logprobs or [],
        chat.top_logprobs,
        strict=True,
    ):
        name = text_lm.tokenizer.decode([token], skip_special_tokens=False)
        assert (entry["token"], entry["logprob"], entry["bytes"]) == (name, logprob, list(name.encode()))
        assert [other["logprob"] for other in entry["top_logprobs"]] == list(top.values())
    echoed, score = body(answers[2])["choices"][0], text_lm.score([[5, 6, 7, 8], [5, 6], [6, 5]])[0]
    assert echoed["text"] == text_lm.tokenizer.decode([5, 6, 7, 8]) and echoed["finish_reason"] == "length"
    assert echoed["logprobs"]["token_logprobs"] == [None, *score.logprobs[1:].tolist()]
    assert echoed["logprobs"]["top_logprobs"][0] is None and echoed["logprobs"]["text_offset"] == [0, 1, 2, 3]
    assert body(answers[3])["choices"][0]["logprobs"]["tokens"] == [f"token_id:{token}" for token in d.token_ids]


def test_offsets_count_special_tokens_in_the_text(text_lm: hybridlm.LM, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"logprobs": 0, "echo": True, "temperature": 0}
    begin = {"allowed_token_ids": [1], "max_tokens": 3}
    answers = answered(
        model_of(text_lm),
        [
            line("ids", prompt=[5, 2, 6, 7], max_tokens=0, **settings),
            line("text", prompt='"<end>#', max_tokens=0, **settings),
            line("written", prompt=[5], skip_special_tokens=False, **begin, **settings),
            line("skipped", prompt=[5], **begin, **settings),
        ],
        tmp_path,
    )
    choices = [body(answer)["choices"][0] for answer in answers]
    assert [choice["text"] for choice in choices] == ['"<end>#$', '"<end>#', '"' + 3 * "<begin>", '"']
    offsets = [choice["logprobs"]["text_offset"] for choice in choices]
    assert offsets == [[0, 1, 6, 7], [0, 1, 6], [0, 1, 8, 15], [0, 1, 1, 1]]


def test_without_a_tokenizer_text_is_null(text_lm: hybridlm.LM, tmp_path: Path):
    inputs = dataclasses.replace(text_lm.text_model.inputs, tokenizer=None)
    model = model_of(text_lm)
    model.inputs, model.session = inputs, lambda: Session(text_lm.engine, inputs, None)
    answers = answered(
        model,
        [
            line("a", prompt=[[5, 6, 7], [5, 6], [6, 5]], max_tokens=0, logprobs=0, echo=True),
            line("b", prompt=[[5, 6, 7], [5, 6], [5]], max_tokens=4, temperature=0),
            line("c", prompt="text"),
            line("d", CHAT, messages=[{"role": "user", "content": "hi"}]),
            line("e", prompt=[5], return_tokens_as_token_ids=False),
        ],
        tmp_path,
    )
    a, b = body(answers[0])["choices"][0], body(answers[1])["choices"]
    assert a["text"] is None and a["logprobs"]["tokens"] == ["token_id:5", "token_id:6", "token_id:7"]
    want = text_lm.generate([[5, 6, 7], [5, 6], [5]], max_tokens=4)
    assert [(row["text"], row["token_ids"]) for row in b] == [(None, completion.token_ids) for completion in want]
    for row in answers[2:]:
        assert "no tokenizer.json" in row["error"]["message"]


BAD = {
    "expected a JSON object": "{",
    "custom_id: is missing; method: is missing; url: is missing; body: is missing": {},
    "custom_id: expected a string, got 5; body: expected an object, got [1]; model: is not supported": {
        "custom_id": 5, "method": "POST", "url": COMPLETIONS, "body": [1], "model": "x",
    },
    "method: expected POST, got 'GET'; url: expected": line("g", "/v1/embeddings", prompt="x") | {"method": "GET"},
    "prompt: is missing; n: expected a whole number in 1..1024, got 0": line("n", n=0),
    "best_of: is supported only with the value of n (1); tools: is supported only with": line(
        "t", prompt="x", best_of=2, tools=[{}]
    ),
    "store: is supported only with the value false, got true": line("store", prompt="x", store=True),
    "frequency_penalty: expected a number, got false": line("fp", prompt="x", frequency_penalty=False),
    "service_tier: is supported only with the value \"auto\" or \"default\", got \"flex\"": line(
        "tier", prompt="x", service_tier="flex"
    ),
    "url: expected /v1/completions or /v1/chat/completions, got '/v1/embeddings' (embeddings are": line(
        "emb", "/v1/embeddings", input="x"
    ),
    "url: expected /v1/completions or /v1/chat/completions, got '/v1/responses' (send the messages": line(
        "resp", "/v1/responses", input="x"
    ),
    "url: expected /v1/completions or /v1/chat/completions, got '/score' (`hybridlm score`": line("sc", "/score"),
    "tool_choice: expected auto or none, got \"required\"": line("tc", CHAT, messages=[], tool_choice="required"),
    "parallel_tool_calls: is supported only with the value true; tools[0]: expected": line(
        "ptc", CHAT, messages=[], tools=[{"type": "code"}], parallel_tool_calls=False
    ),
    "tools: the chat template does not read this; it reads": line(
        "nt", CHAT, messages=[{"role": "user", "content": "hi"}], tools=[{"type": "function", "function": {}}]
    ),
    "documents: is [{'title': 'a'}], and [] in chat_template_kwargs; give one of them": line(
        "doc", CHAT, messages=[], documents=[{"title": "a"}], chat_template_kwargs={"documents": []}
    ),
    "stream: is supported only with the value false, got true": line("s", prompt="x", stream=True),
    "max_tokens: 0 only makes sense with echo": line("m", prompt="x", max_tokens=0),
    "n: expected 1 ": line("m2", prompt="x", max_tokens=0, n=2, echo=True),
    "max_tokens: expected a whole number in 0..": line("m3", prompt="x", max_tokens="5"),
    "max_completion_tokens: is not supported": line("m4", prompt="x", max_completion_tokens=5),
    "max_completion_tokens: is 5, max_tokens is 6": line(
        "m5", CHAT, messages=[], max_tokens=6, max_completion_tokens=5
    ),
    "top_logprobs: needs logprobs: true": line("l", CHAT, messages=[], top_logprobs=2),
    "logprobs: expected true or false, got 2; echo: is supported only with the value false": line(
        "l2", CHAT, messages=[], logprobs=2, echo=True
    ),
    "logprobs: expected a whole number in 0..": line("l3", prompt="x", logprobs=True),
    "temperature: expected 0 (greedy), or a number in ": line("h", prompt="x", temperature=-1),
    "stop: expected a string or a list of strings": line("stop", prompt="x", stop=[5]),
    "prompt: expected a string, a list of strings": line("p", prompt=[]),
    "prompt: expected a string, a list of strings, ": line("p2", prompt=["x", [5]]),
    "prompt: token id 100000 at index 1 is outside the vocabulary": line("p3", prompt=[5, 100000]),
    "prompt[1]: is empty": line("p4", prompt=["x", ""]),
    "prompt: has 300 tokens, the context holds 256": line("p5", prompt="x" * 300),
    "messages: expected at least one message": line("c", CHAT, messages=[]),
    "messages[0]: expected a dict": line("c2", CHAT, messages=["x"]),
    "messages[0].content[0]: expected text": line(
        "c3", CHAT, messages=[{"role": "user", "content": [{"type": "image_url"}]}]
    ),
}  # fmt: skip


def test_a_bad_line_has_an_error_and_stops_nothing(text_lm: hybridlm.LM, tmp_path: Path):
    good = line("good", prompt=["x", "y", "z"], max_tokens=2, temperature=0, stream=False, suffix=None)
    answers = answered(model_of(text_lm), [*BAD.values(), "", good, good], tmp_path)
    assert len(answers) == len(BAD) + 2
    for number, (row, message) in enumerate(zip(answers, BAD, strict=False), 1):
        assert row["response"] == {"status_code": 400, "request_id": row["response"]["request_id"], "body": None}
        assert row["error"]["code"] == "invalid_request"
        assert row["error"]["message"].startswith(f"line {number}: {message}"), row["error"]["message"]
    assert texts(answers[-2]) == [completion.text for completion in text_lm.generate(["x", "y", "z"], max_tokens=2)]
    # Blank lines have numbers, too.
    last = len(BAD) + 3
    message = answers[-1]["error"]["message"]
    assert message.startswith(f"line {last}: custom_id: is used twice, first in line {last - 1};")


@pytest.mark.parametrize("endpoint", [COMPLETIONS, CHAT])
def test_whole_numbers_as_floats(text_lm: hybridlm.LM, endpoint: str):
    full = {"max_tokens": 4, "n": 2, "seed": 5, "top_k": -1, "min_tokens": 1, "stop_token_ids": [7]}
    full |= {"logprobs": 2} if endpoint == COMPLETIONS else {"logprobs": True, "top_logprobs": 2}
    start = {"prompt": "x"} if endpoint == COMPLETIONS else {"messages": [{"role": "user", "content": "hi"}]}
    floats = {
        name: value if value is True else [7.0] if name == "stop_token_ids" else float(value)
        for name, value in full.items()
    }
    read = [
        read_request(line("a", endpoint, **start, **fields), text_lm.text_model.inputs) for fields in (full, floats)
    ]
    assert read[0] == read[1]
    params = read[1].requests[0].params
    assert [type(number) for number in (params.max_tokens, params.seed, params.top_k, params.min_tokens)] == [int] * 4


@pytest.mark.parametrize(("name", "value"), [
    ("max_tokens", 4.5), ("max_tokens", "4"), ("max_tokens", True), ("max_tokens", -1.0), ("max_tokens", 1e300),
    ("seed", -2), ("seed", -2.0), ("truncate_prompt_tokens", -2), ("truncate_prompt_tokens", 0),
    ("truncate_prompt_tokens", 241), ("truncation_side", "middle"), ("allowed_token_ids", [True]),
    ("allowed_token_ids", []), ("allowed_token_ids", [100000]), ("seed", 0.5), ("seed", 2.0**60), ("n", 0.0),
    ("n", [1]), ("top_k", -2.0), ("top_k", 1.5), ("min_tokens", 0.1), ("logprobs", 1.5), ("stop_token_ids", [7.5]),
    ("stop_token_ids", [True]), ("temperature", "1"),
])  # fmt: skip
def test_other_numbers_are_refused_by_name(text_lm: hybridlm.LM, name: str, value: Any):
    with pytest.raises(ValueError, match=f"^{name}: expected .*, got "):
        read_request(line("a", prompt="x", **{name: value}), text_lm.text_model.inputs)


@pytest.mark.parametrize("seed", [-1, -1.0])
def test_a_seed_of_minus_one_is_no_seed(text_lm: hybridlm.LM, seed: float) -> None:
    inputs = text_lm.text_model.inputs
    lines = line("a", prompt="x"), line("a", prompt="x", seed=seed), line("b", prompt="x", seed=seed)
    seeds = [read_request(request, inputs).requests[0].params.seed for request in lines]
    assert seeds[0] == seeds[1] != seeds[2]


@pytest.mark.parametrize(("fields", "expected"), [
    ({"truncate_prompt_tokens": 3}, [14, 15, 16]),
    ({"truncate_prompt_tokens": 3.0, "truncation_side": "right"}, [7, 8, 9]),
    ({"truncate_prompt_tokens": 10}, list(range(7, 17))),
    ({"truncate_prompt_tokens": -1}, list(range(7, 17))),
    ({"truncate_prompt_tokens": -1, "max_tokens": 250}, list(range(11, 17))),
], ids=str)  # fmt: skip
def test_prompts_are_truncated_on_request(text_lm: hybridlm.LM, fields: dict[str, Any], expected: list[int]) -> None:
    """The context has 256 tokens: with `max_tokens` of 250 a prompt has room for 6."""
    request = line("a", prompt=[list(range(7, 17)), [5]], **fields)
    prompts = read_request(request, text_lm.text_model.inputs).prompts
    assert [list(prompt.token_ids) for prompt in prompts] == [expected, [5]]


def test_truncated_prompts_of_texts_and_chats(text_lm: hybridlm.LM, tmp_path: Path) -> None:
    lines = [
        line("a", prompt="Who has", truncate_prompt_tokens=2, max_tokens=2, temperature=0, echo=True),
        line("b", CHAT, messages=[{"role": "user", "content": "x" * 300}], truncate_prompt_tokens=-1),
        line("c", CHAT, messages=[{"role": "user", "content": "x" * 300}]),
    ]
    cut, chat, long = answered(model_of(text_lm), lines, tmp_path)
    assert text_lm.tokenizer is not None
    ids = text_lm.tokenizer.encode("Who has")[-2:]
    completion = text_lm.generate([ids], max_tokens=2)[0]
    assert body(cut)["choices"][0]["text"] == f"{text_lm.tokenizer.decode(ids)}{completion.text}"
    assert body(cut)["usage"]["prompt_tokens"] == 2
    assert body(chat)["usage"] == {"prompt_tokens": 255, "completion_tokens": 1, "total_tokens": 256}
    assert "the context holds 256" in long["error"]["message"]


def test_only_allowed_tokens_are_sampled(text_lm: hybridlm.LM, tmp_path: Path) -> None:
    allowed = {"allowed_token_ids": [9.0, 5], "max_tokens": 12, "return_token_ids": True}
    lines = [line(str(seed), prompt="Who has", seed=seed, **allowed) for seed in range(4)]
    answers = answered(
        model_of(text_lm), [*lines, line("free", prompt="Who has", seed=0, return_token_ids=True)], tmp_path
    )
    *sampled, free = [body(row)["choices"][0]["token_ids"] for row in answers]
    assert {token for ids in sampled for token in ids} == {5, 9} and not set(free) <= {5, 9}


EFFORT = "{% if reasoning_effort %}[{{ reasoning_effort }}]{% endif %}"
SWITCH = "{% if enable_thinking is false %}[off]{% endif %}"


@pytest.mark.parametrize(("template", "fields", "start"), [
    (EFFORT, {}, ""),
    (EFFORT, {"reasoning_effort": "low"}, "[low]"),
    (EFFORT + SWITCH, {"reasoning_effort": "none"}, "[none][off]"),
    (EFFORT + SWITCH, {"reasoning_effort": "high"}, "[high]"),
    (EFFORT + SWITCH, {"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": False}}, "[high][off]"),
    (SWITCH, {"reasoning_effort": "none"}, "[off]"),
], ids=str)  # fmt: skip
def test_reasoning_effort_is_a_variable_of_the_template(
    text_lm: hybridlm.LM, template: str, fields: dict[str, Any], start: str
) -> None:
    template += "{% for message in messages %}{{ message.content }}{% endfor %}"
    request = line("a", CHAT, messages=[{"role": "user", "content": "hi"}], chat_template=template, **fields)
    prompt = read_request(request, text_lm.text_model.inputs).prompts[0]
    assert text_lm.tokenizer is not None and text_lm.tokenizer.decode(prompt.token_ids) == f"{start}hi"


@pytest.mark.parametrize(("url", "fields"), [
    (CHAT, {"reasoning_effort": "low"}),
    (CHAT, {"reasoning_effort": "low", "chat_template": SWITCH + "{{ messages }}"}),
    (CHAT, {"reasoning_effort": "much", "chat_template": EFFORT + "{{ messages }}"}),
    (CHAT, {"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}}),
    (COMPLETIONS, {"reasoning_effort": "low"}),
], ids=str)  # fmt: skip
def test_efforts_that_are_refused(text_lm: hybridlm.LM, url: str, fields: dict[str, Any]) -> None:
    fields |= {"messages": [{"role": "user", "content": "hi"}]} if url == CHAT else {"prompt": "x"}
    with pytest.raises(ValueError, match="^reasoning_effort: "):
        read_request(line("a", url, **fields), text_lm.text_model.inputs)


def test_stop_strings_and_ids(text_lm: hybridlm.LM):
    request = read_request(
        line("a", prompt="x", stop="\n", stop_token_ids=[7], max_tokens=3), text_lm.text_model.inputs
    )
    params = request.requests[0].params
    assert params.stop_strings == ("\n",) and params.stop_token_ids == {7, *text_lm.eos_token_ids}
    # As OpenAI has it: temperature 1, sixteen tokens of a completion, a chat up to the end of the context.
    assert (params.temperature, params.max_tokens) == (1.0, 3)
    assert read_request(line("a", prompt="x"), text_lm.text_model.inputs).requests[0].params.max_tokens == 16
    chat = read_request(line("a", CHAT, messages=[{"role": "user", "content": "hi"}]), text_lm.text_model.inputs)
    assert chat.requests[0].params.max_tokens == text_lm.context


def test_logits_that_are_no_numbers_are_an_error_of_their_line(text_lm: hybridlm.LM, tmp_path: Path):
    lines = [
        line("drawn", prompt=[[5, 6], [5, 9], [5, 7]], max_tokens=2, temperature=0, stop_token_ids=[9]),
        line("scored", prompt=[5, 9, 8], max_tokens=0, echo=True, logprobs=0),
        line("good", prompt=[[5, 6, 7], [5, 7]], max_tokens=0, echo=True, logprobs=0),
    ]
    with nan_token(text_lm):
        answers = answered(model_of(text_lm), lines, tmp_path)
    assert [row["response"]["status_code"] for row in answers] == [500, 500, 200]
    assert answers[0]["error"]["message"].startswith("line 1: choice 1: token 2: expected finite numbers")
    assert answers[1]["error"]["message"].startswith("line 2: prompt 0: token")


def every_default(chat: bool) -> dict[str, Any]:
    """Fields that clients send although they ask for nothing, null ones apart."""
    fields: dict[str, Any] = {
        "n": 1, "user": "u", "metadata": {"a": "b"}, "store": False, "stream": False, "stream_options": {}, "stop": [],
        "presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1.0, "length_penalty": 1.0,
        "logit_bias": {}, "service_tier": "auto", "top_p": 1, "top_k": -1, "min_p": 0, "seed": 3, "min_tokens": 0,
        "bad_words": [], "stop_token_ids": [], "skip_special_tokens": True, "spaces_between_special_tokens": True,
        "include_stop_str_in_output": False, "detokenize": True, "logits_processors": [], "priority": 0,
        "use_beam_search": False, "ignore_eos": False, "response_format": {"type": "text"}, "tools": [],
        "tool_choice": "none", "prompt_cache_key": "k", "prompt_cache_retention": "24h", "safety_identifier": "s",
        "request_id": "r", "cache_salt": "c", "session_id": "s", "truncate_prompt_tokens": 9, "truncation_side": "left",
    }  # fmt: skip
    if not chat:
        return fields | {"best_of": 1, "echo": False, "suffix": "", "add_special_tokens": True}
    return fields | {
        "logprobs": False, "functions": [], "function_call": "none", "parallel_tool_calls": True,
        "modalities": ["text"], "verbosity": "medium", "add_generation_prompt": True, "continue_final_message": False,
        "add_special_tokens": False, "echo": False, "documents": [], "chat_template_kwargs": {},
        "include_reasoning": True, "mm_processor_kwargs": {},
    }  # fmt: skip


@pytest.mark.parametrize("chat", [False, True])
def test_fields_that_ask_for_nothing_change_nothing(text_lm: hybridlm.LM, chat: bool):
    message: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]} if chat else {"prompt": "hi"}
    url = CHAT if chat else COMPLETIONS
    plain = read_request(line("a", url, seed=3, user="u", **message), text_lm.text_model.inputs)
    for fields in (every_default(chat), dict.fromkeys(every_default(chat)) | {"seed": 3, "user": "u"}):
        assert read_request(line("a", url, **message, **fields), text_lm.text_model.inputs) == plain


TOOL = {"type": "function", "function": {"name": "lookup", "parameters": {"type": "object", "properties": {}}}}
WITH_TOOLS = "{% for tool in tools or [] %}[{{ tool.function.name }}]{% endfor %}"


@pytest.mark.parametrize(("choice", "visible"), [(None, True), ("auto", True), ("none", False)])
def test_tools_are_shown_by_a_template_that_has_them(text_lm: hybridlm.LM, choice: str | None, visible: bool):
    assert text_lm.tokenizer is not None
    backend = text_lm.tokenizer._backend
    template = WITH_TOOLS + "{% for message in messages %}{{ message.content }}{% endfor %}"
    inputs = dataclasses.replace(text_lm.text_model.inputs, tokenizer=Tokenizer(backend, {}, {"default": template}))
    messages = [{"role": "user", "content": "hi"}]
    request = read_request(line("a", CHAT, messages=messages, tools=[TOOL], tool_choice=choice), inputs)
    expected = "[lookup]hi" if visible else "hi"
    assert list(request.prompts[0].token_ids) == text_lm.tokenizer.encode(expected, add_special_tokens=False)


def test_penalties_bans_and_text_options(text_lm: hybridlm.LM) -> None:
    request = {"repetition_penalty": 1.1, "presence_penalty": 1.5, "frequency_penalty": 0.5, "min_tokens": 2}
    texts = {"skip_special_tokens": False, "keep_tool_markers": True, "think_end": "</t>"}
    extra = {"logit_bias": {"3": 2}, "bad_words": [[4, 5]], "thinking_token_budget": 7}
    params = (
        read_request(line("a", prompt="x", **request, **texts, **extra), text_lm.text_model.inputs).requests[0].params
    )
    assert {name: getattr(params, name) for name in (request | texts)} == request | texts
    assert (params.logit_bias, params.bad_words, params.thinking_budget) == (((3, 2.0),), ((4, 5),), 7)
    plain = read_request(line("a", prompt="x"), text_lm.text_model.inputs).requests[0].params
    assert not plain.changes_logits and plain.skip_special_tokens and plain.thinking_budget is None


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.mark.parametrize(("fields", "form"), [
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}, {"json": SCHEMA}),
    ({"response_format": {"type": "json_object", "json_schema": None}}, {"json_object": True}),
    ({"response_format": {"type": "text"}, "structured_outputs": {"regex": "a+", "json": None}}, {"regex": "a+"}),
    ({"guided_choice": ["a", "b"]}, {"choice": ["a", "b"]}),
    ({"guided_json": json.dumps(SCHEMA)}, {"json": SCHEMA}),
    ({"guided_regex": "a+"}, {"regex": "a+"}),
    ({"guided_grammar": 'start: "a"'}, {"grammar": 'start: "a"'}),
], ids=lambda value: "-".join(value))  # fmt: skip
def test_forms_of_answers(text_lm: hybridlm.LM, fields: dict[str, Any], form: dict[str, Any]) -> None:
    grammar = read_request(line("a", prompt="x", **fields), text_lm.text_model.inputs).requests[0].params.grammar
    assert grammar == grammar_text(form)
    assert read_request(line("a", prompt="x"), text_lm.text_model.inputs).requests[0].params.grammar is None


@pytest.mark.parametrize(("fields", "message"), [
    ({"response_format": {"type": "xml"}}, "response_format: expected"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format: expected"),
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, "response_format: expected"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA, "$defs": {}}}},
     "response_format: expected"),
    ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_regex and guided_choice: give one of them"),
    ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs: expected a mapping with one of json"),
    ({"structured_outputs": {"regex": "(a"}}, "structured_outputs: cannot be compiled"),
], ids=str)  # fmt: skip
def test_forms_that_are_refused(text_lm: hybridlm.LM, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        read_request(line("a", prompt="x", **fields), text_lm.text_model.inputs)


def test_answers_have_their_forms(text_lm: hybridlm.LM, tmp_path: Path) -> None:
    """One that no token can follow is an error of its line."""
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 30}
    lines = [
        line("plain", prompt="x", max_tokens=3),
        line("choice", prompt="x", structured_outputs={"choice": ["yes", "no"]}, n=3),
        line("chat", CHAT, **chat, response_format={"type": "json_schema", "json_schema": {"schema": {"const": 3}}}),
        line("dead", prompt=["x", "y"], structured_outputs={"regex": "ab"}, bad_words=["b"]),
    ]
    plain, choice, chat, dead = answered(model_of(text_lm), lines, tmp_path)
    answer = answered(model_of(text_lm), lines[:1], tmp_path)[0]
    assert body(plain)["choices"] == body(answer)["choices"]
    assert {row["text"] for row in choice["response"]["body"]["choices"]} <= {"yes", "no"}
    message = chat["response"]["body"]["choices"][0]
    assert (message["message"]["content"], message["finish_reason"]) == ("3", "stop")
    assert (dead["response"]["status_code"], dead["error"]["code"]) == (500, "grammar_error")
    assert dead["error"]["message"].startswith("line 4: choice 0: no token is possible in place 2")


def test_chats_are_those_of_the_tokenizer(text_lm: hybridlm.LM) -> None:
    """Content in parts, tool calls with textual arguments, and every template field."""
    assert text_lm.tokenizer is not None
    template = """{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}
{{- p.text }}{% endfor %}{% endif %}{% for c in m.tool_calls or [] %}{% for k, v in c.function.arguments | items %}
{{- k }}={{ v }}{% endfor %}{% endfor %}{{ m.reasoning_content }};{% endfor %}{{ documents[0].title }}{{ more }}
{%- if add_generation_prompt %}A:{% endif %}"""
    call = {"type": "function", "function": {"name": "f", "arguments": '{"city": "Paris"}'}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a b"}, {"type": "text", "text": "c"}]},
        {"role": "assistant", "content": "d", "tool_calls": [call], "reasoning": "hm"},
    ]
    fields: dict[str, Any] = {"chat_template": template, "documents": [{"title": "T"}]}
    fields["chat_template_kwargs"] = {"more": "!"}
    prompt = read_request(line("a", CHAT, messages=messages, **fields), text_lm.text_model.inputs).requests[0].prompt
    assert text_lm.tokenizer.decode(prompt) == "a bc;dcity=Parishm;T!A:"
    fields |= {"add_generation_prompt": False, "continue_final_message": True}
    prompt = read_request(line("a", CHAT, messages=messages, **fields), text_lm.text_model.inputs).requests[0].prompt
    assert text_lm.tokenizer.decode(prompt) == "a bc;d"


def test_thoughts_are_apart_from_the_answer() -> None:
    completion = hybridlm.Completion("hm</think>yes", [1], None, None, "stop", [2], reasoning="hm", answer="yes")
    assert _message(completion.text, completion) == {"role": "assistant", "content": "yes", "reasoning": "hm"}

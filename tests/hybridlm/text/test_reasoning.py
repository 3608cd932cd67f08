"""Thoughts apart from the answer, their end marker and their budget."""

import math
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

import hybridlm
from hybridlm import SamplingParams
from hybridlm.text.chat_template import ChatTemplateError
from hybridlm.text.reasoning import markers_of, opens_thoughts, split_thoughts
from hybridlm.text.tokenizer import Tokenizer

ASKING = "{{ messages[0].content }}{% if enable_thinking | default(true) %}<think>\n{% else %}</think>{% endif %}"


def tokenizer(special: bool | None, template: str | None = None) -> Tokenizer:
    """A byte-level tokenizer with markers as special tokens, tokens, or characters."""
    backend = tokenizers.Tokenizer(
        models.BPE({t: i for i, t in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, [])
    )
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    if special is not None:
        backend.add_tokens([AddedToken(token, special=special) for token in ("<think>", "</think>")])
    return Tokenizer(backend, chat_templates={} if template is None else {"default": template})


@pytest.mark.parametrize("special", [True, False, None])
@pytest.mark.parametrize(("prompt", "message", "reasoning", "answer"), [
    ("a<think>\n", "hm 漢\n</think>\n\nyes", "hm 漢", "yes"), ("a", "<think>hm</think>yes", "hm", "yes"),
    ("a<think>", "hm", "hm", ""), ("a", "<think>hm", "hm", ""), ("a", "yes </think> no", None, None),
    ("a <think> b\nassistant:", "yes", None, None), ("a<think>", "</think>yes</think>", "", "yes</think>"),
    ("a<think>", "", "", ""),
])  # fmt: skip
def test_thoughts_and_answer(
    special: Any, prompt: str, message: str, reasoning: str | None, answer: str | None
) -> None:
    result = tokenizer(special, ASKING)
    markers, ids = markers_of(result, None), result.encode(message)
    assert markers is not None and markers == ("<think>", "</think>")
    opened = opens_thoughts(result, result.encode(prompt), markers)
    for skip in (True, False):
        text = result.decode(ids, skip)
        want = (reasoning, text if answer is None else result.decode(result.encode(answer), skip))
        assert split_thoughts(result, text, ids, markers, opened, skip) == want


def test_markers() -> None:
    assert markers_of(tokenizer(None), None) is None
    assert markers_of(tokenizer(None), "\n</reasons>\n\n") == ("<reasons>", "</reasons>")
    assert markers_of(tokenizer(None, "{{ messages }}[/THINK]"), None) == ("[THINK]", "[/THINK]")


def test_thinking_is_turned_on_and_off_where_the_template_asks() -> None:
    asking, other = tokenizer(False, ASKING), tokenizer(False, "{{ messages[0].content }}{{ thinking }}")
    assert asking.thinking_variables(False) == {"enable_thinking": False} and asking.thinking_variables(None) == {}
    assert other.thinking_variables(True) == {"thinking": True}
    with pytest.raises(ChatTemplateError, match="enable_thinking: the chat template reads none of"):
        tokenizer(False, "{{ messages[0].content }}").thinking_variables(False)


@pytest.fixture
def thinking_lm(text_lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch) -> hybridlm.LM:
    assert text_lm.tokenizer is not None
    monkeypatch.setattr(text_lm.tokenizer, "think_markers", ("<think>", "</think>"))
    monkeypatch.setattr(text_lm.tokenizer, "chat_templates", {"default": ASKING})
    monkeypatch.setattr(text_lm.tokenizer, "_compiled", {})
    return text_lm


CHAT = [{"role": "user", "content": "Where is Ada?"}]


def test_a_budget_ends_the_thoughts(thinking_lm: hybridlm.LM) -> None:
    assert thinking_lm.tokenizer is not None
    end, settings = thinking_lm.tokenizer.encode("</think>"), SamplingParams(ignore_eos=True)
    out = thinking_lm.chat(CHAT, settings, max_tokens=20, thinking_budget=5, logprobs=1)
    free = thinking_lm.chat(CHAT, settings, max_tokens=20)
    assert free.answer == "" and free.reasoning == (free.text or "").strip()
    assert out.token_ids[:5] == free.token_ids[:5] and out.token_ids[5:13] == end
    assert len(out.token_ids) == 20 and out.finish_reason == "length"
    rest = thinking_lm.generate([out.prompt_token_ids + out.token_ids[:13]], settings, max_tokens=7)[0]
    assert out.token_ids[13:] == rest.token_ids
    decode = thinking_lm.tokenizer.decode
    assert out.text == decode(out.token_ids)
    assert (out.reasoning, out.answer) == (decode(out.token_ids[:5]).strip(), decode(rest.token_ids).lstrip())
    assert out.logprobs is not None and out.top_logprobs is not None
    assert [math.isnan(value) for value in out.logprobs] == [5 <= i < 13 for i in range(20)]
    assert len(out.top_logprobs) == 20


def test_a_stop_token_in_the_inserted_end_marker_ends_the_completion(thinking_lm: hybridlm.LM) -> None:
    assert thinking_lm.tokenizer is not None
    end, last = thinking_lm.tokenizer.encode("</think>"), thinking_lm.tokenizer.encode("k>")
    settings: dict[str, Any] = {"max_tokens": 20, "ignore_eos": True, "thinking_budget": 5, "logprobs": 0}
    free = thinking_lm.chat(CHAT, **settings)
    stopped = thinking_lm.chat(CHAT, stop_token_ids=last, **settings)
    assert stopped.finish_reason == "stop" and stopped.token_ids == free.token_ids[: 5 + len(end) - 1]
    assert stopped.text == thinking_lm.tokenizer.decode(stopped.token_ids[:-1])
    assert stopped.logprobs is not None and len(stopped.logprobs) == len(stopped.token_ids)
    later = thinking_lm.chat(CHAT, stop_token_ids=last, min_tokens=6, **settings)
    assert later.token_ids[: 5 + len(end)] == [*free.token_ids[:5], *end]


def test_a_budget_is_a_lanes_own_and_streams(thinking_lm: hybridlm.LM) -> None:
    assert thinking_lm.tokenizer is not None
    prompts = [thinking_lm.tokenizer.encode_chat(CHAT, enable_thinking=on) for on in (True, False)]
    token_ids = [thinking_lm.generate([p], max_tokens=16, ignore_eos=True)[0].token_ids for p in prompts]
    texts, tokens, results = {0: "", 1: "", 2: ""}, {0: [], 1: [], 2: []}, {}
    with thinking_lm.session() as session:
        session.submit(prompts[0], max_tokens=16, ignore_eos=True, thinking_budget=3)
        session.submit(prompts[1], max_tokens=16, ignore_eos=True, thinking_budget=3)
        session.submit(prompts[0], max_tokens=16, ignore_eos=True)
        while session.busy:
            for event in session.step():
                texts[event.index] += event.text
                tokens[event.index] += [] if event.token is None else [event.token]
                if event.completion is not None:
                    results[event.index] = event.completion
    assert [results[1].token_ids, results[2].token_ids] == [token_ids[1], token_ids[0]]
    for index in range(3):
        assert texts[index] == results[index].text and tokens[index] == results[index].token_ids
    assert results[0].token_ids[3:11] == thinking_lm.tokenizer.encode("</think>")


def test_sampled_thoughts_go_on_with_their_own_random_numbers(thinking_lm: hybridlm.LM) -> None:
    settings: dict[str, Any] = {"max_tokens": 20, "ignore_eos": True, "temperature": 1.0, "seed": 5}
    completions = thinking_lm.chat(CHAT, thinking_budget=4, frequency_penalty=9.0, **settings)
    repeat = thinking_lm.chat(CHAT, thinking_budget=4, frequency_penalty=9.0, **settings)
    assert completions.token_ids == repeat.token_ids and len(completions.token_ids) == 20


def test_chat_options(thinking_lm: hybridlm.LM) -> None:
    assert thinking_lm.tokenizer is not None
    off = thinking_lm.chat(CHAT, max_tokens=3, enable_thinking=False)
    assert thinking_lm.tokenizer.decode(off.prompt_token_ids) == "Where is Ada?</think>"
    assert off.reasoning is None and off.answer == off.text
    assert thinking_lm.chat(CHAT, max_tokens=3, chat_template_kwargs={"enable_thinking": False}) == off
    tools = [{"type": "function", "function": {"name": "f"}}]
    unread: list[dict[str, Any]] = [
        {"tools": tools},
        {"documents": [{"title": "a"}]},
        {"chat_template_kwargs": {"x": 1}},
    ]
    for variables in unread:
        with pytest.raises(
            ChatTemplateError, match=r"^(tools|documents|x): the chat template does not read this; it reads"
        ):
            thinking_lm.chat(CHAT, max_tokens=3, **variables)
    assert thinking_lm.chat(CHAT, max_tokens=3, enable_thinking=False, documents=[]) == off
    with pytest.raises(ValueError, match="enable_thinking: is False, and True in chat_template_kwargs"):
        thinking_lm.chat(CHAT, max_tokens=3, enable_thinking=False, chat_template_kwargs={"enable_thinking": True})
    with pytest.raises(ValueError, match="messages: expected none in chat_template_kwargs"):
        thinking_lm.chat(CHAT, max_tokens=3, chat_template_kwargs={"messages": CHAT})
    template, others = "{{ messages[0].role }}{{ documents[0].title }}", {"documents": [{"title": "a"}]}
    out = thinking_lm.chat(CHAT, max_tokens=1, chat_template=template, chat_template_kwargs=others)
    assert thinking_lm.tokenizer.decode(out.prompt_token_ids) == "usera"
    out = thinking_lm.chat(CHAT, max_tokens=1, tools=tools, chat_template="{{ messages[0].role }}{{ tools[0].type }}")
    assert thinking_lm.tokenizer.decode(out.prompt_token_ids) == "userfunction"


def test_thoughts_that_are_continued(thinking_lm: hybridlm.LM) -> None:
    template = "{{ messages[0].content }}<think>{{ messages[1].reasoning_content }}</think>{{ messages[1].content }}"
    messages = [*CHAT, {"role": "assistant", "content": "", "reasoning": "hm"}]
    settings: dict[str, Any] = {"chat_template": template, "continue_final_message": "reasoning", "max_tokens": 4}
    completions = thinking_lm.chat(messages, **settings)
    assert thinking_lm.tokenizer is not None
    assert thinking_lm.tokenizer.decode(completions.prompt_token_ids).endswith("<think>hm")
    assert (completions.reasoning, completions.answer) == ((completions.text or "").strip(), "")
    with pytest.raises(ValueError, match="thinking_budget: cannot count"):
        thinking_lm.chat(messages, thinking_budget=2, **settings)


def test_a_budget_without_a_marker_is_refused(text_lm: hybridlm.LM) -> None:
    with pytest.raises(ValueError, match="thinking_budget: the tokenizer has no known end marker"):
        text_lm.generate(["a"], thinking_budget=3)


def test_end_tokens_of_tokenizer_and_template_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from hybridlm.loading import _other_ends

    result = tokenizer(True, "{% for m in messages %}{{ m.content }}</think>\n{% endfor %}")
    result.special_tokens["eos_token"] = "<think>"
    start, end = result.token_to_id("<think>"), result.token_to_id("</think>")
    assert start is not None and end is not None
    assert [line.split(" ends ")[0] for line in _other_ends(result, (0,))] == [
        f"the tokenizer's eos_token '<think>' ({start})",
        f"the chat template's end '</think>' ({end})",
    ]
    assert _other_ends(result, (start, end)) == []

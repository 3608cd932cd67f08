"""Captures and interventions in sessions, streams and chats agree with `generate`."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_traffic import finished

import hybridlm
from hybridlm import Intervention

PROMPTS = [[5, 6, 7, 8, 9, 10, 11], [40, 41, 42], [20] * 11]
SETTINGS: dict[str, Any] = {"max_tokens": 5, "ignore_eos": True, "logprobs": 0}
READ: dict[str, Any] = {"hidden_states": [1], "states": True, "positions": "all"}
CHANGE = [Intervention.ablate_head(1, 2), Intervention.scale_state(0, 0.5, positions=8)]


def check(completion: hybridlm.Completion, expected: hybridlm.Completion) -> None:
    """Asserts the same tokens; steps of other numbers of lanes round differently."""
    assert completion.token_ids == expected.token_ids and completion.finish_reason == expected.finish_reason
    np.testing.assert_allclose(completion.logprobs or (), expected.logprobs or (), atol=1e-4)


def check_captured(completion: hybridlm.Completion, expected: hybridlm.Completion) -> None:
    """Asserts the same completion, and the same numbers read."""
    check(completion, expected)
    assert completion.captured is not None and expected.captured is not None
    assert completion.captured.positions.tolist() == expected.captured.positions.tolist()
    np.testing.assert_allclose(completion.captured.hidden_states[1], expected.captured.hidden_states[1], atol=1e-4)
    for name, values in expected.captured.states.items():
        np.testing.assert_allclose(completion.captured.states[name], values, atol=1e-4)


@pytest.fixture(scope="module")
def plain(text_lm: hybridlm.LM) -> list[hybridlm.Completion]:
    return text_lm.generate(PROMPTS, **SETTINGS)


@pytest.fixture(scope="module")
def expected(text_lm: hybridlm.LM) -> list[hybridlm.Completion]:
    return text_lm.generate(PROMPTS, **SETTINGS, **READ, interventions=[CHANGE, [], []])


@pytest.mark.slow
def test_a_request_joins_a_session(
    text_lm: hybridlm.LM, plain: list[hybridlm.Completion], expected: list[hybridlm.Completion], tmp_path: Path
) -> None:
    """Requests without captures keep their bits, also after steps without any."""
    with text_lm.session(capture_to=tmp_path / "read") as session:
        session.submit(PROMPTS[1], **SETTINGS)
        session.step()
        with pytest.raises(ValueError, match="request 1: interventions.*layer: expected 0..1"):
            session.submit(PROMPTS[0], interventions=[Intervention.ablate_head(7, 0)])
        assert session.submit(PROMPTS[0], **SETTINGS, **READ, interventions=CHANGE) == 1
        session.submit(PROMPTS[2], **SETTINGS)
        out = finished(session)
    check(out[0], plain[1])
    check(out[2], plain[2])
    check_captured(out[1], expected[0])
    assert not np.allclose(out[1].logprobs or (), plain[0].logprobs or (), atol=1e-3) and out[0].captured is None
    assert [path.name for path in (tmp_path / "read").iterdir()] == ["000001.safetensors"]


def test_a_request_that_leaves_leaves_no_file(text_lm: hybridlm.LM, tmp_path: Path) -> None:
    with text_lm.session(capture_to=tmp_path / "read") as session:
        session.submit(PROMPTS[0], **SETTINGS, **READ)
        session.step()
    assert list((tmp_path / "read").iterdir()) == []


def test_sessions_that_draft_refuse_it(text_lm: hybridlm.LM) -> None:
    with text_lm.session(speculate="ngram") as session:
        with pytest.raises(ValueError, match=r"session\(speculate=None\)"):
            session.submit(PROMPTS[0], states=True)
        assert not session.busy
        wrong: Any = {"positions": [3]}
        with pytest.raises(ValueError, match="positions"):
            session.submit(PROMPTS[0], **wrong)


@pytest.mark.slow
def test_a_stream(
    text_lm: hybridlm.LM, plain: list[hybridlm.Completion], expected: list[hybridlm.Completion], tmp_path: Path
) -> None:
    request: Any = {**SETTINGS, **READ, "interventions": [CHANGE, [], []]}
    events = list(text_lm.stream(PROMPTS, **request))
    results = {event.index: event.completion for event in events if event.completion is not None}
    for index, completion in results.items():
        check_captured(completion, expected[index])
        assert [event.token for event in events if event.index == index] == completion.token_ids
    assert results[0] != plain[0] and results[1] == plain[1]
    stream = text_lm.stream(PROMPTS, **request, capture_to=tmp_path / "read")
    next(stream)
    stream.close()
    assert list((tmp_path / "read").iterdir()) == []
    with pytest.raises(ValueError, match="speculate"):
        text_lm.stream(PROMPTS, speculate="ngram", **READ)


@pytest.mark.slow
def test_a_chat(text_lm: hybridlm.LM) -> None:
    messages = [{"role": "user", "content": "Ada"}]
    template = "{{ messages[0]['content'] }}: "
    assert text_lm.tokenizer is not None
    prompt = text_lm.tokenizer.encode_chat(messages, chat_template=template)
    last: Any = {"hidden_states": [1], "states": True, "interventions": [Intervention.ablate_head(1, 2)]}
    completions = text_lm.chat(messages, chat_template=template, **SETTINGS, **last)
    check_captured(completions, text_lm.generate([prompt], **SETTINGS, **last)[0])
    assert completions.token_ids != text_lm.generate([prompt], **SETTINGS)[0].token_ids

"""Penalties, biases and bans against their definitions, in every step and for one lane."""

from collections import Counter
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
import pytest
from model_inputs import changed_by
from paged_shapes import compiled_steps
from random_traffic import finished

import hybridlm
from hybridlm import SamplingParams
from hybridlm.sampling.logit_changes import changed_logits, mask_words, masked_logits, only_allowed
from ir_passes import IsolationError

PROMPT = "Once upon a time, once upon"
SETTINGS: list[dict[str, Any]] = [
    {"repetition_penalty": 3.0},
    {"repetition_penalty": 0.5, "logit_bias": {20: 4.0, "33": -2.5}},
    {"presence_penalty": 5.0, "frequency_penalty": 2.5},
    {"frequency_penalty": -3.0},
    {"bad_words": [[42], [18, 16]], "min_tokens": 3, "stop_token_ids": [16, 61]},
    {"bad_words": ["t", "up"], "repetition_penalty": 1.5, "presence_penalty": 1.0},
]
"""Each one changes the sampled tokens."""


def reference(logits: np.ndarray, prompt: list[int], output: list[int], lm: hybridlm.LM, **settings: Any) -> np.ndarray:
    """Change logits token by token in transformers' order, presence and frequency as in OpenAI."""
    params, history = lm.text_model.inputs.request(0, prompt, SamplingParams(**settings)).params, prompt + output
    logits = logits.astype(np.float32).copy()
    for token, bias in params.logit_bias:
        logits[token] += np.float32(bias)
    for token in set(history):
        penalty = np.float32(params.repetition_penalty)
        logits[token] = logits[token] * penalty if logits[token] < 0 else logits[token] / penalty
    for token, count in Counter(output).items():
        logits[token] -= np.float32(params.presence_penalty + params.frequency_penalty * count)
    for word in params.bad_words:
        if len(word) == 1 or history[1 - len(word) :] == list(word[:-1]):
            logits[word[-1]] = -np.inf
    if len(output) < params.min_tokens:
        logits[list(params.stop_token_ids)] = -np.inf
    return logits


def expected(lm: hybridlm.LM, prompt: list[int], count: int, **settings: Any) -> list[int]:
    """Return the greedy tokens by `forward` and `reference`."""
    ends = lm.text_model.inputs.request(0, prompt, SamplingParams(**settings)).params.stop_token_ids
    output: list[int] = []
    for _ in range(count):
        tokens = prompt + output
        # Of one length, so that one program is compiled; what follows a token does not change its logits.
        logits = np.asarray(lm.forward([tokens + [0] * (len(prompt) + count - len(tokens))]).logits)[0, len(tokens) - 1]
        output.append(int(reference(logits, prompt, output, lm, **settings).argmax()))
        if output[-1] in ends:
            break
    return output


def ids(lm: hybridlm.LM, text: str = PROMPT) -> list[int]:
    assert lm.tokenizer is not None
    return lm.tokenizer.encode(text)


class FixedDrafts:
    """A drafter that always drafts."""

    def observe(self, length: int, mtp_drafts: Any) -> None:
        pass

    def propose(self, token_ids: Any, k: int) -> list[int]:
        return [token_ids[-1], 18][:k]


@pytest.mark.slow
def test_each_lane_has_its_own(text_lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch) -> None:
    """All changes at once in three lanes, next to plain requests; drafts are verified."""
    monkeypatch.setattr("hybridlm.engine.speculation.Speculation.always", True)
    prompts = [ids(text_lm), ids(text_lm, "ababababababab")]
    plain = [completion.token_ids for completion in text_lm.generate(prompts, max_tokens=12)]
    steps = text_lm.engine.stats["verify_steps"]
    with text_lm.session(speculate=FixedDrafts()) as session:
        requests: list[tuple[list[int], dict[str, Any]]] = []
        for settings in SETTINGS:
            requests += [(prompts[0], settings), (prompts[1], {})]
        for prompt, settings in requests:
            session.submit(prompt, max_tokens=12, **settings)
        outputs = {index: completion.token_ids for index, completion in finished(session).items()}
    assert text_lm.engine.stats["verify_steps"] > steps
    for index, (prompt, settings) in enumerate(requests):
        if settings:
            assert outputs[index] == expected(text_lm, prompt, 12, **settings) != plain[0]
        else:
            assert outputs[index] == plain[1]


def test_sampled_tokens_and_logprobs(text_lm: hybridlm.LM) -> None:
    settings: dict[str, Any] = {"temperature": 1.3, "top_k": 30, "max_tokens": 10, "seed": 3, "ignore_eos": True}
    unbanned = text_lm.generate([PROMPT], **settings)[0]
    (token,) = {unbanned.token_ids[0]}
    banned = text_lm.generate([PROMPT], bad_words=[[token]], logprobs=0, **settings)[0]
    assert token not in banned.token_ids and banned.logprobs is not None
    # Log-probabilities are the model's.
    score = text_lm.score([ids(text_lm) + banned.token_ids])[0].logprobs[-len(banned.token_ids) :]
    np.testing.assert_allclose(banned.logprobs, score, atol=1e-4)


def test_only_allowed_tokens_follow(text_lm: hybridlm.LM) -> None:
    """A request without limits keeps the tokens of a call alone."""
    settings: dict[str, Any] = {"max_tokens": 12, "temperature": 1.0, "seed": 5, "ignore_eos": True}
    (free,) = text_lm.generate([PROMPT], **settings)
    limited = [SamplingParams(allowed_token_ids=[5, 9], **settings), SamplingParams(**settings)]
    first, second = text_lm.generate([PROMPT, PROMPT], limited)
    assert set(first.token_ids) == {5, 9} and second.token_ids == free.token_ids
    assert not set(free.token_ids) <= {5, 9}


def test_an_end_token_can_be_a_bad_word(text_lm: hybridlm.LM) -> None:
    (end,) = text_lm.eos_token_ids
    settings: dict[str, Any] = {"logit_bias": {end: 50.0}, "max_tokens": 4}
    ended, banned = text_lm.generate([PROMPT] * 2, **settings, bad_words=[[], ["<end>"]])
    assert ended.token_ids == [end] and end not in banned.token_ids and banned.finish_reason == "length"


@pytest.mark.slow
def test_the_largest_changes_stay_finite(text_lm: hybridlm.LM) -> None:
    (free,) = text_lm.generate([PROMPT], max_tokens=1)
    bias = {token: 1e12 for token in range(97)} | {free.token_ids[0]: -3e38}
    settings: dict[str, Any] = {"repetition_penalty": 1e-12, "presence_penalty": -1e12, "temperature": 1e-12}
    (changed,) = text_lm.generate([ids(text_lm)], max_tokens=3, logit_bias=bias, ignore_eos=True, **settings, seed=1)
    history = set(ids(text_lm))
    assert changed.token_ids[0] in history - {free.token_ids[0]} and free.token_ids[0] not in changed.token_ids


def test_a_step_without_changes_is_compiled_as_ever(text_lm: hybridlm.LM) -> None:
    text_lm.generate([PROMPT], max_tokens=2, repetition_penalty=1.0, logit_bias={}, min_tokens=0, bad_words=[])
    shapes = compiled_steps(text_lm)
    assert text_lm.engine.shape("generate", 1, 1) in shapes
    for shape in (text_lm.engine.shape("generate", 1, 1), text_lm.engine.shape("generate", 1, 1, changes=64)):
        inputs = text_lm.engine.example_arguments(shape)[2]
        assert (inputs.changes is not None) == bool(shape.changes)


def test_a_change_that_reaches_another_lane_is_refused(text_lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch) -> None:
    programs, engine = text_lm.engine.programs, text_lm.engine
    shape = text_lm.engine.shape("generate", 2, 1, changes=64)
    programs.planned(shape, engine.example_arguments(shape))
    monkeypatch.setattr(
        "hybridlm.steps.generate.changed_logits",
        lambda logits, changes: jnp.roll(changed_logits(logits, changes), 1, 0),
    )
    with pytest.raises(IsolationError):
        programs.planned(shape, engine.example_arguments(shape))


@pytest.mark.parametrize(("setting", "message"), [
    ({"repetition_penalty": 0}, "repetition_penalty: expected a number in"),
    ({"temperature": 3e-38}, r"temperature: expected 0 \(greedy\), or a number in 1e-12..1e"),
    ({"repetition_penalty": 1e39}, "repetition_penalty: expected a number in 1e-12..1e"),
    ({"presence_penalty": -1e39}, "presence_penalty: expected a number in -1e"),
    ({"logit_bias": {3: 1e39}}, "logit_bias: expected token ids below 97 -> numbers in -3e38..1e"),
    ({"presence_penalty": float("nan")}, "presence_penalty: expected a number"),
    ({"frequency_penalty": "1"}, "frequency_penalty: expected a number"),
    ({"logit_bias": {97: 1.0}}, "logit_bias: expected token ids below 97"),
    ({"logit_bias": {3: float("inf")}}, "logit_bias: expected token ids below 97"),
    ({"logit_bias": {3: 1, "3": 2}}, "logit_bias: expected token ids below 97"),
    ({"min_tokens": 65}, r"min_tokens: expected a whole number in 0..max_tokens"),
    ({"bad_words": "a"}, "bad_words: expected strings or lists of token ids below 97"),
    ({"bad_words": [[]]}, "bad_words: expected strings or lists of token ids below 97"),
    ({"bad_words": [" "]}, "bad_words: expected strings or lists of token ids below 97"),
    ({"stop_token_ids": [97]}, "stop_token_ids: expected a list of token ids below 97"),
    ({"allowed_token_ids": [97]}, "allowed_token_ids: expected at least one token id below 97"),
    ({"allowed_token_ids": []}, "allowed_token_ids: expected at least one token id below 97"),
    ({"allowed_token_ids": [5], "structured_outputs": {"choice": ["a"]}},
     "allowed_token_ids: expected None with structured_outputs"),
    ({"skip_special_tokens": 1}, "skip_special_tokens: expected True or False"),
    ({"thinking_budget": 0}, "thinking_budget: expected a whole number of at least 1"),
], ids=str)  # fmt: skip
def test_settings_that_are_refused(text_lm: hybridlm.LM, setting: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        text_lm.generate([PROMPT], **setting)


@pytest.mark.oracle
def test_processors_of_transformers(text_lm: hybridlm.LM) -> None:
    import torch
    from transformers.generation import logits_process as theirs

    rng, vocab, prompt = np.random.default_rng(0), text_lm.config.vocab_size, ids(text_lm)
    for _ in range(200):
        output = rng.integers(3, 30, rng.integers(0, 9)).tolist()
        bias = {int(token): float(rng.normal()) for token in rng.integers(0, vocab, 3)}
        words = [[int(rng.integers(3, 30))], [*output[-1:], int(rng.integers(3, 30))], [4, 5, 6]]
        penalty, minimum = float(rng.uniform(0.5, 2)), int(rng.integers(1, 9))
        settings: dict[str, Any] = {"repetition_penalty": penalty, "logit_bias": bias, "bad_words": words}
        params = SamplingParams(min_tokens=minimum, **settings)
        logits = rng.normal(size=(2, vocab)).astype(np.float32) * 5
        changed = changed_by(params, prompt, output, logits, tuple(text_lm.eos_token_ids))
        history, ends = cast(Any, torch.tensor([prompt + output])), list(text_lm.eos_token_ids)
        scores: Any = torch.tensor(logits[1:])
        for process in (
            theirs.SequenceBiasLogitsProcessor([[[token], value] for token, value in bias.items()]),
            theirs.RepetitionPenaltyLogitsProcessor(penalty),
            theirs.NoBadWordsLogitsProcessor(words, ends),
            theirs.MinNewTokensLengthLogitsProcessor(len(prompt), minimum, ends),
        ):
            scores = process(history, scores)
        np.testing.assert_array_equal(changed[1], scores.numpy()[0])
        np.testing.assert_array_equal(changed[0], logits[0])


def bits(row: np.ndarray) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist())


@pytest.mark.parametrize("vocab", [31, 32, 97])
def test_masks_of_logits(vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    logits = rng.normal(size=(3, vocab)).astype(np.float32)
    logits[1, 5] = np.nan
    mask = rng.integers(0, 2**32, (3, mask_words(vocab)), dtype=np.uint32)
    mask[1] = 0
    masked = np.array(masked_logits(jnp.asarray(logits), mask))
    for row in range(3):
        allowed = np.array([token in bits(mask[row]) for token in range(vocab)])
        np.testing.assert_array_equal(masked[row], np.where(allowed | np.isnan(logits[row]), logits[row], -np.inf))
    tokens = jnp.array([int(np.argmax(masked[0])), vocab, 0], jnp.int32)
    masked[2] = -np.inf
    checked = only_allowed(tokens, jnp.asarray(masked), vocab + 1)
    assert checked.tolist() == [int(tokens[0]), vocab, vocab + 1]

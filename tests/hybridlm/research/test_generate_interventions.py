"""Interventions while generating: the completions of changed weights and states, and other requests' bits."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import hybridlm
from hybridlm import Intervention, SequenceState

PROMPTS = [[5, 6, 7, 8, 9, 10, 11], [40, 41, 42], [20] * 11, [7]]
COUNT = 6


def greedy(lm: hybridlm.LM, prompt: list[int], **forward: Any) -> tuple[list[int], list[float]]:
    """The continuation by `forward` on the whole text, again for each token."""
    tokens, logprobs = list(prompt), []
    for _ in range(COUNT):
        # One length, so that one program is compiled.
        padded = [*tokens, *[0] * (24 - len(tokens))]
        row = np.asarray(lm.forward(padded, **forward).logits[len(tokens) - 1], np.float64)
        tokens.append(int(row.argmax()))
        logprobs.append(float(row.max() - np.log(np.exp(row - row.max()).sum()) - row.max()))
    return tokens[len(prompt) :], logprobs


def check(completion: hybridlm.Completion, expected: tuple[list[int], list[float]]) -> None:
    assert completion.token_ids == expected[0]
    np.testing.assert_allclose(completion.logprobs or (), expected[1], atol=1e-3)


@pytest.mark.slow
def test_a_head_is_ablated_in_one_request(text_lm: hybridlm.LM) -> None:
    plain = text_lm.generate(PROMPTS, max_tokens=COUNT, logprobs=0, min_tokens=COUNT)
    requests: list[Any] = [[], [Intervention.ablate_head(1, 2)], [], [Intervention.ablate_head(0, 3)]]
    completions = text_lm.generate(PROMPTS, max_tokens=COUNT, logprobs=0, min_tokens=COUNT, interventions=requests)
    assert completions[0] == plain[0] and completions[2] == plain[2]
    for number, name, size, head in (
        (1, "layers.1.branches.0.inner.o_proj", 16, 2),
        (3, "layers.0.branches.0.inner.out_proj", 8, 3),
    ):
        assert name in text_lm.params, [n for n in text_lm.params if "proj" in n]
        weight = np.array(text_lm.params[name])
        weight[:, head * size : (head + 1) * size] = 0
        changed = text_lm.params | {name: jnp.asarray(weight)}
        check(completions[number], greedy(text_lm, PROMPTS[number], params=changed))
        assert completions[number] != plain[number]


def test_a_state_is_changed_in_the_prompt_and_in_the_completion(text_lm: hybridlm.LM) -> None:
    prompt, index = PROMPTS[0], 3
    edits = [
        Intervention.scale_state(0, 0.0, positions=index),
        Intervention.scale_state(0, 0.5, head=1, positions=range(7, 12)),
    ]
    plain = text_lm.generate(PROMPTS[:2], max_tokens=COUNT, logprobs=0, min_tokens=COUNT)
    results = text_lm.generate(PROMPTS[:2], max_tokens=COUNT, logprobs=0, min_tokens=COUNT, interventions=[edits, None])
    assert results[1] == plain[1] and results[0] != plain[0]
    tokens, position, state, logprobs = list(prompt), 0, None, []
    while len(tokens) < len(prompt) + COUNT:
        out = text_lm.forward([tokens[position]], state=state, return_states=True)
        assert out.states is not None
        layers = out.states.layers
        recurrent = np.array(layers[0][0].recurrent)
        recurrent[0] *= 0 if position == index else 1
        recurrent[0, 1] *= 0.5 if 7 <= position < 12 else 1
        first = (layers[0][0]._replace(recurrent=jnp.asarray(recurrent)), *layers[0][1:])
        position, state = position + 1, SequenceState(position + 1, (first, *layers[1:]))
        if position == len(tokens):
            row = np.asarray(out.logits[-1], np.float64)
            row[2] = -np.inf  # the end token, until there are enough
            tokens.append(int(row.argmax()))
            logits = np.asarray(out.logits[-1], np.float64)
            logprobs.append(logits[tokens[-1]] - np.log(np.exp(logits).sum()))
    check(results[0], (tokens[len(prompt) :], logprobs))


@pytest.mark.long
def test_vectors_of_one_request_and_the_scores_of_its_text(text_lm: hybridlm.LM) -> None:
    vector = np.random.default_rng(5).normal(size=text_lm.config.hidden_size)
    requests = [
        [Intervention.add(vector, hidden_state=1, positions=range(2, 9))],
        [],
        [
            Intervention.add(-vector, hidden_state=2),
            Intervention.replace_hidden_state(vector, hidden_state=1, positions=[1, 12]),
        ],
    ]
    plain = text_lm.generate(PROMPTS[:3], max_tokens=COUNT, logprobs=0)
    results = text_lm.generate(PROMPTS[:3], max_tokens=COUNT, logprobs=0, interventions=requests, n=2)
    assert results[2] == results[3] == plain[1] and results[0] == results[1] and results[4] == results[5]
    texts = [[*item.prompt_token_ids, *item.token_ids] for item in results[::2]]
    scored = text_lm.score(texts, interventions=requests)
    for completion, score in zip(results[::2], scored, strict=True):
        count = len(completion.token_ids)
        np.testing.assert_allclose(completion.logprobs or (), score.logprobs[-count:], atol=1e-3)
        assert score.greedy[-count:].all()


@pytest.mark.slow
def test_nothing_is_compiled_for_other_requests(text_lm: hybridlm.LM) -> None:
    """Vectors, heads, layers, factors, states and positions are operands."""
    rng = np.random.default_rng(8)

    def run(layer: int, head: int, index: int) -> list[hybridlm.Completion]:
        vector = rng.normal(size=text_lm.config.hidden_size)
        first = [
            Intervention.add(vector, hidden_state=layer, positions=range(index, index + 3)),
            Intervention.replace_hidden_state(vector, hidden_state=1 - layer, positions=index),
            Intervention.ablate_head(layer, head),
            Intervention.scale_state(0, 0.1 * head, head=head, positions=index),
        ]
        read: Any = {"hidden_states": [2 * layer], "states": True, "positions": ["last", "all"][layer]}
        requests = [[], first, [Intervention.ablate_head(1 - layer, head, positions=index)]]
        return text_lm.generate(PROMPTS[:3], max_tokens=COUNT, min_tokens=COUNT, interventions=requests, **read)

    item = run(0, 1, 0)
    compiled = text_lm.stats["compiled"]
    assert run(1, 2, 1) != item and text_lm.stats["compiled"] == compiled


@pytest.mark.long
def test_a_lane_that_becomes_nan_ends_alone(text_lm: hybridlm.LM) -> None:
    nan = np.full(text_lm.config.hidden_size, np.nan)
    plain = text_lm.generate(PROMPTS[1:3], max_tokens=COUNT, logprobs=0)
    with pytest.raises(hybridlm.NumericalError):
        text_lm.generate(PROMPTS[:3], max_tokens=COUNT, interventions=[[Intervention.add(nan, hidden_state=1)], [], []])
    assert text_lm.generate(PROMPTS[1:3], max_tokens=COUNT, logprobs=0) == plain


def test_changed_states_reach_no_prefix_cache(cached_lm: hybridlm.LM) -> None:
    """Changed states never enter the prefix cache, and such requests use no cached state."""
    prompt, settings = list(range(5, 37)), {"max_tokens": COUNT, "logprobs": 0}
    zero = [Intervention.scale_state(0, 0.0, positions=9)]
    first = cached_lm.generate([prompt], **settings, interventions=zero)  # type: ignore[arg-type]
    initial = cached_lm.stats["prefix_tokens_saved"]
    plain = cached_lm.generate([prompt], **settings)  # type: ignore[arg-type]
    assert plain != first and cached_lm.stats["prefix_tokens_saved"] == initial
    assert cached_lm.generate([prompt], **settings, interventions=zero) == first  # type: ignore[arg-type]
    assert cached_lm.stats["prefix_tokens_saved"] == initial
    assert cached_lm.generate([prompt], **settings) == plain  # type: ignore[arg-type]
    assert cached_lm.stats["prefix_tokens_saved"] > initial

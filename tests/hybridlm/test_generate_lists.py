"""Settings of each prompt in one call, and the seeds of completions."""

from typing import Any

import pytest
from random_traffic import finished

import hybridlm
from hybridlm import SamplingParams

PROMPTS = ["Ada", "a longer prompt of many letters", "b", "chunk", "six___", "Where is the kite?"]
PARAMS = [
    SamplingParams(max_tokens=6, temperature=1.0, seed=5, logprobs=2),
    SamplingParams(max_tokens=9, temperature=0.7, top_k=5, seed=5),
    SamplingParams(max_tokens=4),
    SamplingParams(max_tokens=7, temperature=1.3, top_p=0.8, seed=9, stop=["e"]),
    SamplingParams(max_tokens=5, temperature=2.0, min_p=0.2, seed=2**60, ignore_eos=True),
    SamplingParams(max_tokens=8, temperature=1.5, seed=0, stop=[20, 21], repetition_penalty=1.2),
]


def tokens(completions: list[hybridlm.Completion]) -> list[list[int]]:
    return [completion.token_ids for completion in completions]


def test_each_request_equals_the_same_request_alone(text_lm: hybridlm.LM) -> None:
    completions = text_lm.generate(PROMPTS, PARAMS)
    assert completions == [text_lm.generate([p], [params])[0] for p, params in zip(PROMPTS, PARAMS, strict=True)]
    assert completions == [text_lm.generate(p, params)[0] for p, params in zip(PROMPTS, PARAMS, strict=True)]
    assert completions == text_lm.generate(PROMPTS[::-1], PARAMS[::-1])[::-1]
    assert [completion.seed for completion in completions] == [5, 5, None, 9, 2**60, 0]
    finished = {event.index: event.completion for event in text_lm.stream(PROMPTS, PARAMS) if event.completion}
    assert [finished[i] for i in range(len(PROMPTS))] == completions


def test_lists_as_keywords_equal_a_list_of_sampling_params(text_lm: hybridlm.LM) -> None:
    fields: dict[str, Any] = {
        name: [getattr(params, name) for params in PARAMS]
        for name in ("max_tokens", "temperature", "top_k", "top_p", "min_p", "seed", "ignore_eos", "repetition_penalty")
    }
    fields |= {"stop": [params.stop for params in PARAMS], "logprobs": [params.logprobs for params in PARAMS]}
    assert text_lm.generate(PROMPTS, **fields) == text_lm.generate(PROMPTS, PARAMS)


def test_completions_of_a_prompt_with_lists(text_lm: hybridlm.LM) -> None:
    completions = text_lm.generate(PROMPTS[:2], PARAMS[:2], n=2)
    assert completions == text_lm.generate(PROMPTS[0], PARAMS[0], n=2) + text_lm.generate(PROMPTS[1], PARAMS[1], n=2)
    assert completions[0] != completions[1]


def test_a_call_without_a_seed_is_fresh_and_can_be_repeated(text_lm: hybridlm.LM) -> None:
    settings: dict[str, Any] = {"temperature": 1.5, "max_tokens": 9, "ignore_eos": True, "n": 2}
    first, second = text_lm.generate(PROMPTS, **settings), text_lm.generate(PROMPTS, **settings)
    assert tokens(first) != tokens(second)
    (seed,) = {completion.seed for completion in first}
    assert seed is not None and seed != second[0].seed
    assert text_lm.generate(PROMPTS, seed=seed, **settings) == first


def test_each_prompt_of_a_list_draws_its_own_seed(text_lm: hybridlm.LM) -> None:
    settings: dict[str, Any] = {"temperature": [1.5, 0.0, 1.5], "max_tokens": 9, "ignore_eos": True}
    first = text_lm.generate(["Ada"] * 3, **settings)
    seeds = [completion.seed for completion in first]
    assert seeds[1] is None and len(set(seeds)) == 3 and first[0].token_ids != first[2].token_ids
    assert text_lm.generate(["Ada"] * 3, seed=seeds, **settings) == first
    assert text_lm.generate("Ada", seed=seeds[2], temperature=1.5, max_tokens=9, ignore_eos=True) == first[2:]


def test_submitted_requests_draw_seeds(text_lm: hybridlm.LM) -> None:
    with text_lm.session() as session:
        for seed in (None, None, 7):
            session.submit("Ada", temperature=1.0, max_tokens=2, seed=seed)
        results = finished(session)
    seeds = [results[i].seed for i in range(3)]
    assert None not in seeds and len(set(seeds)) == 3 and seeds[2] == 7


def test_faults_of_settings_name_their_prompts(text_lm: hybridlm.LM) -> None:
    steps = text_lm.stats["steps"]
    with pytest.raises(ValueError) as error:
        text_lm.generate(["a", "b", "c"], max_tokens=[1, 0, 3], min_tokens=[2, 0, 1], temperature=[0.0, 1.0, -1])
    faults = str(error.value).split("; ")
    assert [fault.split(": ")[:2] for fault in faults[:2]] == [
        ["settings of prompts[0]", "min_tokens"],
        ["settings of prompts[1]", "max_tokens"],
    ]
    assert faults[2].startswith("settings of prompts[2]: temperature: ") and len(faults) == 3
    with pytest.raises(ValueError, match="temperature: expected"):
        text_lm.chat([{"role": "user", "content": "hi"}], temperature=[0.5])
    with pytest.raises(TypeError, match="sampling_params: expected"):
        text_lm.chat([{"role": "user", "content": "hi"}], PARAMS)  # type: ignore[arg-type]  # wrong on purpose
    assert text_lm.stats["steps"] == steps


def test_the_sum_of_log_probabilities(text_lm: hybridlm.LM) -> None:
    (scored,) = text_lm.generate("Ada", max_tokens=5, logprobs=0)
    assert scored.logprobs is not None and scored.sum_logprob == pytest.approx(sum(scored.logprobs), abs=1e-12)
    (plain,) = text_lm.generate("Ada", max_tokens=5)
    assert plain.sum_logprob is None

"""Sampling settings of lanes as arrays: both seed words, and the most general mode."""

from typing import Any

import pytest

import hybridlm
from hybridlm import SamplingParams
from hybridlm.requests.sequence import (
    CHANGES_STEP,
    MIN_CHANGES,
    ActiveSequence,
    Request,
    ResolvedParams,
    bucket,
    logit_changes,
    sampling_arrays,
)
from hybridlm.sampling import BESIDE_GREEDY, FILTERED, GREEDY, SAMPLED


def lane(index: int = 0, **params: Any) -> ActiveSequence:
    """Return a sequence with these resolved settings."""
    return ActiveSequence(Request(index, (), ResolvedParams(**params)))


def test_arrays_have_the_settings_of_each_lane_and_both_words_of_seeds() -> None:
    seeds = (5, 3 << 32 | 7)
    lanes = [lane(4, temperature=0.5, top_k=3, seed=seeds[0]), None, lane(6, top_p=0.8, min_p=0.1, seed=seeds[1])]
    sampling, _ = sampling_arrays(lanes)
    assert sampling.seed.tolist()[::2] == [[0, 5], [3, 7]]
    assert sampling.index.tolist() == [4, 0, 6]
    assert sampling.temperature[0] == 0.5 and sampling.top_k.tolist()[0] == 3
    assert sampling.top_p[2].item() == pytest.approx(0.8) and sampling.min_p[2].item() == pytest.approx(0.1)


@pytest.mark.parametrize(("lanes", "mode"), [
    ([{"temperature": 0.0}], GREEDY),
    ([{"temperature": 1.0}], SAMPLED),
    ([{"temperature": 1.0, "top_k": 1}], FILTERED),
    ([{"temperature": 1.0, "top_p": 0.9}], FILTERED),
    ([{"temperature": 1.0, "min_p": 0.1}], FILTERED),
    ([{"temperature": 0.0, "top_k": 5}], GREEDY),
    ([{"temperature": 1.0}, {"temperature": 0.0}], SAMPLED + BESIDE_GREEDY),
    ([{"temperature": 1.0, "top_p": 0.9}, {"temperature": 1.0}], FILTERED),
])  # fmt: skip
def test_mode_is_the_most_general_one_of_the_lanes(lanes: list[dict[str, Any]], mode: int) -> None:
    _, sampling_mode = sampling_arrays([None, *(lane(**params) for params in lanes)])
    assert sampling_mode == mode


PROMPT = "Once upon a time, once upon"


def test_the_number_of_changes_has_few_values() -> None:
    assert [bucket(count) for count in (0, 64, 65, 512, 513)] == [64, 64, 512, 512, 4096]
    assert (MIN_CHANGES, CHANGES_STEP) == (64, 8)


def test_tokens_that_were_not_read_are_no_history(text_lm: hybridlm.LM) -> None:
    request = text_lm.text_model.inputs.request(0, PROMPT, SamplingParams(repetition_penalty=2.0))
    with pytest.raises(AssertionError, match="needs all of its sampled tokens"):
        logit_changes([ActiveSequence(request, consumed=len(request.prompt))], 97)

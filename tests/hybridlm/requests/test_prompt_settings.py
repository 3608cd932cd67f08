"""Settings of each prompt of a call: listed arguments and their faults."""

from typing import Any

import pytest

from hybridlm import SamplingParams
from hybridlm.requests.validation import settings_of_prompts


@pytest.mark.parametrize(("name", "values"), [
    ("temperature", [0.0, 0.7]), ("max_tokens", (4, 5)), ("seed", [None, 3]), ("think_end", ["</a>", None]),
    ("structured_outputs", [None, {"regex": "a"}]), ("logit_bias", [{5: 1.0}, None]), ("stop", [["a", "b"], None]),
    ("stop", [[], ["b"]]), ("stop_token_ids", [[5], []]), ("bad_words", [["a"], []]), ("bad_words", [[[5, 6]], ["b"]]),
])  # fmt: skip
def test_a_list_has_a_value_for_each_prompt(name: str, values: Any) -> None:
    base: Any = {"top_k": 3, name: values}
    settings = settings_of_prompts(SamplingParams(min_p=0.1), base, 2)
    assert settings == [SamplingParams(min_p=0.1, top_k=3, **{name: value}) for value in values]


@pytest.mark.parametrize(("name", "value"), [
    ("stop", ["a", "b"]), ("stop", ["a", 5]), ("stop_token_ids", [5, 6]), ("bad_words", ["a", "b"]),
    ("bad_words", [[5, 6], [7]]), ("bad_words", ["a", [7]]),
])  # fmt: skip
def test_lists_that_are_a_value_are_for_all_prompts(name: str, value: Any) -> None:
    settings: Any = {name: value}
    assert settings_of_prompts(None, settings, 2) == SamplingParams(**settings)


def test_keywords_override_the_settings_of_each_prompt() -> None:
    listed = [SamplingParams(max_tokens=3, seed=1), SamplingParams(max_tokens=4)]
    assert settings_of_prompts(listed, {"max_tokens": [7, 8], "top_k": 2}, 2) == [
        SamplingParams(max_tokens=7, seed=1, top_k=2),
        SamplingParams(max_tokens=8, top_k=2),
    ]
    assert settings_of_prompts([], {}, 0) == [] and settings_of_prompts(None, {"temperature": []}, 0) == []


@pytest.mark.parametrize(("params", "settings", "error", "names"), [
    ([SamplingParams()], {}, ValueError, ["sampling_params: got 1", "expected 2"]),
    (None, {"temperature": [0.0], "seed": [1, 2, 3], "top_k": [1, 2]}, ValueError,
     ["temperature: got 1", "seed: got 3"]),
    ([SamplingParams(), {"max_tokens": 3}], {}, TypeError, ["sampling_params[1]: "]),
    ([SamplingParams(), None], {"top_k": [1, 2]}, TypeError, ["sampling_params[1]: "]),
    ({"max_tokens": 3}, {}, TypeError, ["sampling_params: "]),
    ({"max_tokens": 3}, {"top_k": [1, 2]}, TypeError, ["sampling_params: "]),
])  # fmt: skip
def test_lists_that_do_not_fit_the_prompts(params: Any, settings: Any, error: Any, names: list[str]) -> None:
    with pytest.raises(error) as raised:
        settings_of_prompts(params, settings, 2)
    assert all(name in str(raised.value) for name in names)

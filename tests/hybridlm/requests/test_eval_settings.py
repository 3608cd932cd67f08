"""Generation settings of lm_eval tasks: interpreted as by lm_eval, or refused."""

from typing import Any

import pytest

from hybridlm.requests.eval_settings import generation_settings

END = 2


@pytest.mark.parametrize(("fields", "want"), [
    ({}, {"max_tokens": 256, "temperature": 0.0, "stop": [END]}),
    ({"until": "\n"}, {"max_tokens": 256, "temperature": 0.0, "stop": ["\n", END]}),
    ({"until": ["a", ""], "max_gen_toks": 7}, {"max_tokens": 7, "temperature": 0.0, "stop": ["a", END]}),
    ({"max_tokens": 8, "max_new_tokens": 9}, {"max_tokens": 9, "temperature": 0.0, "stop": [END]}),
    ({"do_sample": False, "temperature": 0.7}, {"max_tokens": 256, "temperature": 0.0, "stop": [END]}),
    ({"do_sample": True}, {"max_tokens": 256, "temperature": 1.0, "stop": [END]}),
    ({"temperature": 0.7, "top_p": 0.9, "top_k": None, "num_beams": 1},
     {"max_tokens": 256, "temperature": 0.7, "top_p": 0.9, "stop": [END]}),
], ids=str)  # fmt: skip
def test_settings(fields: dict[str, Any], want: dict[str, Any]) -> None:
    settings = dict(fields)
    assert generation_settings(fields, 256, END) == want and fields == settings


def test_unsupported_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="generation_kwargs: length_penalty, num_beams: not supported"):
        generation_settings({"num_beams": 4, "length_penalty": 2.0}, 256, END)

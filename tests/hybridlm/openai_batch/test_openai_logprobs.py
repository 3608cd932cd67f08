"""OpenAI's shapes of log-probabilities for partial characters and tokens that look alike."""

import tokenizers
from tokenizers import decoders, models, processors

from hybridlm.openai_batch.response import _prompt_offsets, chat_logprobs, completion_logprobs, token_rows
from hybridlm.text import Tokenizer


def byte_level() -> Tokenizer:
    """The two bytes of "é", and "a"."""
    backend = tokenizers.Tokenizer(models.BPE({"Ã": 0, "©": 1, "a": 2}, []))
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend)


def test_tokens_that_look_alike_are_all_there():
    rows = token_rows([1], [-2.0], [{0: -0.5}], [0])
    assert completion_logprobs(rows, byte_level())["top_logprobs"] == [{"\ufffd": -0.5, "token_id:1": -2.0}]


def test_a_part_of_a_character_has_no_bytes():
    rows = token_rows([0, 2], [-1.0, float("-inf")], None, [0, 0])
    assert chat_logprobs(rows, byte_level())["content"] == [
        {"token": "\ufffd", "logprob": -1.0, "bytes": None, "top_logprobs": []},
        {"token": "a", "logprob": None, "bytes": [97], "top_logprobs": []},
    ]


def test_a_token_stands_among_the_most_likely_once():
    rows = token_rows([4, 5], [None, -1.0], [{}, {5: -1.0, 6: -2.0}], [0, 0])
    assert completion_logprobs(rows, None) == {
        "tokens": ["token_id:4", "token_id:5"],
        "token_logprobs": [None, -1.0],
        "top_logprobs": [None, {"token_id:5": -1.0, "token_id:6": -2.0}],
        "text_offset": [0, 0],
    }


def test_tokens_that_the_tokenizer_adds_have_no_text():
    backend = tokenizers.Tokenizer(models.BPE({"<s>": 0, "s": 1, "</s>": 2}, []))
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>"])
    backend.post_processor = processors.TemplateProcessing("<s> $A </s>", None, [("<s>", 0), ("</s>", 2)])
    tokenizer = Tokenizer(backend)
    for text, expected in {"ss": [0, 0, 1, 2], "<s>s": [0, 0, 3, 4], "": [0, 0]}.items():
        assert _prompt_offsets(tokenizer.encode(text), text, len(text), tokenizer) == expected

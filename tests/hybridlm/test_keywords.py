"""Unknown keyword arguments: the error has the name that is meant."""

import inspect
from typing import Any

import pytest

import hybridlm
from hybridlm.keywords import NOTES, SYNONYMS, suggests_keywords, unknown_keyword

LM: Any = hybridlm.LM
MODEL: Any = None
"""Unknown keywords are refused before the model is used."""


@pytest.mark.parametrize(("call", "name", "target"), [
    (LM.generate, "max_new_tokens", "max_tokens"), (LM.generate, "temprature", "temperature"),
    (LM.generate, "num_return_sequences", "n"), (LM.generate, "guided_json", "structured_outputs"),
    (LM.stream, "repeat_penalty", "repetition_penalty"), (LM.chat, "stop_strings", "stop"),
    (LM.score, "logprobs", "top_logprobs"), (LM.score, "prompts", "texts"), (LM.score_file, "windows", "window"),
    (LM.batch_file, "restrat", "restart"), (LM.session, "logits_processors", "logits_processor"),
    (hybridlm.Session.submit, "max_length", "max_tokens"), (hybridlm.load, "max_model_len", "context"),
    (hybridlm.load, "lane", "lanes"), (hybridlm.load, "max_num_seqs", "lanes"),
    (hybridlm.load, "tensor_parallel_size", "mesh"), (hybridlm.load, "enable_prefix_caching", "prefix_cache"),
    (LM.forward, "return_state", "return_states"), (LM.embed, "pool", "pooling"), (LM.classify, "text", "texts"),
    (LM.choose, "option", "options"), (LM.update, "partials", "partial"),
    (hybridlm.Intervention.ablate_head, "heads", "head"), (hybridlm.Intervention.patch, "layer", "layers"),
])  # fmt: skip
def test_the_error_has_the_name_that_is_meant(call: Any, name: str, target: str) -> None:
    with pytest.raises(TypeError, match=rf"^{name}: .*\b{target}\?$"):
        call(MODEL, **{name: 1})


@pytest.mark.parametrize("name", ["num_beams", "best_of", "do_sample", "include_stop_str_in_output", "flat_logprobs"])
def test_names_without_an_argument_have_advice(name: str) -> None:
    with pytest.raises(TypeError) as error:
        LM.generate(MODEL, "a", **{name: 1})
    assert str(error.value) == f"{name}: no such argument; {NOTES[name]}"


def test_every_unknown_keyword_is_in_one_error() -> None:
    with pytest.raises(TypeError) as error:
        LM.generate(MODEL, "a", max_tokens=3, max_new_tokens=3, qqq=1, num_beams=2)
    faults = str(error.value).split("; ")
    assert [
        name for name in ("max_new_tokens", "qqq", "num_beams") if any(f.startswith(f"{name}:") for f in faults)
    ] == [
        "max_new_tokens",
        "qqq",
        "num_beams",
    ]
    assert "sampling_params" in str(error.value), "without a close name all names are listed"


def test_a_synonym_is_suggested_only_where_its_argument_exists() -> None:
    assert "max_tokens" not in unknown_keyword("max_new_tokens", ["texts", "top"])
    targets = {*SYNONYMS}
    names = {name for call in (LM.generate, LM.score, hybridlm.load) for name in inspect.signature(call).parameters}
    assert targets <= names


def test_calls_and_signatures_stay() -> None:
    @suggests_keywords
    def add(a: int, *, b: int = 2) -> int:
        """Add."""
        return a + b

    assert (add(1), add(1, b=3), add(a=1), add.__doc__) == (3, 4, 3, "Add.")
    with pytest.raises(TypeError, match="missing"):
        add()  # type: ignore[call-arg]  # wrong on purpose


VLLM_NAMES = (
    "max_model_len", "tensor_parallel_size", "pipeline_parallel_size", "gpu_memory_utilization", "max_num_seqs",
    "max_num_batched_tokens", "enable_prefix_caching", "quantization", "load_format", "swap_space", "cpu_offload_gb",
    "enforce_eager", "kv_cache_dtype", "trust_remote_code",
)  # fmt: skip
"""Arguments of vllm.LLM."""
VLLM_FIELDS = (
    "best_of", "use_beam_search", "length_penalty", "early_stopping", "stop_token_ids", "include_stop_str_in_output",
    "allowed_token_ids", "detokenize", "output_kind", "flat_logprobs", "truncate_prompt_tokens", "structured_outputs",
)  # fmt: skip
"""Fields of vllm.SamplingParams."""


@pytest.mark.parametrize(
    ("call", "names"), [(hybridlm.load, VLLM_NAMES), (hybridlm.SamplingParams, VLLM_FIELDS)], ids=["load", "params"]
)
def test_names_of_vllm_have_an_argument_or_advice(call: Any, names: tuple[str, ...]) -> None:
    parameters = inspect.signature(call).parameters
    for name in names:
        assert name in parameters or "arguments are" not in unknown_keyword(name, parameters), name


def test_only_public_names_are_listed() -> None:
    names = [name for name in dir(hybridlm) if not name.startswith("__")]
    assert sorted(names + ["__version__"]) == sorted(hybridlm.__all__)

"""Unknown keyword arguments: an error with the matching or closest name."""

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import ParamSpec, TypeVar, get_args, get_type_hints

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "max_tokens": ("max_new_tokens", "max_completion_tokens", "max_length", "max_gen_toks", "n_predict", "num_predict"),
    "min_tokens": ("min_new_tokens", "min_length"),
    "n": ("num_return_sequences", "num_samples"),
    "stop": ("stop_strings", "stop_sequences", "until"),
    "stop_token_ids": ("eos_token_id",),
    "seed": ("random_seed", "manual_seed"),
    "repetition_penalty": ("repeat_penalty",),
    "bad_words": ("bad_words_ids", "suppress_tokens"),
    "logit_bias": ("sequence_bias",),
    "thinking_budget": ("max_think_tokens", "thinking_token_budget"),
    "structured_outputs": ("guided_decoding", "guided_json", "guided_regex", "guided_choice",
                           "response_format", "grammar"),
    "sampling_params": ("params", "generation_config"),
    "prompts": ("prompt", "inputs", "prompt_token_ids", "input_ids"),
    "texts": ("text", "prompts", "prompt", "inputs", "input_ids"),
    "top_logprobs": ("logprobs", "prompt_logprobs", "num_logprobs"),
    "prompt_logprobs": ("echo",),
    "logits_processor": ("logits_processors",),
    "progress": ("use_tqdm", "verbose"),
    "speculate": ("speculative_config", "speculative_model", "assistant_model"),
    "draft_tokens": ("num_speculative_tokens",),
    "lanes": ("max_num_seqs", "batch_size", "max_batch_size"),
    "context": ("max_model_len", "max_seq_len", "n_ctx"),
    "chunk": ("max_num_batched_tokens", "chunk_size", "chunked_prefill_size"),
    "dtype": ("torch_dtype",),
    "mesh": ("tensor_parallel_size", "data_parallel_size", "device_map"),
    "cache": ("kv_cache_memory_bytes",),
    "prefix_cache": ("enable_prefix_caching",),
    "dequantise": ("dequantize",),
    "adapter": ("lora", "lora_path", "enable_lora"),
}  # fmt: skip
"""Argument -> its names in vLLM, transformers, llama.cpp and OpenAI."""

NOTES: Mapping[str, str] = {
    "n": "it is an argument of generate and stream",
    "best_of": "all completions are returned; n of generate and stream is their number",
    **dict.fromkeys(
        ("num_beams", "use_beam_search", "length_penalty", "early_stopping"),
        "beam search is not supported; n gives several samples",
    ),
    "do_sample": "temperature above 0 samples, 0 takes the most likely token",
    "truncate_prompt_tokens": "prompts are never truncated",
    "include_stop_str_in_output": "the text ends before a stop string; token_ids have its tokens",
    "detokenize": "texts are decoded if there is a tokenizer; token_ids are always returned",
    "output_kind": "stream yields each token, generate whole completions",
    "flat_logprobs": "Completion.top.dense() returns arrays",
    **dict.fromkeys(("quantization", "load_format"), "the files of the checkpoint decide how weights are read"),
    "pipeline_parallel_size": "a mesh divides tensors, experts and lanes, not layers",
    "enforce_eager": "every step is compiled",
    "kv_cache_dtype": "dtype is also the dtype of the KV cache, float32 on CPUs",
    **dict.fromkeys(
        ("swap_space", "cpu_offload_gb"), "weights and rows stay on the devices; prefix_cache uses the host"
    ),
    "trust_remote_code": "code of a checkpoint is never run",
    **dict.fromkeys(
        ("gpu_memory_utilization", "num_gpu_blocks_override", "block_size"),
        "lanes, context and cache decide the memory; pages of the KV cache have 128 positions",
    ),
    "lora_request": "load and merge_adapter take an adapter, for all requests",
}
"""Names without such an argument -> advice."""


def unknown_keyword(name: str, names: Collection[str]) -> str:
    """Return the fault of an unknown keyword, with the matching or closest name."""
    targets = [target for target, synonyms in SYNONYMS.items() if name in synonyms and target in names]
    if not targets and name in NOTES:
        return f"{name}: no such argument; {NOTES[name]}"
    if targets := targets or difflib.get_close_matches(name, names, n=1):
        return f"{name}: no such argument; did you mean {targets[0]}?"
    return f"{name}: no such argument; arguments are {', '.join(names)}"


def suggests_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """Refuse unknown keywords of a call with a suggestion.

    Valid are the signature's names and, for `**options: Unpack[Options]`, the TypedDict's keys.

    Raises:
        TypeError: with all unknown keywords of a call, before any computation.
    """

    names = dict[str, None]()
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            (options,) = get_args(parameter.annotation)
            names |= dict.fromkeys(get_type_hints(options))
        elif name not in ("self", "cls"):
            names[name] = None

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        if not kwargs.keys() <= names.keys():
            unknown_names = [name for name in kwargs if name not in names]
            raise TypeError("; ".join(unknown_keyword(name, names) for name in unknown_names))
        return function(*args, **kwargs)

    return checked


def suggests_fields(cls: type[T]) -> type[T]:
    cls.__init__ = suggests_keywords(cls.__init__)  # type: ignore[method-assign]  # the signature stays
    return cls


def suggests_in_methods(cls: type[T]) -> type[T]:
    for name, member in list(vars(cls).items()):
        function = getattr(member, "__func__", member)
        if not name.startswith("_") and inspect.isfunction(function):
            checked = suggests_keywords(function)
            setattr(cls, name, checked if function is member else type(member)(checked))
    return cls

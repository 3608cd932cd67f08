"""Sampling parameters of requests, and their use as keywords."""

import inspect
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import ParamSpec, TypedDict, TypeVar

from hybridlm.grammars import StructuredOutputs
from hybridlm.keywords import suggests_fields

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Each = T | Sequence[T]
"""A value for all requests, or a list with the value of each prompt."""

SEED_BITS = 53
"""Bits of a drawn seed: exact in the float64 numbers of JSON readers."""


@dataclass(frozen=True, kw_only=True)
class PlainSettings:
    """Settings independent of model and tokenizer; see `SamplingParams`."""

    max_tokens: int = 64
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_tokens: int = 0
    skip_special_tokens: bool = True
    keep_tool_markers: bool = False
    thinking_budget: int | None = None
    think_end: str | None = None


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class SamplingParams(PlainSettings):
    """Settings of one request: sampling, reported log-probabilities, and the end.

    `generate`, `stream`, `chat` and `Session.submit` take one, its fields as keywords, or both: keywords override.
    `generate` and `stream` also take lists with a value for each prompt (`temperature=[0.0, 0.7]`), sampled as in
    separate calls.

    Attributes:
        max_tokens: maximum number of generated tokens.
        temperature: divides logits; 0 takes the most likely token.
        top_k: sample among this many most likely tokens; 0 for all. Filters follow temperature, in this order.
        top_p: then among the fewest tokens with this total probability, and ties; 1 for all.
        min_p: then among tokens at least this many times as probable as the most likely; 0 for all.
        seed: the key is (seed, request index, position), whatever the lane and the batch. None draws a seed for each
            call, or for each prompt if a setting is a list; `Completion.seed` repeats the tokens.
        stop: strings or token ids that end a completion, besides the model's end tokens.
        stop_token_ids: more token ids that end a completion.
        ignore_eos: do not end at the model's end tokens.
        logprobs: report log-probabilities of sampled and this many most likely tokens.
        prompt_logprobs: the same for prompt tokens, which the steps of `LM.score` read once more.
        repetition_penalty: divides positive logits of earlier tokens, multiplies others; 1 for none. Penalties, biases
            and bans precede temperature and change no reported log-probability.
        presence_penalty: subtracted from the logits of tokens of the completion; 0 for none.
        frequency_penalty: subtracted as often as the token is in the completion; 0 for none.
        logit_bias: token id -> number added to its logit, before the penalties.
        min_tokens: no end token, stop token id or stop string before this many tokens.
        bad_words: strings (also after a space, as in vLLM) or lists of token ids; the last token of a list is banned
            after the others.
        allowed_token_ids: sample these tokens only; None for all. Not with `structured_outputs`.
        skip_special_tokens: leave special tokens out of the text.
        keep_tool_markers: but keep those with "tool" or "function" in their name (<tool_call>, ...).
        thinking_budget: after this many tokens of thoughts, insert their end marker; None for no limit.
        think_end: end marker of thoughts; None for the tokenizer's (</think>, ...).
        structured_outputs: a mapping with one of `json` (a schema), `json_object` (True), `regex`, `choice` (texts) and
            `grammar` (Lark): only tokens of this form are sampled. Needs the extra `grammar`; docs/grammars.md.
    """

    stop: str | int | Sequence[str | int] | None = None
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logit_bias: Mapping[int, float] | None = None
    bad_words: Sequence[str | Sequence[int]] = ()
    allowed_token_ids: Sequence[int] | None = None
    structured_outputs: StructuredOutputs | None = None


class Settings(TypedDict, total=False):
    """The fields of `SamplingParams` as keywords, perhaps lists per prompt.

    A list of token ids, strings or words is one value; a list of such lists has one for each prompt.
    """

    max_tokens: Each[int]
    temperature: Each[float]
    top_k: Each[int]
    top_p: Each[float]
    min_p: Each[float]
    seed: Each[int | None]
    logprobs: Each[int | None]
    prompt_logprobs: Each[int | None]
    repetition_penalty: Each[float]
    presence_penalty: Each[float]
    frequency_penalty: Each[float]
    min_tokens: Each[int]
    skip_special_tokens: Each[bool]
    keep_tool_markers: Each[bool]
    thinking_budget: Each[int | None]
    think_end: Each[str | None]
    stop: Each[str | int | Sequence[str | int] | None]
    stop_token_ids: Each[Sequence[int]] | Sequence[int]
    ignore_eos: Each[bool]
    logit_bias: Each[Mapping[int, float] | None]
    bad_words: Each[Sequence[str | Sequence[int]]]
    allowed_token_ids: Each[Sequence[int] | None] | Sequence[int]
    structured_outputs: Each[StructuredOutputs | None]


def draw_seed() -> int:
    """Return a random seed of the operating system, below 2**53."""
    return secrets.randbits(SEED_BITS)


def takes_settings(method: Callable[P, R]) -> Callable[P, R]:
    """Show the fields of `SamplingParams` in the signature of a method with `**settings`."""
    signature = inspect.signature(method)
    *parameters, _ = signature.parameters.values()
    setting_parameters = [
        inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
        for field in fields(SamplingParams)
    ]
    method.__signature__ = signature.replace(parameters=[*parameters, *setting_parameters])  # type: ignore[attr-defined]  # for help()
    return method

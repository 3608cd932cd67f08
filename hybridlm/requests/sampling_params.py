"""Sampling parameters of a request, and their use as keywords."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import ParamSpec, TypedDict, TypeVar

from hybridlm.grammars import StructuredOutputs

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class PlainSettings:
    """Sampling settings that need neither a model nor a tokenizer to be understood; `SamplingParams` describes each."""

    max_tokens: int = 64
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    logprobs: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_tokens: int = 0
    skip_special_tokens: bool = True
    keep_tool_markers: bool = False
    thinking_budget: int | None = None
    think_end: str | None = None


@dataclass(frozen=True, kw_only=True)
class SamplingParams(PlainSettings):
    """Settings of one request: how its tokens are sampled, what is reported of them, and when it ends.

    `generate`, `stream`, `chat` and `Session.submit` take one, or its fields as keywords, or both: keywords override.
    Values are checked against the model when a request is made.

    Attributes:
        max_tokens: maximum number of generated tokens.
        temperature: 0 takes the most likely token; otherwise logits are divided by it.
        top_k: sample among this many most likely tokens; 0 for all. Filters follow temperature, in this order.
        top_p: then among the fewest tokens whose probabilities reach this sum, and those as likely as the last of them;
            1 for all.
        min_p: then among tokens at least this many times as probable as the most likely one; 0 for all.
        seed: the token at a position is sampled with the key (seed, index of the request, position), independently of
            the other requests, the lane and the number of lanes.
        stop: strings or token ids that end a completion, in addition to the model's own end tokens.
        stop_token_ids: more token ids that end a completion.
        ignore_eos: do not end at the model's own end tokens.
        logprobs: report log-probabilities of the sampled tokens, and of this many most likely ones (0: none other).
        repetition_penalty: logits of tokens of the prompt and the completion are divided by it if they are positive,
            else multiplied; 1 for none. Penalties, biases and bans come before temperature, and change no reported
            log-probability.
        presence_penalty: subtracted from the logits of tokens of the completion; 0 for none.
        frequency_penalty: subtracted as often as the token is in the completion; 0 for none.
        logit_bias: token id -> number added to its logit, before the penalties.
        min_tokens: no end token or stop token id before this many tokens.
        bad_words: never sampled: strings (also behind a space, as in vLLM) or lists of token ids, whose last token is
            banned where the others precede it.
        skip_special_tokens: leave special tokens out of the text.
        keep_tool_markers: but keep special tokens with "tool" or "function" in their name (<tool_call>, ...).
        thinking_budget: after this many tokens of thoughts, go on with the end marker of thoughts; None for no limit.
        think_end: the end marker of thoughts; None for the tokenizer's own (</think>, ...).
        structured_outputs: the form of the completion, a mapping with one of `json` (a schema), `json_object` (True),
            `regex`, `choice` (a list of texts) and `grammar` (Lark): only tokens that the form allows are sampled, end
            tokens only where it may end, and the completion ends where nothing can follow. Needs the extra `grammar`;
            docs/grammars.md.
    """

    stop: str | int | Sequence[str | int] | None = None
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logit_bias: Mapping[int, float] | None = None
    bad_words: Sequence[str | Sequence[int]] = ()
    structured_outputs: StructuredOutputs | None = None


class Settings(TypedDict, total=False):
    """The fields of `SamplingParams` as keywords."""

    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    logprobs: int | None
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    min_tokens: int
    skip_special_tokens: bool
    keep_tool_markers: bool
    thinking_budget: int | None
    think_end: str | None
    stop: str | int | Sequence[str | int] | None
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    logit_bias: Mapping[int, float] | None
    bad_words: Sequence[str | Sequence[int]]
    structured_outputs: StructuredOutputs | None


def with_settings(params: SamplingParams | None, settings: Settings) -> SamplingParams:
    """Return sampling parameters with some fields replaced.

    Raises:
        TypeError: `params` is something else, or there is no such field; the message names the fields.
    """
    if params is not None and not isinstance(params, SamplingParams):
        raise TypeError(f"sampling_params: expected a hybridlm.SamplingParams, got {params!r}")
    names = [field.name for field in fields(SamplingParams)]
    unknown = sorted(set(settings) - set(names))
    if unknown:
        raise TypeError(f"{', '.join(unknown)}: no such setting; settings are {', '.join(names)}")
    return replace(SamplingParams() if params is None else params, **settings)


def takes_settings(method: Callable[P, R]) -> Callable[P, R]:
    """Show the fields of `SamplingParams` in the signature of a method that takes them as `**settings`."""
    signature = inspect.signature(method)
    *others, _ = signature.parameters.values()
    shown = [
        inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
        for field in fields(SamplingParams)
    ]
    method.__signature__ = signature.replace(parameters=[*others, *shown])  # type: ignore[attr-defined]  # for help()
    return method

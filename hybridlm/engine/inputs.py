"""Checked requests and token ids from users' arguments."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from hybridlm.engine.prefix import Prefix
from hybridlm.errors import MAX_SHOWN
from hybridlm.grammars import Grammars, grammar_text
from hybridlm.requests.sampling_params import PlainSettings, SamplingParams, Settings, draw_seed
from hybridlm.requests.sequence import Request, ResolvedParams
from hybridlm.requests.validation import (
    LARGEST,
    MAX_LOGPROBS,
    are_ids,
    check_count,
    faults_of,
    is_whole,
    read_bad_words,
    read_logit_bias,
    settings_of_prompts,
    stops_of,
    to_items,
)
from hybridlm.rows.snapshot import Snapshot
from hybridlm.text.reasoning import markers_of
from hybridlm.text.tokenizer import Tokenizer


@dataclass
class Inputs:
    """Checks inputs against the limits of one model.

    Attributes:
        require: raises SnapshotError for a state that the model cannot continue.
        placeholders: refused tokens of images, audio or video.
        cache: positions of a device's KV cache, if it is smaller than a context.
    """

    tokenizer: Tokenizer | None
    vocab_size: int
    context: int
    eos_token_ids: tuple[int, ...]
    require: Callable[[Snapshot], None]
    placeholders: tuple[int, ...] = ()
    cache: int | None = None
    head_drafts: int = 0

    @property
    def max_logprobs(self) -> int:
        return min(self.vocab_size, MAX_LOGPROBS)

    def encode(self, item: Any, where: str, prefix: Prefix | None = None, max_tokens: int = 0) -> tuple[int, ...]:
        """Return the token ids of an item within the context and the KV cache.

        Args:
            prefix: its tokens come first; the item is then encoded without special tokens, and may be empty.
            max_tokens: of a completion, for which the KV cache has room.

        Raises:
            TypeError, ValueError: the item is wrong, or `prefix` is not a prefix of this model.
        """
        if prefix is None:
            ids, subject = self.token_ids(item, where), where
        else:
            self.require_prefix(prefix)
            ids = (*prefix.token_ids, *self.token_ids(item, where, continues=True))
            subject = f"{where}, with its prefix of {len(prefix)},"
        self.check_length(ids, subject)
        if max_tokens and self.cache is not None:
            self._check_room(ids, where, max_tokens)
        return ids

    def check_length(self, ids: Sequence[int], where: str) -> None:
        """Raise ValueError unless token ids fit the context and a device's KV cache."""
        for size, name, option in ((self.context, "context", "context"), (self.cache, "KV cache of a device", "cache")):
            if size is not None and len(ids) > size:
                message = f"has {len(ids)} tokens, the {name} holds {size}; shorten it or load with a larger {option}"
                raise ValueError(f"{where}: {message}")

    def room(self, prompt: Sequence[int]) -> int:
        """Return the most tokens of a completion."""
        room = self.context - len(prompt)
        return room if self.cache is None else min(room, self.cache - self.head_drafts + 1 - len(prompt))

    def _check_room(self, prompt: Sequence[int], where: str, max_tokens: int) -> None:
        room, count = self.room(prompt), min(max_tokens, self.context - len(prompt))
        if room < count:
            drafts = f" and {self.head_drafts} of drafts" if self.head_drafts else ""
            raise ValueError(
                f"{where}: {len(prompt)} tokens and max_tokens {max_tokens} need {len(prompt) + count - 1} "
                f"positions{drafts}, the KV cache of a device holds {self.cache}; give max_tokens of at most "
                f"{max(room, 0)}, or load with a larger cache"
            )

    def token_ids(self, item: Any, where: str, continues: bool = False) -> tuple[int, ...]:
        """Return the token ids of an item, of any length.

        Args:
            continues: may be empty, and gets no special tokens.

        Raises:
            TypeError: neither a string nor a list of token ids.
            ValueError: empty, a string without a tokenizer or with lone surrogates, an id outside the vocabulary or
                of an image.
        """
        tokenizer = self.tokenizer
        if isinstance(item, str):
            if tokenizer is None:
                message = "got text, but the checkpoint has no tokenizer.json; pass a list of token ids"
                raise ValueError(f"{where}: {message}")
            try:
                ids = tokenizer.encode(item, add_special_tokens=not continues)
            except ValueError as error:
                raise ValueError(f"{where}: {error}") from error
        elif isinstance(item, list | tuple) or (isinstance(item, np.ndarray) and item.ndim):
            wrong = [(i, token) for i, token in enumerate(item) if not is_whole(token)]
            if wrong:
                i, token = wrong[0]
                raise TypeError(f"{where}: expected token ids, got {token!r} at index {i}")
            ids = [operator.index(token) for token in item]
        else:
            raise TypeError(f"{where}: expected a string or a list of token ids, got {type(item)}")
        if not ids and not continues:
            raise ValueError(f"{where}: is empty; at least one token is needed")
        for i, token in enumerate(ids):
            if not 0 <= token < self.vocab_size:
                message = f"token id {token} at index {i} is outside the vocabulary [0, {self.vocab_size})"
                raise ValueError(f"{where}: {message}")
            if token in self.placeholders:
                text = "" if tokenizer is None else tokenizer.decode([token], skip_special_tokens=False)
                raise ValueError(
                    f"{where}: token id {token} ({text!r:.100}) at index {i} stands for an image, audio or video, and "
                    "only the text model of this checkpoint is loaded; remove it from the prompt"
                )
        return tuple(ids)

    def encode_all(self, items: Any, name: str, of_any_length: bool = False) -> list[tuple[int, ...]]:
        """Return the token ids of every item of a list; raises as `encode`."""
        named = [(item, f"{name}[{i}]") for i, item in enumerate(to_items(items, name))]
        if of_any_length:
            return [self.token_ids(item, where) for item, where in named]
        return [self.encode(item, where) for item, where in named]

    def continuations(self, prefix: Any, items: Any, name: str) -> list[tuple[int, ...]]:
        """Return the token ids of a prefix and each item, not empty; raises as `encode`."""
        self.require_prefix(prefix)
        prompts = [self.encode(item, f"{name}[{i}]", prefix) for i, item in enumerate(to_items(items, name))]
        for i, ids in enumerate(prompts):
            if len(ids) == len(prefix):
                raise ValueError(f"{name}[{i}]: is empty; at least one token is needed behind the prefix")
        return prompts

    def require_prefix(self, prefix: Any) -> None:
        if not isinstance(prefix, Prefix):
            raise TypeError(f"prefix: expected what lm.prefix or lm.load_prefix returns, got {type(prefix)}")
        self.require(prefix.snapshot)

    def requests(
        self,
        prompts: Any,
        n: int,
        params: SamplingParams | Sequence[SamplingParams] | None,
        prefix: Prefix | None = None,
        settings: Settings | None = None,
    ) -> list[Request]:
        """Return `n` requests for each prompt.

        Random numbers follow from a request's seed and its index; with a list of settings, its index among the `n` of
        its prompt.

        Raises:
            TypeError, ValueError: names the prompts, the settings or both; of lists all faults.
        """
        check_count(n, "n")
        items = to_items(prompts, "prompts")
        params = settings_of_prompts(params, settings or {}, len(items))
        listed = isinstance(params, list)
        resolved = self._resolve_all(params) if listed else [self.resolve(params)] * len(items)
        requests = []
        for i, (item, checked) in enumerate(zip(items, resolved, strict=True)):
            tokens = self.encode(item, f"prompts[{i}]", prefix, checked.max_tokens)
            start = None if prefix is None else prefix.snapshot
            for j in range(n):
                index = j if listed else None
                requests.append(Request(i * n + j, tokens, checked, sampling_index=index, start=start))
        return requests

    def _resolve_all(self, params: Sequence[SamplingParams]) -> list[ResolvedParams]:
        resolved, faults = list[ResolvedParams](), list[str]()
        for i, settings in enumerate(params):
            try:
                resolved.append(self.resolve(settings))
            except ValueError as error:
                faults.append(f"settings of prompts[{i}]: {error}")
        if len(faults) > MAX_SHOWN:
            faults[MAX_SHOWN:] = [f"and settings of {len(faults) - MAX_SHOWN:,} more prompts"]
        if faults:
            raise ValueError("; ".join(faults))
        return resolved

    def request(
        self, index: int, prompt: Any, params: SamplingParams, priority: int = 0, prefix: Prefix | None = None
    ) -> Request:
        """Return one request; raises as `requests`."""
        if not is_whole(priority):
            raise TypeError(f"priority: expected a whole number, got {priority!r}")
        resolved = self.resolve(params)
        tokens = self.encode(prompt, f"request {index}", prefix, resolved.max_tokens)
        return Request(index, tokens, resolved, priority, start=None if prefix is None else prefix.snapshot)

    def resolve(self, params: SamplingParams) -> ResolvedParams:
        """Check sampling parameters against a model, and draw a missing seed.

        Raises:
            ValueError: all wrong settings.
            MissingExtra: structured outputs without llguidance.
        """
        tokenizer, vocab_size = self.tokenizer, self.vocab_size
        faults = faults_of(params, min(vocab_size, MAX_LOGPROBS))
        strings: list[str] = []
        ids = [] if params.ignore_eos else list(self.eos_token_ids)
        for item in stops_of(params.stop):
            if not isinstance(item, str):
                if is_whole(item, 0, vocab_size - 1):
                    ids.append(item)
                else:
                    faults.append(f"stop: expected strings or token ids below {vocab_size}, got {item!r}")
            elif tokenizer is None:
                faults.append(f"stop: expected token ids, because the checkpoint has no tokenizer.json, got {item!r}")
            else:
                strings.append(item)
        if not are_ids(params.stop_token_ids, vocab_size):
            faults.append(
                f"stop_token_ids: expected a list of token ids below {vocab_size}, got {params.stop_token_ids!r}"
            )
        allowed = params.allowed_token_ids
        if allowed is not None and not (are_ids(allowed, vocab_size) and allowed):
            faults.append(
                f"allowed_token_ids: expected at least one token id below {vocab_size}, or None, got {allowed!r}"
            )
        if allowed is not None and params.structured_outputs is not None:
            faults.append("allowed_token_ids: expected None with structured_outputs, which decide the tokens")
        bias = () if params.logit_bias is None else read_logit_bias(params.logit_bias, vocab_size)
        words = read_bad_words(params.bad_words, tokenizer, vocab_size)
        if isinstance(bias, str):
            faults.append(
                f"logit_bias: expected token ids below {vocab_size} -> numbers in -3e38..{LARGEST:g}, got {bias}"
            )
        if isinstance(words, str):
            faults.append(f"bad_words: expected strings or lists of token ids below {vocab_size}, got {words}")
        if params.thinking_budget is not None:
            if tokenizer is None:
                faults.append("thinking_budget: needs a tokenizer, the checkpoint has no tokenizer.json")
            elif markers_of(tokenizer, params.think_end) is None:
                faults.append("thinking_budget: the tokenizer has no known end marker of thoughts; give think_end")
        grammar = None
        if params.structured_outputs is not None:
            try:
                grammar = self._grammar(params)
            except ValueError as error:
                faults.append(f"structured_outputs: {error}")
        if faults:
            raise ValueError("; ".join(faults))
        assert not isinstance(bias, str) and not isinstance(words, str)
        ids += params.stop_token_ids
        plain = {field.name: getattr(params, field.name) for field in fields(PlainSettings)}
        for name, value in plain.items():
            if isinstance(value, np.generic):
                plain[name] = value.item()
            if isinstance(getattr(PlainSettings, name), float):
                plain[name] = float(value)
        if params.seed is None:
            plain["seed"] = draw_seed() if params.temperature > 0 else ResolvedParams.seed
        return ResolvedParams(
            **plain,
            stop_token_ids=frozenset(int(token) for token in ids),
            stop_strings=tuple(strings),
            logit_bias=bias,
            bad_words=words,
            allowed_token_ids=None if allowed is None else tuple(sorted({int(token) for token in allowed})),
            grammar=grammar,
        )

    def _grammar(self, params: SamplingParams) -> str:
        """Return the grammar of structured outputs; raises ValueError for its fault."""
        if self.tokenizer is None:
            raise ValueError("needs a tokenizer, the checkpoint has no tokenizer.json")
        if params.ignore_eos:
            raise ValueError("expected ignore_eos=False, because completions end with their grammar")
        text = grammar_text(params.structured_outputs)
        Grammars.of(self.tokenizer, self.vocab_size, self.eos_token_ids).check(text)
        return text

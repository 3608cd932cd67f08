"""Checked requests and token ids from users' arguments."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hybridlm.engine.prefix import Prefix
from hybridlm.errors import MAX_SHOWN
from hybridlm.requests.sampling_params import SamplingParams, Settings, settings_of_prompts
from hybridlm.requests.sequence import Request, ResolvedParams
from hybridlm.requests.validation import MAX_LOGPROBS, check_count, check_length, resolve, to_items, to_token_ids
from hybridlm.rows.snapshot import Snapshot
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

    def encode(self, item: Any, where: str) -> tuple[int, ...]:
        """Return the token ids of an item within the context and the KV cache.

        Raises TypeError or ValueError with the item's name.
        """
        ids = self.token_ids(item, where)
        check_length(ids, where, self.context, self.cache)
        return ids

    def room(self, prompt: Sequence[int]) -> int:
        room = self.context - len(prompt)
        return room if self.cache is None else min(room, self.cache - self.head_drafts + 1 - len(prompt))

    def token_ids(self, item: Any, where: str, continues: bool = False) -> tuple[int, ...]:
        """Return an item's token ids, of any length; raises as `encode`."""
        ids = to_token_ids(item, where, self.tokenizer, self.vocab_size, continues)
        for i, token in enumerate(ids if self.placeholders else ()):
            if token in self.placeholders:
                text = "" if self.tokenizer is None else self.tokenizer.decode([token], skip_special_tokens=False)
                raise ValueError(
                    f"{where}: token id {token} ({text!r:.100}) at index {i} stands for an image, audio or video, and "
                    "only the text model of this checkpoint is loaded; remove it from the prompt"
                )
        return ids

    def encode_all(self, items: Any, name: str, of_any_length: bool = False) -> list[tuple[int, ...]]:
        """Return the token ids of every item of a list; raises as `encode`."""
        named = [(item, f"{name}[{i}]") for i, item in enumerate(to_items(items, name))]
        if of_any_length:
            return [self.token_ids(item, where) for item, where in named]
        return [self.encode(item, where) for item, where in named]

    def after(self, prefix: Any, item: Any, where: str) -> tuple[int, ...]:
        """Return the token ids of a prefix and an item, within the context.

        The text is encoded separately, without special tokens.

        Raises:
            TypeError, ValueError: the item is wrong, or `prefix` is not a prefix of this model.
        """
        self.require_prefix(prefix)
        ids = (*prefix.token_ids, *self.token_ids(item, where, continues=True))
        check_length(ids, f"{where}, with its prefix of {len(prefix)},", self.context, self.cache)
        return ids

    def continuations(self, prefix: Any, items: Any, name: str) -> list[tuple[int, ...]]:
        """Return the token ids of a prefix and each item, not empty; raises as `after`."""
        self.require_prefix(prefix)
        prompts = [self.after(prefix, item, f"{name}[{i}]") for i, item in enumerate(to_items(items, name))]
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
        resolved = self._resolve_all(params) if listed else [self._resolve(params)] * len(items)
        requests = []
        for i, (item, checked) in enumerate(zip(items, resolved, strict=True)):
            tokens, start = self._prompt(item, f"prompts[{i}]", prefix, checked)
            for j in range(n):
                index = j if listed else None
                requests.append(Request(i * n + j, tokens, checked, sampling_index=index, start=start))
        return requests

    def _resolve_all(self, params: Sequence[SamplingParams]) -> list[ResolvedParams]:
        resolved, faults = list[ResolvedParams](), list[str]()
        for i, settings in enumerate(params):
            try:
                resolved.append(self._resolve(settings))
            except ValueError as error:
                faults.append(f"settings of prompts[{i}]: {error}")
        if len(faults) > MAX_SHOWN:
            faults[MAX_SHOWN:] = [f"and settings of {len(faults) - MAX_SHOWN:,} more prompts"]
        if faults:
            raise ValueError("; ".join(faults))
        return resolved

    def _prompt(
        self, item: Any, where: str, prefix: Prefix | None, params: ResolvedParams
    ) -> tuple[tuple[int, ...], Snapshot | None]:
        """Return the token ids of a prompt and the state that it continues.

        Raises as `encode` and `after`, and ValueError without room in the KV cache.
        """
        tokens = self.encode(item, where) if prefix is None else self.after(prefix, item, where)
        room, count = self.room(tokens), min(params.max_tokens, self.context - len(tokens))
        if room < count:
            drafts = f" and {self.head_drafts} of drafts" if self.head_drafts else ""
            raise ValueError(
                f"{where}: {len(tokens)} tokens and max_tokens {params.max_tokens} need {len(tokens) + count - 1} "
                f"positions{drafts}, the KV cache of a device holds {self.cache}; give max_tokens of at most "
                f"{max(room, 0)}, or load with a larger cache"
            )
        return tokens, None if prefix is None else prefix.snapshot

    def request(
        self, index: int, prompt: Any, params: SamplingParams, priority: int = 0, prefix: Prefix | None = None
    ) -> Request:
        """Return one request; raises as `requests`."""
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise TypeError(f"priority: expected a whole number, got {priority!r}")
        resolved = self._resolve(params)
        tokens, start = self._prompt(prompt, f"request {index}", prefix, resolved)
        return Request(index, tokens, resolved, priority, start=start)

    def _resolve(self, params: SamplingParams) -> ResolvedParams:
        return resolve(params, end_token_ids=self.eos_token_ids, tokenizer=self.tokenizer, vocab_size=self.vocab_size)

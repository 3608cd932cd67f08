"""What users pass to a model, checked against it: prompts, texts and settings become requests and token ids."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hybridlm._requests import MOST_LOGPROBS, Settings, check_length, to_items, to_sampling_params, to_token_ids
from hybridlm._sequence import Request, SamplingParams
from hybridlm._tokenizer import Tokenizer


@dataclass(frozen=True)
class Inputs:
    """The limits of one model.

    Attributes:
        tokenizer: None where only token ids can be taken.
        vocab_size: token ids are below it.
        context: most tokens of a sequence.
        eos_token_ids: tokens that end a completion.
    """

    tokenizer: Tokenizer | None
    vocab_size: int
    context: int
    eos_token_ids: tuple[int, ...]

    @property
    def most_logprobs(self) -> int:
        """How many of the most likely tokens of a position can be asked for."""
        return min(self.vocab_size, MOST_LOGPROBS)

    def encode(self, item: Any, where: str) -> tuple[int, ...]:
        """Token ids of one item, which fit the context; raises TypeError or ValueError that names it."""
        ids = to_token_ids(item, where, self.tokenizer, self.vocab_size)
        check_length(ids, where, self.context)
        return ids

    def encode_all(self, items: Any, what: str, of_any_length: bool = False) -> list[tuple[int, ...]]:
        """Token ids of every item of a list, which fit the context unless they may be `of_any_length`; raises alike."""
        named = [(item, f"{what}[{i}]") for i, item in enumerate(to_items(items, what))]
        if of_any_length:
            return [to_token_ids(item, where, self.tokenizer, self.vocab_size) for item, where in named]
        return [self.encode(item, where) for item, where in named]

    def requests(self, prompts: Any, n: int, settings: Settings) -> list[Request]:
        """`n` requests for each prompt; raises TypeError or ValueError that names the prompt or the setting."""
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise ValueError(f"n: expected a whole number of at least 1, got {n!r}")
        params = self._params(**settings)
        ids: Sequence[tuple[int, ...]] = self.encode_all(prompts, "prompts")
        return [Request(i * n + j, tokens, params) for i, tokens in enumerate(ids) for j in range(n)]

    def request(self, index: int, prompt: Any, priority: int, settings: Settings) -> Request:
        """One request with a number and a priority; raises as `requests`."""
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise TypeError(f"priority: expected a whole number, got {priority!r}")
        params = self._params(**settings)
        return Request(index, self.encode(prompt, f"request {index}"), params, priority)

    def _params(self, ignore_eos: bool = False, **settings: Any) -> SamplingParams:
        end = () if ignore_eos else self.eos_token_ids
        return to_sampling_params(**settings, end_token_ids=end, tokenizer=self.tokenizer, vocab_size=self.vocab_size)

"""Log-probabilities of tokens in the two formats of OpenAI's API."""

from collections.abc import Mapping, Sequence
from typing import Any

from hybridlm.files.json_lines import finite
from hybridlm.requests.results import PromptLogprobs
from hybridlm.text.stream_decoder import REPLACEMENT
from hybridlm.text.tokenizer import Tokenizer


class ChoiceLogprobs:
    """The tokens of one choice, its echoed prompt included.

    The name of a token is its decoded text; an incomplete character is U+FFFD.

    Args:
        tokenizer: None if tokens have no text.
        names_are_ids: name tokens "token_id:N".
    """

    def __init__(self, tokenizer: Tokenizer | None, names_are_ids: bool):
        self._tokenizer = None if names_are_ids else tokenizer
        self._rows: list[tuple[int, float | None, Mapping[int, float], int]] = []

    def add(
        self, token_ids: Sequence[int], logprobs: Sequence[float | None], tops: Sequence[Mapping[int, float]] | None,
        offsets: Sequence[int],
    ) -> None:  # fmt: skip
        """Append tokens.

        Args:
            token_ids: the tokens.
            logprobs: log-probability of each token; None for a token that is not predicted.
            tops: the most likely tokens at each position, best first; None for none.
            offsets: where each begins in the choice's text.
        """
        most_likely = [{}] * len(token_ids) if tops is None else tops
        self._rows += zip(token_ids, logprobs, most_likely, offsets, strict=True)

    def of_completions(self) -> dict[str, Any]:
        """Return the format of /v1/completions; its most likely tokens include the token itself."""
        return {
            "tokens": [self._name(token) for token, _, _, _ in self._rows],
            "token_logprobs": [_number(logprob) for _, logprob, _, _ in self._rows],
            "top_logprobs": [
                None if logprob is None else self._by_name({**top, token: logprob})
                for token, logprob, top, _ in self._rows
            ],
            "text_offset": [offset for _, _, _, offset in self._rows],
        }

    def of_chat(self) -> dict[str, Any]:
        """Return the format of /v1/chat/completions."""
        return {
            "content": [
                self._entry(token, logprob) | {"top_logprobs": [self._entry(*other) for other in top.items()]}
                for token, logprob, top, _ in self._rows
            ]
        }

    def _entry(self, token: int, logprob: float | None) -> dict[str, Any]:
        name = self._name(token)
        # An incomplete character has no text and a token without a tokenizer none, so their bytes are null.
        has_bytes = self._tokenizer is not None and REPLACEMENT not in name
        return {"token": name, "logprob": _number(logprob), "bytes": list(name.encode()) if has_bytes else None}

    def _by_name(self, top: Mapping[int, float]) -> dict[str, float | None]:
        """Return name -> log-probability.

        If two tokens have the same text, the less likely one is named by its id.
        """
        named: dict[str, float | None] = {}
        for token, logprob in top.items():
            name = self._name(token)
            named[f"token_id:{token}" if name in named else name] = finite(logprob)
        return named

    def _name(self, token: int) -> str:
        if self._tokenizer is None:
            return f"token_id:{token}"
        return self._tokenizer.decode([token], skip_special_tokens=False)


def _number(logprob: float | None) -> float | None:
    return None if logprob is None else finite(logprob)


def prompt_entries(
    logprobs: PromptLogprobs, top: int | None, tokenizer: Tokenizer | None
) -> list[dict[str, Any] | None]:
    """Return the log-probabilities of a prompt in the form of vLLM's `prompt_logprobs`.

    A token has `logprob`, `rank` from 1 (null for a token of the prompt that is not among the most likely ones) and
    `decoded_token` (null without a tokenizer), by its id as a text.

    Args:
        logprobs: log-probabilities of the tokens of the prompt.
        top: number of most likely tokens that were asked for.
        tokenizer: None if tokens have no text.
    """

    def row(place: int, token: int, logprob: float) -> dict[str, Any]:
        text = None if tokenizer is None else tokenizer.decode([token], skip_special_tokens=False)
        rank = place + 1 if place < (top or 0) else None
        return {"logprob": _number(logprob), "rank": rank, "decoded_token": text}

    return [
        None if entry is None else {str(token): row(i, token, value) for i, (token, value) in enumerate(entry.items())}
        for entry in logprobs
    ]

"""Drafters propose the next tokens of a sequence; wrong drafts only cost time."""

from collections.abc import Callable, Sequence
from typing import Literal, Protocol, runtime_checkable

import numpy as np

DEFAULT_DRAFT_TOKENS = 4
"""Maximum drafts of a lane in a step."""
MAX_NGRAM, MIN_NGRAM = 4, 2
"""Lengths of recurring n-grams: after one token too much can follow."""


@runtime_checkable
class Drafter(Protocol):
    """Proposes continuations; `load` and `generate` accept any such object."""

    def propose(self, token_ids: Sequence[int], k: int) -> list[int]:
        """Return at most k tokens that may follow.

        Args:
            token_ids: prompt and sampled tokens, at least one; must not be stored or changed.
            k: at least 1.
        """
        ...


Speculate = Literal["ngram", "mtp"] | Drafter | None
AsLoaded = Literal["as loaded"]


class NgramDrafter:
    """Prompt lookup: proposes the tokens after an earlier occurrence of the last tokens.

    The longest recurring n-gram wins, at its latest occurrence. Positions after all n-grams of 2 to 4 tokens are
    stored: the cost does not grow with the sequence.
    """

    def __init__(self) -> None:
        self._seen = 0
        self._behind: dict[tuple[int, ...], int] = {}

    def propose(self, token_ids: Sequence[int], k: int) -> list[int]:
        """See `Drafter`. Tokens must extend the previous call's."""
        for place in range(max(self._seen, MIN_NGRAM), len(token_ids)):
            for size in range(MIN_NGRAM, min(MAX_NGRAM, place) + 1):
                self._behind[tuple(token_ids[place - size : place])] = place
        self._seen = len(token_ids)
        for size in range(min(MAX_NGRAM, len(token_ids)), MIN_NGRAM - 1, -1):
            place = self._behind.get(tuple(token_ids[-size:]))
            if place is not None:
                return list(token_ids[place : place + k])
        return []


class MtpDrafter:
    """MTP drafts of a sequence's last sampling step."""

    def __init__(self) -> None:
        self._after, self._mtp_drafts = 0, list[int]()

    def observe(self, position: int, mtp_drafts: Sequence[int]) -> None:
        self._after, self._mtp_drafts = position, list(mtp_drafts)

    def propose(self, token_ids: Sequence[int], k: int) -> list[int]:
        """See `Drafter`. Empty after a step without MTP drafts."""
        return self._mtp_drafts[:k] if len(token_ids) == self._after else []


DRAFTERS: dict[str, Callable[[], Drafter]] = {"ngram": NgramDrafter, "mtp": MtpDrafter}
DRAFTER_NAMES = ", ".join(map(repr, DRAFTERS))


def drafters(speculate: Speculate, has_head: bool = True) -> Callable[[], Drafter] | None:
    """Return the factory of a sequence's drafter; None if nothing is drafted.

    Raises:
        ValueError: an unknown name, or no MTP head.
        TypeError: no name, and no `propose`.
    """
    if speculate is None:
        return None
    if isinstance(speculate, str):
        if speculate not in DRAFTERS:
            raise ValueError(
                f"speculate: expected {DRAFTER_NAMES}, None or an object with propose(), got {speculate!r}"
            )
        if speculate == "mtp" and not has_head:
            raise ValueError(
                "speculate: 'mtp' needs the model's multi-token-prediction head, which is read where it is asked for: "
                "hybridlm.load(..., speculate='mtp')"
            )
        return DRAFTERS[speculate]
    if isinstance(speculate, type) or not callable(getattr(speculate, "propose", None)):
        raise TypeError(
            f"speculate: expected {DRAFTER_NAMES}, None or an object with propose(token_ids, k) -> list[int], got "
            f"{speculate!r}"
        )
    return lambda: speculate


def checked_proposal(drafter: Drafter, token_ids: Sequence[int], k: int, vocab_size: int) -> tuple[int, ...]:
    """Return a drafter's proposal.

    Raises:
        TypeError: no list of integers.
        ValueError: more than k tokens, or one outside the vocabulary.
    """
    proposal = drafter.propose(token_ids, k)
    name = type(drafter).__name__
    if not isinstance(proposal, list | tuple | np.ndarray) or any(
        isinstance(token, bool) or not isinstance(token, int | np.integer) for token in proposal
    ):
        raise TypeError(f"{name}.propose: expected a list of at most {k} token ids, got {proposal!r}")
    if len(proposal) > k:
        raise ValueError(f"{name}.propose: expected at most {k} tokens, got {len(proposal)}")
    for i, token in enumerate(proposal):
        if not 0 <= token < vocab_size:
            raise ValueError(f"{name}.propose: token {token} at index {i} is outside the vocabulary [0, {vocab_size})")
    return tuple(int(token) for token in proposal)


class DecidedDrafter:
    """A user's drafter; process 0 decides for all processes by `decide`."""

    def __init__(self, drafter: Drafter, vocab_size: int, decide: Callable[[Callable[[], list[int]]], list[int]]):
        self._drafter, self._vocab_size, self._decide = drafter, vocab_size, decide

    def propose(self, token_ids: Sequence[int], k: int) -> list[int]:
        """See `Drafter`; raises as `checked_proposal`."""
        return self._decide(lambda: list(checked_proposal(self._drafter, token_ids, k, self._vocab_size)))

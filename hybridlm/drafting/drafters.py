"""Who mtp_drafts the next tokens of a sequence; a guess costs time when it is wrong and changes nothing."""

from collections.abc import Callable, Sequence
from typing import Literal, Protocol, runtime_checkable

import numpy as np

DEFAULT_DRAFT_TOKENS = 4
"""Drafts of a lane in a step, where nobody says otherwise."""
MAX_NGRAM, MIN_NGRAM = 4, 2
"""Tokens that must come again: after one alone, too much can follow."""


@runtime_checkable
class Drafter(Protocol):
    """Guesses how sequences go on; any object with this method can be given to `load` and `generate`."""

    def propose(self, token_ids: Sequence[int], k: int) -> list[int]:
        """At most k tokens that may follow.

        Args:
            token_ids: prompt and everything sampled so far, at least one token; not to be kept or changed.
            k: at least 1.
        """
        ...


Speculate = Literal["ngram", "mtp"] | Drafter | None
AsLoaded = Literal["as loaded"]


class NgramDrafter:
    """Prompt lookup for one sequence: what followed the last tokens when they stood there before.

    The longest run of last tokens that has been seen goes first, and of its places the latest. Every run of 2 to 4
    tokens is kept with the place behind it, so that a proposal costs the same however long the sequence is.
    """

    def __init__(self) -> None:
        self._seen = 0
        self._behind: dict[tuple[int, ...], int] = {}

    def propose(self, token_ids: Sequence[int], k: int) -> list[int]:
        """See `Drafter`. The tokens of later calls must go on from those of earlier ones."""
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
    """What the model's own head has guessed for one sequence in the step that drew its last token."""

    def __init__(self) -> None:
        self._after, self._guesses = 0, list[int]()

    def observe(self, after: int, mtp_drafts: Sequence[int]) -> None:
        """A step has guessed what follows so many tokens."""
        self._after, self._guesses = after, list(mtp_drafts)

    def propose(self, token_ids: Sequence[int], k: int) -> list[int]:
        """See `Drafter`. Behind a step that has guessed nothing there is nothing to propose."""
        return self._guesses[:k] if len(token_ids) == self._after else []


DRAFTERS: dict[str, Callable[[], Drafter]] = {"ngram": NgramDrafter, "mtp": MtpDrafter}
DRAFTER_NAMES = ", ".join(map(repr, DRAFTERS))


def drafters(speculate: Speculate, has_head: bool = True) -> Callable[[], Drafter] | None:
    """What makes the drafter of each sequence; None where nothing is drafted.

    Args:
        speculate: as for `load`.
        has_head: whether the model has been read with its own head.

    Raises:
        ValueError: the name is none that is known, or the model has no head.
        TypeError: it is neither a name nor has `propose`.
    """
    if speculate is None:
        return None
    if isinstance(speculate, str):
        if speculate not in DRAFTERS:
            raise ValueError(f"speculate: expected {DRAFTER_NAMES}, None or an object with propose(), got {speculate!r}")
        if speculate == "mtp" and not has_head:
            raise ValueError(
                "speculate: 'mtp' needs the model's multi-token-prediction head, which is read where it is asked for: "
                "hybridlm.load(..., speculate='mtp')"
            )
        return DRAFTERS[speculate]
    if isinstance(speculate, type) or not callable(getattr(speculate, "propose", None)):
        raise TypeError(
            f"speculate: expected {DRAFTER_NAMES}, None or an object with propose(token_ids, k) -> list[int], got {speculate!r}"
        )
    return lambda: speculate


def checked_proposal(drafter: Drafter, token_ids: Sequence[int], k: int, vocab_size: int) -> tuple[int, ...]:
    """What a drafter proposes.

    Raises:
        TypeError: no list of whole numbers.
        ValueError: more than k tokens, or one outside the vocabulary.
    """
    found = drafter.propose(token_ids, k)
    name = type(drafter).__name__
    if not isinstance(found, list | tuple | np.ndarray) or any(
        isinstance(token, bool) or not isinstance(token, int | np.integer) for token in found
    ):
        raise TypeError(f"{name}.propose: expected a list of at most {k} token ids, got {found!r}")
    if len(found) > k:
        raise ValueError(f"{name}.propose: expected at most {k} tokens, got {len(found)}")
    for i, token in enumerate(found):
        if not 0 <= token < vocab_size:
            raise ValueError(f"{name}.propose: token {token} at index {i} is outside the vocabulary [0, {vocab_size})")
    return tuple(int(token) for token in found)

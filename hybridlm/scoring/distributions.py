"""What a call to `score` asks about the distribution of each position: chosen ids, most likely ids, ranks, entropy."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hybridlm.requests.token_logprobs import TokenLogprobs
from hybridlm.scoring.items import ScoredIds
from hybridlm.steps.score import Scored

MAX_IDS = 1 << 14
"""Maximum number of ids reported at a position."""


@dataclass(frozen=True, eq=False)
class TextQuestion:
    """Positions and ids of one text to report on.

    Attributes:
        first: index of the first token to report on, counted from the beginning of what the model reads.
        ids: int32 [C], the same for every token from `first` on; or one such array for each of them.
    """

    first: int
    ids: np.ndarray | list[np.ndarray]

    def at(self, token: int) -> np.ndarray:
        """Return the chosen ids of one token's place."""
        return self.ids if isinstance(self.ids, np.ndarray) else self.ids[token - self.first]

    def key(self, begin: int, end: int) -> tuple[Any, ...] | None:
        """Return what is asked about tokens `begin` to `end`; None for nothing."""
        if end <= self.first:
            return None
        asked = range(max(begin, self.first), end)
        if isinstance(self.ids, np.ndarray):
            return (asked.start, self.ids.tobytes())
        return (asked.start, *(self.at(token).tobytes() for token in asked))

    def fill(self, operand: np.ndarray, begin: int) -> None:
        """Write the chosen ids of tokens from `begin` on into an operand, int32 [count, C]."""
        for i in range(max(self.first - begin, 0), len(operand)):
            ids = self.at(begin + i)
            operand[i, : len(ids)] = ids


@dataclass(frozen=True, eq=False)
class Question:
    """What is asked about every text of a call.

    Attributes:
        top: number of most likely tokens to report at each position.
        width: chosen ids of a position in a step, those of the longest list rounded up.
        temperature: divides the logits.
        entropy: whether to report it.
        chosen: whether ids were chosen.
        texts: for each text, its positions and ids.
    """

    top: int
    width: int
    temperature: float
    entropy: bool
    chosen: bool
    texts: list[TextQuestion]


@dataclass(frozen=True)
class DistributionSettings:
    """Arguments of `LM.score` about distributions, as the user gave them and with one text or list of ids unchecked.

    Attributes:
        token_ids, top, start, temperature, entropy: as for `LM.score`.
    """

    token_ids: Any = None
    top: int = 0
    start: Any = None
    temperature: float = 1.0
    entropy: bool = False

    @property
    def given(self) -> bool:
        """Whether anything is asked."""
        return self.token_ids is not None or self.top != 0 or self.temperature != 1.0 or bool(self.entropy)

    def check(self, vocab_size: int) -> None:
        """Check what does not depend on the texts.

        Raises:
            TypeError, ValueError: a setting is wrong, or `start` has nothing to begin.
        """
        most = min(vocab_size, MAX_IDS)
        if not _whole(self.top) or not 0 <= self.top <= most:
            raise ValueError(f"top: expected 0..{most}, got {self.top!r}")
        if isinstance(self.temperature, bool) or not isinstance(self.temperature, int | float):
            raise TypeError(f"temperature: expected a number, got {self.temperature!r}")
        # What float32 rounds to 0 or infinity is none either.
        if not 1e-30 <= self.temperature <= 1e30:
            raise ValueError(f"temperature: expected a number from 1e-30 to 1e30, got {self.temperature!r}")
        if self.start is not None and not self.given:
            raise ValueError("start: expected token_ids, top, entropy or temperature with it, got none of them")

    def question(self, texts: Sequence[ScoredIds], vocab_size: int) -> Question:
        """Return what is asked about texts.

        Args:
            texts: token ids; positions count from behind the prompt of each.
            vocab_size: ids are below it.

        Raises:
            TypeError, ValueError: a setting does not fit the texts; the message names it.
        """
        self.check(vocab_size)
        starts = self.start if isinstance(self.start, list | tuple | np.ndarray) else [self.start] * len(texts)
        if len(starts) != len(texts):
            raise ValueError(f"start: expected a number, or one for each of {len(texts)} scores, got {len(starts)}")
        firsts = [_first(start, one, i) for i, (start, one) in enumerate(zip(starts, texts, strict=True))]
        given = self.token_ids
        if given is None:
            each: list[Any] = [np.zeros(0, np.int32)] * len(texts)
        elif _flat(given):
            each = [ids_of(given, "token_ids", vocab_size)] * len(texts)
        else:
            if len(given) != len(texts):
                raise ValueError(
                    f"token_ids: expected a list of ids, or one for each of {len(texts)} scores, got {len(given)}"
                )
            each = [
                chosen_ids(one, f"token_ids[{i}]", len(text.token_ids) - first, vocab_size)
                for i, (one, text, first) in enumerate(zip(given, texts, firsts, strict=True))
            ]
        longest = max((len(ids) for one in each for ids in ([one] if isinstance(one, np.ndarray) else one)), default=0)
        # Few programs for many lengths.
        width = 1 << (longest - 1).bit_length() if longest else 0
        asked = [TextQuestion(first, ids) for first, ids in zip(firsts, each, strict=True)]
        return Question(self.top, width, float(self.temperature), bool(self.entropy), given is not None, asked)


def _first(start: Any, text: ScoredIds, i: int) -> int:
    """Return the index of the first token to report on, of all that the model reads."""
    own = len(text.token_ids) - text.prompt
    if start is None:
        start = 0
    if not _whole(start) or not 0 <= start <= own:
        raise ValueError(f"start: expected 0..{own} for score {i} of {own} tokens, got {start!r}")
    return max(text.prompt + int(start), 1)  # nothing predicts the first token


def chosen_ids(given: Any, where: str, positions: int, vocab_size: int) -> np.ndarray | list[np.ndarray]:
    """Return the chosen ids of one text: a list of ids, or one for each position.

    Args:
        given: what the user gave.
        where: its name in messages.
        positions: number of positions that are reported on.
        vocab_size: ids are below it.

    Raises:
        TypeError, ValueError: no ids of the vocabulary, or lists for another number of positions.
    """
    if _flat(given):
        return ids_of(given, where, vocab_size)
    if not isinstance(given, list | tuple | np.ndarray):
        raise TypeError(f"{where}: expected ids, or a list of ids for each position, got {type(given)}")
    if len(given) != max(positions, 0):
        raise ValueError(
            f"{where}: expected ids for each of {max(positions, 0)} positions (those with a prediction, from start "
            f"on), got {len(given)} lists"
        )
    return [ids_of(one, f"{where}[{i}]", vocab_size) for i, one in enumerate(given)]


def ids_of(given: Any, where: str, vocab_size: int) -> np.ndarray:
    """Return token ids as int32 [C]; raises TypeError or ValueError that names them."""
    array = np.asarray(given)
    if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
        raise TypeError(f"{where}: expected a list of token ids, got {given!r}"[:300])
    if len(array) > MAX_IDS:
        raise ValueError(f"{where}: expected at most {MAX_IDS:,} ids, got {len(array):,}")
    if array.size and not 0 <= int(array.min()) <= int(array.max()) < vocab_size:
        raise ValueError(f"{where}: ids must be in [0, {vocab_size}), got {array.min()}..{array.max()}")
    return array.astype(np.int32)


def _flat(given: Any) -> bool:
    """Whether it is one list of ids."""
    if isinstance(given, np.ndarray):
        return given.ndim == 1 and given.dtype != object
    return isinstance(given, list | tuple) and all(_whole(one) for one in given)


def _whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


@dataclass(eq=False)
class Found:
    """Arrays of what is asked about one text, while its steps are read.

    Attributes:
        question: of the call.
        asked: of the text.
        length: number of its tokens, with everything before them.
        ranks, entropy: of each of its tokens; 0 and nan where nothing is asked.
    """

    question: Question
    asked: TextQuestion
    length: int
    ranks: np.ndarray = field(init=False)
    entropy: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        count, asked = max(self.length - self.asked.first, 0), self.question
        self.ranks = np.zeros(self.length, np.int32)
        self.entropy = np.full(self.length, math.nan, np.float32)
        self._top_ids = np.zeros((count, asked.top), np.int32)
        self._top_logprobs = np.zeros((count, asked.top), np.float32)
        self._logprobs = np.zeros((count, asked.width), np.float32)
        self._chosen_ranks = np.zeros((count, asked.width), np.int32)

    def take(self, scored: Scored, lane: int, first: int, count: int) -> None:
        """Store a step's results, NumPy arrays, for `count` tokens from `first` on."""
        skipped = max(self.asked.first - first, 0)
        if skipped >= count:
            return
        step, own = slice(skipped, count), slice(first + skipped, first + count)
        inside = slice(own.start - self.asked.first, own.stop - self.asked.first)
        assert scored.rank is not None and scored.entropy is not None, "the step was asked for them"
        self.ranks[own], self.entropy[own] = scored.rank[lane, step], scored.entropy[lane, step]
        if scored.top_tokens is not None and scored.top_logprobs is not None:
            self._top_ids[inside], self._top_logprobs[inside] = (
                scored.top_tokens[lane, step],
                scored.top_logprobs[lane, step],
            )
        if scored.chosen_logprobs is not None and scored.chosen_ranks is not None:
            self._logprobs[inside], self._chosen_ranks[inside] = (
                scored.chosen_logprobs[lane, step],
                scored.chosen_ranks[lane, step],
            )

    def copy_from(self, shared: "Found") -> None:
        """Copy the results of the first tokens from those of a shared prefix, which was asked the same about them."""
        first, end = self.asked.first, shared.length
        if end <= first:
            return
        assert shared.asked.first == first, "chunks that are shared are asked the same"
        self.ranks[first:end], self.entropy[first:end] = shared.ranks[first:], shared.entropy[first:]
        for name in ("_top_ids", "_top_logprobs", "_logprobs", "_chosen_ranks"):
            getattr(self, name)[: end - first] = getattr(shared, name)

    def top(self, before: int) -> TokenLogprobs | None:
        """Return the most likely tokens of each token behind `before`; None if they were not asked for."""
        count = self.question.top
        if not count:
            return None
        positions = len(self._top_ids)
        ranks = np.tile(np.arange(1, count + 1, dtype=np.int32), positions)
        offsets = self._offsets(np.full(positions, count, np.int64), before)
        return TokenLogprobs(self._top_ids.reshape(-1), self._top_logprobs.reshape(-1), ranks, offsets)

    def chosen(self, before: int) -> TokenLogprobs | None:
        """Return the chosen ids of each token behind `before`; None if none were chosen."""
        if not self.question.chosen:
            return None
        positions, given = len(self._logprobs), self.asked.ids
        each = [given] * positions if isinstance(given, np.ndarray) else given
        counts = np.array([len(ids) for ids in each], np.int64)
        real = np.arange(self.question.width) < counts[:, None]
        ids = np.concatenate([np.zeros(0, np.int32), *each])
        return TokenLogprobs(ids, self._logprobs[real], self._chosen_ranks[real], self._offsets(counts, before))

    def _offsets(self, counts: np.ndarray, before: int) -> np.ndarray:
        whole = np.zeros(self.length - before + 1, np.int64)
        whole[self.asked.first - before + 1 :] = np.cumsum(counts)
        return whole

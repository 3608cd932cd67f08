"""Questions to `score` about the distribution of each position: chosen ids, most likely ids, ranks, entropy."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hybridlm.requests.validation import is_whole
from hybridlm.scoring.items import ScoredIds

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

    @property
    def most(self) -> int:
        """Maximum number of chosen ids of a place."""
        return len(self.ids) if isinstance(self.ids, np.ndarray) else max(map(len, self.ids), default=0)

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
    """Questions about every text of a call.

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

    def key(self, text: int, begin: int, end: int) -> tuple[Any, ...] | None:
        """Return the question about tokens `begin` to `end` of a text; None for none."""
        return self.texts[text].key(begin, end)


@dataclass(frozen=True)
class DistributionSettings:
    """Questions about the distribution of each position: arguments of `LM.score`.

    With one of `token_ids`, `top`, `temperature` and `entropy`, scores also have ranks.

    Attributes:
        token_ids: ids with log-probabilities and ranks in `Score.chosen`: a list for all positions, or one list for
            each score. The list of a score has ids for all its positions, or a list of ids for each position with a
            prediction, from `start` on.
        top: number of most likely ids to report at each position (`Score.top`), as arrays.
        start: first token of a text, or of a completion, to report on; one number, or one for each score.
        temperature: divides the logits; log-probabilities, ranks and entropies follow from the quotient.
        entropy: report the entropy of the distribution at each position (`Score.entropy`).
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
        if not is_whole(self.top) or not 0 <= self.top <= most:
            raise ValueError(f"top: expected 0..{most}, got {self.top!r}")
        if isinstance(self.temperature, bool) or not isinstance(self.temperature, int | float):
            raise TypeError(f"temperature: expected a number, got {self.temperature!r}")
        # What float32 rounds to 0 or infinity is none either.
        if not 1e-30 <= self.temperature <= 1e30:
            raise ValueError(f"temperature: expected a number from 1e-30 to 1e30, got {self.temperature!r}")
        if self.start is not None and not self.given:
            raise ValueError("start: expected token_ids, top, entropy or temperature with it, got none of them")

    def of_file(self, vocab_size: int) -> "DistributionSettings":
        """Return the settings for rows of a file, checked: `token_ids` are ids for all rows, or the name of a field.

        Raises:
            TypeError, ValueError: a setting is wrong.
        """
        self.check(vocab_size)
        if self.start is not None and (not is_whole(self.start) or self.start < 0):
            raise ValueError(f"start: expected a whole number of at least 0, got {self.start!r}")
        if self.token_ids is None or isinstance(self.token_ids, str):
            return self
        return replace(self, token_ids=tuple(ids_of(self.token_ids, "token_ids", vocab_size).tolist()))

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
        given = self.token_ids
        if given is None or _flat(given):
            common = ids_of([] if given is None else given, "token_ids", vocab_size)
            asked = [about(text, start, common, "", vocab_size) for text, start in zip(texts, starts, strict=True)]
        else:
            if not isinstance(given, list | tuple | np.ndarray) or len(given) != len(texts):
                found = type(given) if not hasattr(given, "__len__") else len(given)
                raise ValueError(
                    f"token_ids: expected a list of ids, or one for each of {len(texts)} scores, got {found}"
                )
            asked = [
                about(text, start, one, f"token_ids[{i}]", vocab_size)
                for i, (one, text, start) in enumerate(zip(given, texts, starts, strict=True))
            ]
        return self.together(asked)

    def together(self, asked: Sequence[TextQuestion]) -> Question:
        """Return what is asked about all texts of a call, given what is asked about each."""
        longest = max((one.most for one in asked), default=0)
        # Few programs for many lengths.
        width = 1 << (longest - 1).bit_length() if longest else 0
        chosen = self.token_ids is not None
        return Question(self.top, width, float(self.temperature), bool(self.entropy), chosen, list(asked))


NOTHING_ASKED = DistributionSettings()


def about(text: ScoredIds, start: Any, given: Any, where: str, vocab_size: int) -> TextQuestion:
    """Return what is asked about one text.

    Args:
        text: its token ids.
        start: first token to report on, behind its prompt; None for the first with a prediction.
        given: its ids, one list or one for each position.
        where: their name in messages.
        vocab_size: ids are below it.

    Raises:
        TypeError, ValueError: one of them does not fit the text.
    """
    first = _first(start, text)
    return TextQuestion(first, chosen_ids(given, where, len(text.token_ids) - first, vocab_size))


def _first(start: Any, text: ScoredIds) -> int:
    """Return the index of the first token to report on, of all that the model reads."""
    own = len(text.token_ids) - text.prompt
    if start is None:
        start = 0
    if not is_whole(start) or not 0 <= start <= own:
        raise ValueError(f"start: expected 0..{own} for a text of {own} tokens, got {start!r}")
    return max(text.prompt + int(start), 1)  # nothing predicts the first token


def chosen_ids(given: Any, where: str, positions: int, vocab_size: int) -> np.ndarray | list[np.ndarray]:
    """Return the chosen ids of one text: a list of ids, or one for each position.

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
    return isinstance(given, list | tuple) and all(is_whole(one) for one in given)

"""Questions about each position's distribution: chosen ids, most likely ids, ranks, entropy."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hybridlm.requests.validation import is_whole, without_numpy
from hybridlm.scoring.items import ScoredIds

MAX_IDS = 1 << 14
"""Maximum ids reported at a position."""


@dataclass(frozen=True, eq=False)
class TextQuestion:
    """Positions and ids of one text to report on.

    Attributes:
        first: first reported token, among all that the model reads.
        ids: int32 [C] for every token from `first` on, or an array for each.
    """

    first: int
    ids: np.ndarray | list[np.ndarray]

    def at(self, token: int) -> np.ndarray:
        return self.ids if isinstance(self.ids, np.ndarray) else self.ids[token - self.first]

    @property
    def width(self) -> int:
        return len(self.ids) if isinstance(self.ids, np.ndarray) else max(map(len, self.ids), default=0)

    def key(self, begin: int, end: int) -> tuple[Any, ...] | None:
        """Return a key, equal for equal questions about tokens `begin` to `end`."""
        if end <= self.first:
            return None
        tokens = range(max(begin, self.first), end)
        if isinstance(self.ids, np.ndarray):
            return (tokens.start, self.ids.tobytes())
        return (tokens.start, *(self.at(token).tobytes() for token in tokens))

    def fill(self, operand: np.ndarray, begin: int) -> None:
        """Write the chosen ids of tokens from `begin` on into an operand, int32 [count, C]."""
        for i in range(max(self.first - begin, 0), len(operand)):
            ids = self.at(begin + i)
            operand[i, : len(ids)] = ids


@dataclass(frozen=True, eq=False)
class Question:
    """Questions about every text of a call.

    Attributes:
        width: chosen ids of a position in a step: longest list, rounded up.
    """

    top: int
    width: int
    temperature: float
    entropy: bool
    chosen: bool
    texts: list[TextQuestion]

    def key(self, text: int, begin: int, end: int) -> tuple[Any, ...] | None:
        return self.texts[text].key(begin, end)


@dataclass(frozen=True)
class DistributionSettings:
    """Questions about the distribution of each position: arguments of `LM.score`.

    With any of `token_ids`, `top`, `temperature` and `entropy`, scores also have ranks.

    Attributes:
        token_ids: ids of `Score.chosen`: a list for all positions, or one for each score. A score's list has ids for
            all its positions, or a list of ids for each position with a prediction, from `start` on.
        top: most likely ids to report at each position (`Score.top`).
        start: first reported token of a text or completion; one number, or one for each score.
        temperature: divides the logits before log-probabilities, ranks and entropies.
        entropy: report the entropy at each position (`Score.entropy`).
    """

    token_ids: Any = None
    top: int = 0
    start: Any = None
    temperature: float = 1.0
    entropy: bool = False

    def __post_init__(self) -> None:
        without_numpy(self)

    @property
    def given(self) -> bool:
        """Whether a score has more than log-probabilities."""
        return self.token_ids is not None or self.top != 0 or self.temperature != 1.0 or self.entropy

    def check(self, vocab_size: int) -> None:
        """Check settings without texts; raises TypeError or ValueError."""
        limit = min(vocab_size, MAX_IDS)
        if not isinstance(self.entropy, bool):
            raise TypeError(f"entropy: expected True or False, got {self.entropy!r}")
        if not is_whole(self.top) or not 0 <= self.top <= limit:
            raise ValueError(f"top: expected 0..{limit}, got {self.top!r}")
        if isinstance(self.temperature, bool) or not isinstance(self.temperature, int | float):
            raise TypeError(f"temperature: expected a number, got {self.temperature!r}")
        # float32 rounds other numbers to 0 or infinity.
        if not 1e-30 <= self.temperature <= 1e30:
            raise ValueError(f"temperature: expected a number from 1e-30 to 1e30, got {self.temperature!r}")
        if self.start is not None and not self.given:
            raise ValueError("start: expected token_ids, top, entropy or temperature with it, got none of them")

    def of_file(self, vocab_size: int) -> "DistributionSettings":
        """Return the checked settings for rows of a file; `token_ids` may name a field."""
        self.check(vocab_size)
        if self.start is not None and (not is_whole(self.start) or self.start < 0):
            raise ValueError(f"start: expected a whole number of at least 0, got {self.start!r}")
        if self.token_ids is None or isinstance(self.token_ids, str):
            return self
        return replace(self, token_ids=tuple(ids_of(self.token_ids, "token_ids", vocab_size).tolist()))

    def question(self, texts: Sequence[ScoredIds], vocab_size: int) -> Question:
        """Return the questions about texts; positions count from the end of each prompt.

        Raises:
            TypeError, ValueError: names a setting that does not fit the texts.
        """
        self.check(vocab_size)
        starts = self.start if isinstance(self.start, list | tuple | np.ndarray) else [self.start] * len(texts)
        if len(starts) != len(texts):
            raise ValueError(f"start: expected a number, or one for each of {len(texts)} scores, got {len(starts)}")
        ids = self.token_ids
        if ids is None or _flat(ids):
            common = ids_of([] if ids is None else ids, "token_ids", vocab_size)
            lists, names = [common] * len(texts), [""] * len(texts)
        elif not isinstance(ids, list | tuple | np.ndarray) or len(ids) != len(texts):
            got = len(ids) if hasattr(ids, "__len__") else type(ids)
            raise ValueError(f"token_ids: expected a list of ids, or one for each of {len(texts)} scores, got {got}")
        else:
            lists, names = ids, [f"token_ids[{i}]" for i in range(len(texts))]
        return self.together(
            [
                about(text, start, text_ids, name, vocab_size)
                for text, start, text_ids, name in zip(texts, starts, lists, names, strict=True)
            ]
        )

    def together(self, questions: Sequence[TextQuestion]) -> Question:
        longest = max((question.width for question in questions), default=0)
        # Few programs for many lengths.
        width = 1 << (longest - 1).bit_length() if longest else 0
        chosen = self.token_ids is not None
        return Question(self.top, width, float(self.temperature), self.entropy, chosen, list(questions))


NOTHING_ASKED = DistributionSettings()


def about(text: ScoredIds, start: Any, ids: Any, where: str, vocab_size: int) -> TextQuestion:
    """Return the question about one text; raises TypeError or ValueError.

    Args:
        start: after the prompt; None for the first token with a prediction.
    """
    length = len(text.token_ids) - text.prompt
    start = 0 if start is None else start
    if not is_whole(start) or not 0 <= start <= length:
        raise ValueError(f"start: expected 0..{length} for a text of {length} tokens, got {start!r}")
    first = max(text.prompt + int(start), 1)  # nothing predicts the first token
    return TextQuestion(first, _chosen_ids(ids, where, max(len(text.token_ids) - first, 0), vocab_size))


def _chosen_ids(ids: Any, where: str, positions: int, vocab_size: int) -> np.ndarray | list[np.ndarray]:
    if _flat(ids):
        return ids_of(ids, where, vocab_size)
    if not isinstance(ids, list | tuple | np.ndarray):
        raise TypeError(f"{where}: expected ids, or a list of ids for each position, got {type(ids)}")
    if len(ids) != positions:
        raise ValueError(
            f"{where}: expected ids for each of {positions} positions (those with a prediction, from start on), got "
            f"{len(ids)} lists"
        )
    return [ids_of(position_ids, f"{where}[{i}]", vocab_size) for i, position_ids in enumerate(ids)]


def ids_of(ids: Any, where: str, vocab_size: int) -> np.ndarray:
    """Return token ids as int32 [C]; raises TypeError or ValueError."""
    array = np.asarray(ids)
    if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
        raise TypeError(f"{where}: expected a list of token ids, got {ids!r}"[:300])
    if len(array) > MAX_IDS:
        raise ValueError(f"{where}: expected at most {MAX_IDS:,} ids, got {len(array):,}")
    if array.size and not 0 <= int(array.min()) <= int(array.max()) < vocab_size:
        raise ValueError(f"{where}: ids must be in [0, {vocab_size}), got {array.min()}..{array.max()}")
    return array.astype(np.int32)


def _flat(ids: Any) -> bool:
    if isinstance(ids, np.ndarray):
        return ids.ndim == 1 and ids.dtype != object
    return isinstance(ids, list | tuple) and all(map(is_whole, ids))

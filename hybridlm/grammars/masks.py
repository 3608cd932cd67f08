"""Masks of the tokens that each lane of a step may sample."""

from collections.abc import Sequence

import numpy as np

from hybridlm.grammars.grammars import GrammarState


class TokenSet:
    """Mask of fixed tokens, with the methods of `GrammarState`."""

    fault = None
    complete = False

    def __init__(self, token_ids: Sequence[int], vocab_size: int):
        self.words = -(-vocab_size // 32)
        self._members = np.zeros(32 * self.words, bool)
        self._members[list(token_ids)] = True
        self._mask = np.packbits(self._members, bitorder="little").view(np.uint32)

    def push(self, token: int) -> None:
        """Add a sampled token; the mask stays."""

    def allowed(self, drafts: Sequence[int]) -> int:
        """Return how many leading tokens are in the set."""
        return int(np.logical_and.accumulate(self._members[list(drafts)]).sum())

    def fill(self, masks: np.ndarray, drafts: Sequence[int] = ()) -> None:
        """Write the masks before and after each draft: uint32 [D + 1 or more, words]."""
        masks[: len(drafts) + 1] = 0
        masks[: len(drafts) + 1, : self.words] = self._mask


TokenState = GrammarState | TokenSet


def token_masks(
    states: Sequence[TokenState | None], words: int, drafts: Sequence[Sequence[int]] | None = None, tokens: int = 1
) -> np.ndarray | None:
    """Return the masks of every lane, or None if all tokens are allowed.

    Args:
        states: of the lanes; None allows all tokens.
        drafts: None in a step that verifies none.
        tokens: of a lane in a verifying step.

    Returns:
        uint32 [lanes, words], or with drafts [lanes, tokens, words].
    """
    width = max((state.words for state in states if state is not None), default=0)
    if not width:
        return None
    masks = np.full((len(states), tokens, width), 0xFFFFFFFF, np.uint32)
    grammars = list[tuple[GrammarState, int]]()
    for lane, state in enumerate(states):
        if drafts is None and isinstance(state, GrammarState):
            grammars.append((state, lane))
        elif state is not None:
            state.fill(masks[lane], () if drafts is None else drafts[lane])
    GrammarState.fill_all(grammars, masks[:, 0])
    masks = masks[:, :, :words]
    return np.ascontiguousarray(masks[:, 0] if drafts is None else masks)

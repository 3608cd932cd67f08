"""Prompts cut in wrong places, and chunks confused with other chunks."""

from collections.abc import Sequence

import numpy as np
import pytest
from engine_mutants.mutant import EngineMutant, Finder

from hybridlm.engine import scheduler
from hybridlm.requests.sequence import ActiveSequence
from hybridlm.steps.operands import Batch, Feed


def lengths(patch: pytest.MonkeyPatch, change) -> None:
    """Other lengths of the lanes of a chunk: `change(lengths, tokens)`."""
    right = Batch.of

    def of(feeds: Sequence[Feed | None], tokens: int, *rows: np.ndarray) -> Batch:
        batch = right(feeds, tokens, *rows)
        return batch._replace(lengths=change(np.asarray(batch.lengths), tokens).astype(np.int32))

    patch.setattr(Batch, "of", staticmethod(of))


def padding_is_consumed(patch: pytest.MonkeyPatch) -> None:
    lengths(patch, lambda real, tokens: np.where(real > 0, tokens, 0))


def whole_chunk_not_written(patch: pytest.MonkeyPatch) -> None:
    lengths(patch, lambda real, tokens: np.where(real == tokens, 0, real))


def every_chunk_begins(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(scheduler, "Feed", lambda tokens, position: Feed(tokens, 0))


def last_token_left_out(patch: pytest.MonkeyPatch) -> None:
    def prefilling(self: ActiveSequence) -> bool:
        remaining = len(self.request.prompt) - self.consumed
        return remaining > (1 if self.consumed else 0)

    patch.setattr(ActiveSequence, "prefilling", property(prefilling))


MUTANTS = (
    EngineMutant("padding-is-consumed", "mlx-lm#1736, vLLM#55178", "the tokens that fill up a chunk enter the state",
                 Finder.SANITIZER, padding_is_consumed),
    EngineMutant("whole-chunk-not-written", "vLLM#47123",
                 "a chunk without padding takes another path: nothing is written", Finder.SANITIZER,
                 whole_chunk_not_written),
    EngineMutant("every-chunk-begins", "transformers#46032", "each chunk begins from zero state at position 0",
                 Finder.SANITIZER, every_chunk_begins),
    EngineMutant("last-token-left-out", "vLLM#34871", "a last chunk of one token is taken for a finished prompt",
                 Finder.ALONE, last_token_left_out),
)  # fmt: skip

"""Computation of a prefix, as a text that is read."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hybridlm.engine.engine import Engine
from hybridlm.engine.prefix import Prefix
from hybridlm.engine.reading import QueuedText, Reading
from hybridlm.engine.scheduler import read_all
from hybridlm.errors import NumericalError
from hybridlm.requests.sequence import sampling_arrays
from hybridlm.rows.snapshot import nothing_consumed
from hybridlm.steps.generate import SampledTokens
from hybridlm.steps.operands import Batch, StepInputs


@dataclass(eq=False)
class PrefixText(QueuedText):
    outside: int = field(kw_only=True)

    def take(self, outputs: SampledTokens, lane: int, first: int, count: int) -> None:
        if first + count == len(self.tokens) and np.asarray(outputs.token)[lane] >= self.outside:
            self.mark_wrong(first + count - 1)


def compute_prefix(engine: Engine, tokens: tuple[int, ...]) -> Prefix:
    """Prefill all tokens except the last, a chunk per step.

    Raises:
        NumericalError: the logits after them are not numbers.
        IsolationError, AuditError, HloError: the step is refused.
    """

    def inputs(batch: Batch, lanes: Sequence[Any], feeds: Sequence[Any]) -> StepInputs:
        return StepInputs(batch, None, *sampling_arrays([None] * len(lanes)))

    lanes, snapshot = engine.bucket(1, engine.lanes), nothing_consumed(engine.kind)
    reading: Reading[PrefixText] = Reading([engine], lanes, inputs, widths=(engine.chunk,), counter="prompt_tokens")
    text = PrefixText(0, tokens, keeps_state=True, outside=engine.vocab_size)
    with engine.command("prefix", tokens=tokens):
        if len(tokens) > 1:
            list(read_all(reading, [text]))
            if text.first_wrong is not None:
                raise NumericalError("prefix", text.first_wrong)
            assert text.snapshot is not None
            snapshot = text.snapshot
        if engine.decisions is not None:
            engine.decisions.share(snapshot)
    return Prefix(tokens, snapshot)
